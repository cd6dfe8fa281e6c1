"""A camera whose lens, a diffractive one, has another point-spread function at every wavelength."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.systems.blurred import BlurredCassi, band_kernels


@dataclass(frozen=True)
class TurningPsf:
    """A point-spread function of some blades that turn with wavelength.

    Diffractive lenses are made to have such functions: the direction of the blades tells the
    wavelength.

    Attributes:
        length: of a blade, pixels.
        blades: number n; between the first band and the end of the last one they turn by 360°/n.
        width: standard deviation across a blade, pixels.

    Raises:
        ValueError: numbers out of range.

    Source: Jeon et al., "Compact snapshot hyperspectral imaging with diffracted rotation", ACM
    Transactions on Graphics 38(4), 2019, for the idea; the blades are drawn, not computed from a
    lens.

    >>> TurningPsf(length=3).draw(5).shape
    torch.Size([5, 11, 11])
    """

    length: float = 6.0
    blades: int = 3
    width: float = 0.6

    def __post_init__(self) -> None:
        """Check the values."""
        if isinstance(self.blades, bool) or not isinstance(self.blades, int) or self.blades < 1:
            raise ValueError(f"blades: expected a whole number >= 1, got {self.blades!r}")
        for name in ("length", "width"):
            if not 0 < getattr(self, name) <= 100:
                raise ValueError(
                    f"{name}: expected at most 100 pixels, got {getattr(self, name)!r}"
                )

    def draw(self, bands: int) -> Tensor:
        """Return the kernels `(C, n, n)`, float64, each of the sum 1."""
        reach = math.ceil(self.length + 3 * self.width)
        t = torch.arange(-reach, reach + 1, dtype=torch.float64)
        down, right = t[:, None], t[None]
        turn = torch.arange(bands, dtype=torch.float64) / bands
        kernels = torch.zeros(bands, len(t), len(t), dtype=torch.float64)
        for blade in range(self.blades):
            angle = (2 * math.pi * (turn + blade) / self.blades)[:, None, None]
            along = right * angle.cos() - down * angle.sin()
            across = right * angle.sin() + down * angle.cos()
            beyond = along - along.clamp(0, self.length)
            kernels += torch.exp(-0.5 * (across.square() + beyond.square()) / self.width**2)
        return kernels / kernels.sum((1, 2), keepdim=True)


class PsfCassi(BlurredCassi):
    r"""A camera with a point-spread function of any size per wavelength, behind it a mask or none.

        y[k, h, w'] = Σ_c (m[k, c] · (p[c] * x[c]))[h, w' − o(c)]

    It is `BlurredCassi` with p as a stack of kernels that need not be separable: convolutions are
    products of Fourier transforms. Their time does not depend on the size of a kernel. The scene
    outside of the field of view counts as dark.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`: a coded aperture, or filters on the sensor,
            one mask per band. Ones for a camera without a mask.
        bands: number of bands C.
        step: dispersion in pixels per band; 0 for a lens alone.
        axis: -1 disperses along columns, -2 along rows.
        kernels: p, `(C, h, w)` of odd sides, or what draws them, such as `TurningPsf`.
        further: what else `BlurredCassi` takes, such as `detector_spread`.

    Raises:
        TypeError: as `BlurredCassi`.
        ValueError: as `BlurredCassi`, or the kernels do not fit.

    >>> camera = PsfCassi(torch.ones(4, 6), bands=3, kernels=TurningPsf(length=2))
    >>> camera(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 6])
    """

    kernels: Tensor

    def __init__(
        self,
        mask: Any,
        bands: int,
        step: float = 0,
        axis: int = -1,
        *,
        kernels: Any,
        **further: Any,
    ) -> None:
        super().__init__(mask, bands, step, axis, **further)
        drawn = kernels.draw(bands) if isinstance(kernels, TurningPsf) else kernels
        stack = band_kernels("kernels", drawn, bands)
        self.register_buffer("kernels", stack.to(self.mask))

    def _before_mask(self, image: Tensor, back: bool = False) -> Tensor:
        blurred: Tensor = _Blur.apply(image[:, 0], self.kernels, back)
        return blurred[:, None]

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        sides = "x".join(map(str, self.kernels.shape[1:]))
        return (
            f"mask={height}x{width}, shots={self.shots}, bands={self.bands}, step={self.step}, "
            f"axis={self.axis}, kernels={sides}"
        )


class _Blur(torch.autograd.Function):
    """Convolve `(B, C, H, W)` with centred kernels `(1|C, h, w)`, or apply the transpose.

    Each is the gradient of the other, with its bits.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(image: Tensor, kernels: Tensor, back: bool) -> Tensor:
        sides = [a + b - 1 for a, b in zip(image.shape[-2:], kernels.shape[-2:], strict=True)]
        transfer = torch.fft.rfft2(kernels.to(image.dtype), sides)
        seen = torch.fft.rfft2(image, sides) * (transfer.conj() if back else transfer)
        full = torch.fft.irfft2(seen, sides)
        # The middle of a kernel is at half its side. The transpose turns it about its first pixel.
        middle = [side // 2 for side in kernels.shape[-2:]]
        full = full.roll([m if back else -m for m in middle], (-2, -1))
        return full[..., : image.shape[-2], : image.shape[-1]].contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, kernels, ctx.back = inputs
        ctx.save_for_backward(kernels)
        ctx.save_for_forward(kernels)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Blur.apply(gradient, *ctx.saved_tensors, not ctx.back), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        moved: Tensor = _Blur.apply(tangent, *ctx.saved_tensors, ctx.back)
        return moved
