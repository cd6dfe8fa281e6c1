"""A camera whose diffractive lens has its own point-spread function at every wavelength."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._recording import FunctionContext, Gradients, unwrap
from cassi.systems.arguments import Array, check_shape
from cassi.systems.blurred import BlurredCassi, band_kernels
from cassi.systems.conjugate import Apply

# A mask whose smallest transmission is at least this fraction of the largest is nearly open. Only
# then is AAᵀ nearly a convolution, which the preconditioner inverts in the Fourier domain.
_MIN_OPEN_TRANSMISSION = 0.5

# The preconditioner's denominator is at least this fraction of its largest value. If ρ = 0, the
# denominator is zero at frequencies that no kernel passes. A larger fraction makes the
# preconditioner less exact, a smaller one amplifies rounding errors at these frequencies.
_MIN_DENOMINATOR_FRACTION = 1e-4


@dataclass(frozen=True)
class TurningPsf:
    """A point-spread function of a few blades that turn with wavelength.

    Diffractive lenses are designed to have such functions: the direction of the blades encodes the
    wavelength.

    Attributes:
        length: length of a blade, pixels.
        blades: number n of blades. From each of C bands to the next they turn by 360°/(n·C).
        width: standard deviation across a blade, pixels.

    Raises:
        ValueError: numbers out of range.

    Source: Jeon et al., "Compact snapshot hyperspectral imaging with diffracted rotation", ACM
    Transactions on Graphics 38(4), 2019, for the idea. The blades here are drawn, not computed from
    a lens.

    >>> TurningPsf(length=3).draw(5).shape
    torch.Size([5, 11, 11])
    """

    length: float = 6.0
    blades: int = 3
    width: float = 0.6

    def __post_init__(self) -> None:
        if isinstance(self.blades, bool) or not isinstance(self.blades, int) or self.blades < 1:
            raise ValueError(f"blades: expected a whole number >= 1, got {self.blades!r}")
        for name, value in (("length", self.length), ("width", self.width)):
            if not 0 < value <= 100:
                raise ValueError(
                    f"{name}: expected more than 0 and at most 100 pixels, got {value!r}"
                )

    def draw(self, bands: int) -> Tensor:
        """Return the kernels `(C, h, h)`, float64; the sum of each is 1."""
        reach = math.ceil(self.length + 3 * self.width)
        pixels = torch.arange(-reach, reach + 1, dtype=torch.float64)
        down, right = pixels[:, None], pixels[None]
        turn = torch.arange(bands, dtype=torch.float64) / bands
        kernels = torch.zeros(bands, len(pixels), len(pixels), dtype=torch.float64)
        for blade in range(self.blades):
            angle = (2 * math.pi * (turn + blade) / self.blades)[:, None, None]
            along_blade = right * angle.cos() - down * angle.sin()
            across_blade = right * angle.sin() + down * angle.cos()
            past_end = along_blade - along_blade.clamp(0, self.length)
            kernels += torch.exp(-0.5 * (across_blade.square() + past_end.square()) / self.width**2)
        return kernels / kernels.sum((1, 2), keepdim=True)


class PsfCassi(BlurredCassi):
    r"""A camera with a point-spread function of any size per wavelength, with or without a mask.

        y[k, h, w'] = Σ_c (m[k, c] · (p[c] * x[c]))[h, w' − o(c)]

    It is `BlurredCassi` with kernels p that need not be separable. Convolutions are products of
    Fourier transforms, so their time hardly depends on the size of a kernel. The scene outside of
    the field of view counts as dark.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`: a coded aperture, or filters on the sensor,
            one mask per band. Ones for a camera without a mask.
        bands: number of bands C.
        step: dispersion in pixels per band; 0 for a lens without a disperser.
        axis: -1 disperses along columns, -2 along rows.
        kernels: p, `(C, h, w)` of odd sides, or a `TurningPsf` that draws them.
        further: further arguments of `BlurredCassi`, such as `detector_spread`.

    Raises:
        TypeError: as `BlurredCassi`.
        ValueError: as `BlurredCassi`, the kernels do not fit, or there is a `point_spread` too.

    >>> camera = PsfCassi(torch.ones(4, 6), bands=3, kernels=TurningPsf(length=2))
    >>> camera(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 6])
    """

    kernels: Tensor
    _transfer: Tensor  # (C, P, Q), Fourier transforms of the padded kernels

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 0,
        axis: int = -1,
        *,
        kernels: Array | TurningPsf,
        **further: Any,
    ) -> None:
        if further.get("point_spread") is not None:
            raise ValueError("point_spread: expected None: the kernels are the spread")
        super().__init__(mask, bands, step, axis, **further)
        if isinstance(kernels, TurningPsf):
            kernels = kernels.draw(bands)
        stack = band_kernels("kernels", kernels, bands)
        self.register_buffer("kernels", stack.expand(bands, -1, -1).to(self.mask).contiguous())
        # If one mask codes all bands, no band moves and no blur follows the mask, the Fourier
        # transforms of the bands can be summed. One inverse transform of the sum then replaces one
        # per band.
        self._sums_before_mask = (
            self.mask.shape[-3] == 1
            and not any(self.offsets)
            and self.line is None
            and self.detector_rows is None
            and self.detector == self.mask.shape[axis]
        )
        self._start_deriving()

    @torch.no_grad()
    def refresh(self) -> None:
        """Transform the present kernels."""
        sides = zip(self.mask.shape[-2:], self.kernels.shape[-2:], strict=True)
        self._sides = [fast_length(a + b - 1) for a, b in sides]
        values = self.kernels.to(torch.promote_types(self.kernels.dtype, torch.float32))
        rows, columns = values.shape[-2:]
        padded = pad(values, (0, self._sides[1] - columns, 0, self._sides[0] - rows))
        # The middle of a kernel is moved to the first pixel, so that the image is not shifted.
        self._transfer = torch.fft.rfft2(padded.roll((-(rows // 2), -(columns // 2)), (-2, -1)))
        self._note_sources()

    def _list_sources(self) -> tuple[Tensor]:
        return (self.kernels,)

    def _get_transfer(self) -> Tensor:
        self._refresh_if_changed()
        return self._transfer

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        if not self._sums_before_mask:
            return super().forward(x)
        check_shape("x", x, self.cube_shape)
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        image = _FourierBlur.apply(values, self._get_transfer(), self._sides, False, True)
        return (image * self.mask[..., 0, :, :]).to(x.dtype)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        if not self._sums_before_mask:
            return super().adjoint(y)
        check_shape("y", y, self.measurement_shape)
        values = y.to(torch.promote_types(y.dtype, torch.float32))
        image = (values * self.mask[..., 0, :, :]).sum(1, keepdim=True).to(values.dtype)
        return _FourierBlur.apply(image, self._get_transfer(), self._sides, True, True).to(y.dtype)

    def _blur_scene(self, image: Tensor, is_transposed: bool = False) -> Tensor:
        transfer = self._get_transfer()
        image = _FourierBlur.apply(image[:, 0], transfer, self._sides, is_transposed, False)
        return image[:, None]

    def _precondition(self, rho: Tensor) -> Apply | None:
        """Return a division by Σ_c |p̂[c]|² + ρ in the Fourier domain, for a nearly open mask.

        For an open mask this is the inverse of AAᵀ + ρ, except near the rim.
        """
        mask, plain_mask = self.mask.detach(), unwrap(self.mask)
        if (
            not self._sums_before_mask
            or self.shots > 1
            or float(plain_mask.amin()) < _MIN_OPEN_TRANSMISSION * float(plain_mask.amax())
        ):
            return None
        power = self._get_transfer().abs().square().sum(0)
        power = power * mask.mean().to(power.dtype).square()
        damping = rho.detach().view(-1, 1, 1, 1) if rho.ndim == 1 else rho.detach()
        is_included = damping != torch.inf
        # A division in the Fourier domain is the same for all pixels, so it uses the smallest ρ of
        # each sample.
        min_damping = damping.flatten(1).amin(1).view(-1, 1, 1, 1)
        min_damping = min_damping.clamp_min(_MIN_DENOMINATOR_FRACTION * power.amax())

        def apply(r: Tensor) -> Tensor:
            spectrum = torch.fft.rfft2(r * is_included, self._sides) / (power + min_damping)
            image = torch.fft.irfft2(spectrum, self._sides)
            return (image[..., : r.shape[-2], : r.shape[-1]] * is_included).to(r.dtype)

        return apply

    def _describe_arguments(self) -> list[str]:
        sides = "x".join(map(str, self.kernels.shape[1:]))
        return [f"step={self.step}", f"axis={self.axis}", f"kernels={sides}"]


class _FourierBlur(torch.autograd.Function):
    """Convolve `(B, C, H, W)` with a kernel per band, or apply the transpose (`is_transposed`).

    If `sum_bands`, the convolution also sums over bands, to `(B, 1, H, W)`. The gradient of the
    convolution has the same bits as the transpose, and vice versa.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        image: Tensor, transfer: Tensor, sides: list[int], is_transposed: bool, sum_bands: bool
    ) -> Tensor:
        spectrum = torch.fft.rfft2(image, sides) * (transfer.conj() if is_transposed else transfer)
        if sum_bands and not is_transposed:
            spectrum = spectrum.sum(1, keepdim=True)
        padded = torch.fft.irfft2(spectrum, sides)
        return padded[..., : image.shape[-2], : image.shape[-1]].to(image.dtype).contiguous()

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, transfer, *ctx.constants = inputs
        ctx.save_for_backward(transfer)
        ctx.save_for_forward(transfer)

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Tensor) -> Gradients:
        sides, is_transposed, sum_bands = ctx.constants
        (transfer,) = ctx.saved_tensors
        image = _FourierBlur.apply(gradient, transfer, sides, not is_transposed, sum_bands)
        return image, None, None, None, None

    @staticmethod
    def jvp(ctx: FunctionContext, tangent: Tensor, *_: None) -> Tensor:
        return _FourierBlur.apply(tangent, *ctx.saved_tensors, *ctx.constants)


def fast_length(length: int) -> int:
    """Return the smallest length that is at least this one and has no factors but 2, 3 and 5.

    Fourier transforms of such lengths are fast.
    """
    while True:
        remainder = length
        for factor in (2, 3, 5):
            while remainder % factor == 0:
                remainder //= factor
        if remainder == 1:
            return length
        length += 1
