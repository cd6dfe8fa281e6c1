"""A single-disperser camera with blur by the objective, the disperser and the relay lens."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Unpack

from cassi import ops
from cassi.systems.arguments import Array, check_shape, refuse_gradient
from cassi.systems.coupled import CoupledCassi
from cassi.systems.sd_cassi import SDCassi, SDCassiOptions

# A Gaussian kernel ends this many standard deviations from its middle. All but 6e-5 of the light
# lies within; farther pixels would only cost time.
_KERNEL_SIGMAS = 4


def make_point_kernels(
    spread: Array, bands: int, name: str = "point_spread"
) -> tuple[Tensor, Tensor]:
    """Return a point-spread function as a sum of R products of a row and a column kernel.

        p[c, i, j] = Σ_r rows[r, c, i]·columns[r, c, j]

    A Gaussian is one such product. An array is split by its singular values, and R is the number of
    products that makes the sum exact.

    Args:
        spread: a standard deviation in pixels, a list of one per band, or an array `(h, w)` or
            `(C, h, w)` of odd sides.
        bands: number of bands C.
        name: name of the argument in messages.

    Returns:
        Kernels `(R, 1|C, h)` down the columns and `(R, 1|C, w)` along the rows, float64.

    Raises:
        TypeError: the kernels are not real numbers.
        ValueError: a width is negative, a side is even, a value is not finite, or the numbers of
            kernels and bands differ.
    """
    if _gives_widths(spread):
        gauss = _make_gaussians(name, spread, bands)[None]
        return gauss, gauss
    kernels = band_kernels(name, spread, bands)
    # Singular values below the rounding error count as zero: each would cost two more convolutions.
    u, s, v = torch.linalg.svd(kernels, full_matrices=False)
    limit = torch.finfo(s.dtype).eps * max(kernels.shape[-2:]) * s.amax()
    rank = max(int((s > limit).sum(1).amax()), 1)
    root = s[:, None, :rank].sqrt()
    rows, columns = u[..., :rank] * root, v[:, :rank].mT * root
    return rows.permute(2, 0, 1).contiguous(), columns.permute(2, 0, 1).contiguous()


def band_kernels(name: str, spread: Array, bands: int) -> Tensor:
    """Convert an array `(h, w)` or `(C, h, w)` of odd sides into kernels `(1|C, h, w)`, float64."""
    kernels = _as_array(name, spread)
    kernels = kernels[None] if kernels.ndim == 2 else kernels
    _check_kernels(name, kernels, bands, "(h, w) or (C, h, w)", 3)
    return kernels


def line_kernels(spread: Array, bands: int) -> Tensor:
    """Return a line-spread function `(1|C, n)`, float64.

    Args:
        spread: a standard deviation in pixels, a list of one per band, or an array `(n,)` or
            `(C, n)` of odd length.
        bands: number of bands C.

    Raises:
        TypeError: the kernels are not real numbers.
        ValueError: as for `make_point_kernels`.
    """
    if _gives_widths(spread):
        return _make_gaussians("line_spread", spread, bands)
    kernels = _as_array("line_spread", spread)
    kernels = kernels[None] if kernels.ndim == 1 else kernels
    _check_kernels("line_spread", kernels, bands, "(n,) or (C, n)", 2)
    return kernels


def convolve(image: Tensor, kernel: Tensor, axis: int, keep_tails: bool = False) -> Tensor:
    """Convolve images with centred kernels along one axis, with zeros beside the image.

    Images are `(B, K, C, H, W)`, kernels `(1|C, n)`, or `(R, 1|C, n)` if K is 1 or R. If
    `keep_tails`, the result has n − 1 more pixels along the axis, for light that leaves the image.
    """
    along_columns = image if axis == -1 else image.mT
    convolution = ops.convolve1d(along_columns, kernel[..., None, :])
    if not keep_tails:
        convolution = convolution.narrow(-1, kernel.shape[-1] // 2, along_columns.shape[-1])
    return convolution if axis == -1 else convolution.mT


def correlate(image: Tensor, kernel: Tensor, axis: int, has_tails: bool = False) -> Tensor:
    """Apply the transpose of `convolve`, with the same bits as its gradient.

    `has_tails`: the image is a result of `convolve` with `keep_tails`.
    """
    along_columns = image if axis == -1 else image.mT
    if not has_tails:
        reach = kernel.shape[-1] // 2
        along_columns = pad(along_columns, (reach, reach))
    rows = along_columns.shape[:-1]
    correlation = torch.ops.cassi.correlate1d(
        along_columns.reshape(-1, along_columns.shape[-1]),
        kernel[..., None, :].expand(*rows, -1).reshape(-1, kernel.shape[-1]),
    ).unflatten(0, rows)
    return correlation if axis == -1 else correlation.mT


def _gives_widths(spread: Array) -> TypeGuard[float | Sequence[float]]:
    # A config gives one width per band as a list of numbers. So an array or a nested list is a
    # kernel, and a flat list is not.
    if isinstance(spread, list | tuple):
        return bool(spread) and all(isinstance(value, Real) for value in spread)
    return isinstance(spread, Real)


def _make_gaussians(name: str, widths: float | Sequence[float], bands: int) -> Tensor:  # (1|C, n)
    sigmas = torch.tensor(widths, dtype=torch.float64).reshape(-1)
    if len(sigmas) not in (1, bands):
        raise ValueError(f"{name}: expected one width or {bands}, one per band, got {len(sigmas)}")
    if not bool(((sigmas >= 0) & sigmas.isfinite()).all()):
        raise ValueError(f"{name}: expected widths >= 0, got {widths}")
    reach = math.ceil(_KERNEL_SIGMAS * sigmas.amax())
    pixels = torch.arange(-reach, reach + 1, dtype=torch.float64)
    # A width of 0 is no blur. It is replaced by 1e-3 pixels: the neighbours of the middle then
    # underflow to 0, and nothing is divided by zero.
    positive_sigmas = sigmas.clamp_min(1e-3)[:, None]
    kernels = torch.exp(-0.5 * (pixels / positive_sigmas) ** 2)
    return kernels / kernels.sum(1, keepdim=True)


def _as_array(name: str, spread: Array) -> Tensor:
    if not isinstance(spread, Tensor):
        array = np.asarray(spread)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name}: expected numbers, got dtype {array.dtype}")
        return torch.from_numpy(array.astype(np.float64))
    if spread.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {spread.dtype}")
    refuse_gradient(name, spread, "its values are fixed")
    return spread.detach().to("cpu", torch.float64)


def _check_kernels(name: str, kernels: Tensor, bands: int, letters: str, ndim: int) -> None:
    if kernels.ndim != ndim or kernels.shape[0] not in (1, bands):
        raise ValueError(
            f"{name}: expected a number, one per band, or an array {letters} with C = {bands}, "
            f"got shape {tuple(kernels.shape)}"
        )
    if any(side % 2 == 0 for side in kernels.shape[1:]):
        raise ValueError(
            f"{name}: expected kernels of odd sides, which have a middle, "
            f"got shape {tuple(kernels.shape)}"
        )
    if not bool(kernels.isfinite().all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")


class BlurredCassi(CoupledCassi):
    r"""Single disperser with a point-spread function before the mask and spreads after it.

        z[k, h, w'] = Σ_c Σ_t l[c, t] (m[k, c] · (p[c] * x[c]))[h, w' − o(c) − t]
        y[k] = q * z[k]

    p[c] is the blur of the objective, in two dimensions. l[c] is the blur of the disperser and the
    relay lens along the dispersion. q is the blur of the relay lens in two dimensions, the same for
    all bands. l and q act after the mask and move light into its shadow, so a calibrated mask
    cannot describe them. Kernels are centred. A Gaussian has the sum 1; an array is taken as it is.

    The scene outside of the field of view counts as dark. Light that leaves the field before the
    mask, or falls beside the detector after it, is lost. So the model is less exact in a rim as
    wide as the kernels.

    AAᵀ is not diagonal: `gram_solve`, `pinv` and `data_step` use conjugate gradients.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        point_spread: None, the standard deviation of a Gaussian in pixels, a list of one per band,
            or kernels: an array `(h, w)` or `(C, h, w)` of odd sides.
        line_spread: None, a standard deviation, a list of one per band, or kernels: an array
            `(n,)` or `(C, n)` of odd length. A list of numbers counts as one per band.
        detector_spread: None, a standard deviation, or a kernel `(h, w)` of odd sides.
        tolerance: relative tolerance of conjugate gradients; see `ConjugateGradients`.
        iterations: most iterations of conjugate gradients.
        further: further arguments of `SDCassi`, such as `offsets`.

    Raises:
        TypeError: as `SDCassi`, or a kernel is not numeric.
        ValueError: as `SDCassi`, or a width is negative, a kernel has an even side, or the numbers
            of kernels and bands differ.

    Source: Arguello et al., "Higher-order computational model for coded aperture spectral imaging",
    Applied Optics 52(10), 2013, for a camera that is not a shift by whole pixels.

    >>> system = BlurredCassi(torch.ones(4, 6), bands=3, step=1, point_spread=0.7, line_spread=0.5)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 8])
    """

    point_rows: Tensor | None
    point_columns: Tensor | None
    line: Tensor | None
    detector_rows: Tensor | None
    detector_columns: Tensor | None

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 2,
        axis: int = -1,
        *,
        point_spread: Array | None = None,
        line_spread: Array | None = None,
        detector_spread: Array | None = None,
        tolerance: float | None = None,
        iterations: int = 200,
        **further: Unpack[SDCassiOptions],
    ) -> None:
        disperser = SDCassi(mask, bands, step, axis, **further)
        super().__init__(disperser, tolerance, iterations)
        rows = columns = line = detector_rows = detector_columns = None
        if point_spread is not None:
            rows, columns = make_point_kernels(point_spread, bands)
        if line_spread is not None:
            line = line_kernels(line_spread, bands)
        if detector_spread is not None:
            detector_rows, detector_columns = make_point_kernels(
                detector_spread, 1, "detector_spread"
            )
        kernels = {
            "point_rows": rows,
            "point_columns": columns,
            "line": line,
            "detector_rows": detector_rows,
            "detector_columns": detector_columns,
        }
        for name, kernel in kernels.items():
            self.register_buffer(name, None if kernel is None else kernel.to(disperser.mask.dtype))
        self._reach = 0 if line is None else line.shape[-1] // 2
        # An inner camera with an open mask shifts and sums the coded bands. The line spread makes
        # the coded bands wider than the scene, so the inner camera has more pixels at both ends.
        sides = list(disperser.cube_shape[1:])
        sides[axis] += 2 * self._reach
        if (detector := further.get("detector")) is not None:
            further["detector"] = detector + 2 * self._reach
        ones = torch.ones(sides, dtype=disperser.mask.dtype, device=disperser.mask.device)
        self.inner = SDCassi(ones, bands, step, axis, **further)
        # The mask of ones is no calibration, so state dicts leave it out.
        self.inner.register_buffer("mask", self.inner.mask, persistent=False)

    @property
    def offsets(self) -> tuple[float, ...]:
        """Detector position of the first column of each band, pixels."""
        return self.inner.offsets

    def _describe_arguments(self) -> list[str]:
        def format_sizes(*kernels: Tensor | None) -> str:
            return "x".join("none" if k is None else str(k.shape[-1]) for k in kernels)

        point_text = (
            "none" if self.point_rows is None else format_sizes(self.point_rows, self.point_columns)
        )
        texts = [f"point_spread={point_text}", f"line_spread={format_sizes(self.line)}"]
        if self.detector_rows is not None:
            texts.append(
                f"detector_spread={format_sizes(self.detector_rows, self.detector_columns)}"
            )
        return [*super()._describe_arguments(), *texts]

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
        image = x.to(torch.promote_types(x.dtype, torch.float32))[:, None]  # (B, 1, C, H, W)
        image = self._blur_scene(image)
        image = (image * self.mask).to(image.dtype)  # (B, K, C, H, W)
        if self.line is not None:
            image = convolve(image, self.line, self.axis, keep_tails=True)
        y = self.inner(image.flatten(0, 1)).unflatten(0, (len(x), -1)).squeeze(2)
        y = y.narrow(self.axis, self._reach, self.detector)
        frames = y.flatten(0, 1)[:, None, None]  # (B·K, 1, 1, H', W')
        frames = _blur_image(frames, self.detector_rows, self.detector_columns)
        return frames[:, 0, 0].unflatten(0, y.shape[:2]).to(x.dtype)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        sides = (self._reach, self._reach)
        image = y.to(torch.promote_types(y.dtype, torch.float32))
        image = image.flatten(0, 1)[:, None, None]
        image = _blur_transposed(image, self.detector_rows, self.detector_columns)[:, 0]
        image = pad(image, sides if self.axis == -1 else (0, 0, *sides))
        cube_image = self.inner.adjoint(image).unflatten(0, y.shape[:2])
        if self.line is not None:
            cube_image = correlate(cube_image, self.line, self.axis, has_tails=True)
        cube_image = (
            (cube_image * self.mask).sum(1, keepdim=True).to(image.dtype)
        )  # (B, 1, C, H, W)
        return self._blur_scene(cube_image, is_transposed=True)[:, 0].to(y.dtype)

    def _blur_scene(self, image: Tensor, is_transposed: bool = False) -> Tensor:
        """Blur images `(B, 1, C, H, W)` as the objective does, or apply the transpose."""
        blur = _blur_transposed if is_transposed else _blur_image
        return blur(image, self.point_rows, self.point_columns)


def _blur_image(image: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Blur images `(N, 1, C, H, W)` by the kernels of `make_point_kernels`, if there are any."""
    if rows is None or columns is None:
        return image
    return convolve(convolve(image, rows, -2), columns, -1).sum(1, keepdim=True)


def _blur_transposed(image: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Apply the transpose of `_blur_image`."""
    if rows is None or columns is None:
        return image
    image = correlate(image.expand(-1, len(rows), -1, -1, -1), columns, -1)
    return correlate(image, rows, -2).sum(1, keepdim=True)
