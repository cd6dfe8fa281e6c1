"""A single-disperser camera whose lenses and disperser blur."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from cassi.systems.base import System
from cassi.systems.blur import convolve, correlate, line_kernels, point_kernels
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.sd_cassi import SDCassi


class BlurredCassi(System):
    r"""Single disperser with a point-spread function before the mask and a line spread after it.

        y[k, h, w'] = Σ_c Σ_t l[c, t] (m[k, c] · (p[c] * x[c]))[h, w' − o(c) − t]

    p[c] is the blur of the objective, in two dimensions. l[c] is the blur of the disperser and the
    relay lens along the dispersion, of which a detector pixel sees the result: it moves light, also
    out of the mask's shadow, which no calibrated mask can describe. Kernels are centred. A Gaussian
    has the sum 1; an array is taken as it is.

    Nothing is known of the scene beside the field of view, and it counts as dark: light that would
    come from there is missing, light that leaves the field before the mask, or falls beside the
    detector after it, is lost. So a rim as wide as the kernels is less exact than the rest, in the
    model as in any camera.

    AAᵀ is not diagonal: `gram_solve`, `pinv` and `data_step` use conjugate gradients.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in whole pixels per band; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        point_spread: None, the standard deviation of a Gaussian in pixels, a list of one per band,
            or kernels: an array `(h, w)` or `(C, h, w)` of odd sides.
        line_spread: None, a standard deviation, a list of one per band, or kernels: an array
            `(n,)` or `(C, n)` of odd length. A list of numbers counts as one per band.
        tolerance: of conjugate gradients, relative; see `ConjugateGradients`.
        iterations: of conjugate gradients, at most.
        further: what else `SDCassi` takes, such as `offsets`.

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

    mask: Tensor
    point_rows: Tensor | None
    point_columns: Tensor | None
    line: Tensor | None

    def __init__(
        self,
        mask: Any,
        bands: int,
        step: int = 2,
        axis: int = -1,
        *,
        point_spread: Any = None,
        line_spread: Any = None,
        tolerance: float | None = None,
        iterations: int = 200,
        **further: Any,
    ) -> None:
        super().__init__()
        plain = SDCassi(mask, bands, step, axis, **further)
        self.bands, self.step, self.axis = bands, plain.step, axis
        take_mask(self, plain)
        rows = columns = line = None
        if point_spread is not None:
            rows, columns = point_kernels(point_spread, bands)
        if line_spread is not None:
            line = line_kernels(line_spread, bands)
        for name, kernel in (("point_rows", rows), ("point_columns", columns), ("line", line)):
            self.register_buffer(name, None if kernel is None else kernel.to(plain.mask.dtype))
        self._reach = 0 if line is None else line.shape[-1] // 2
        self.conjugate = ConjugateGradients(tolerance, iterations)
        # It shifts and sums what came through the mask, a reach wider on either side.
        sides = list(plain.cube_shape[1:])
        sides[axis] += 2 * self._reach
        if further.get("detector") is not None:
            further = further | {"detector": further["detector"] + 2 * self._reach}
        ones = torch.ones(sides, dtype=plain.mask.dtype, device=plain.mask.device)
        self.inner = SDCassi(ones, bands, step, axis, **further)
        self.inner.register_buffer("mask", self.inner.mask, persistent=False)
        self._detector = plain.measurement_shape[1:]

    @property
    def shots(self) -> int:
        """Number K of masks, that is of channels of the measurement."""
        return self.mask.shape[-4]

    @property
    def offsets(self) -> tuple[float, ...]:
        """Where the leftmost column of each band falls on the detector, pixels."""
        return self.inner.offsets

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (self.bands, *cast("tuple[int, int]", tuple(self.mask.shape[-2:])))

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        return (self.shots, *self._detector)

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        point = line = "none"
        if self.point_rows is not None and self.point_columns is not None:
            point = f"{self.point_rows.shape[-1]}x{self.point_columns.shape[-1]}"
        if self.line is not None:
            line = str(self.line.shape[-1])
        return (
            f"mask={height}x{width}, shots={self.shots}, bands={self.bands}, step={self.step}, "
            f"axis={self.axis}, point_spread={point}, line_spread={line}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        if x.ndim != 4 or tuple(x.shape[1:]) != self.cube_shape:
            raise ValueError(
                f"x: expected (B, C, H, W) = (B, {', '.join(map(str, self.cube_shape))}), "
                f"got shape {tuple(x.shape)}"
            )
        image = x.to(torch.promote_types(x.dtype, torch.float32))[:, None]  # (B, 1, C, H, W)
        if self.point_rows is not None and self.point_columns is not None:
            image = convolve(image, self.point_rows, -2)
            image = convolve(image, self.point_columns, -1).sum(1, keepdim=True)
        image = (image * self.mask).to(image.dtype)  # (B, K, C, H, W)
        if self.line is not None:
            image = convolve(image, self.line, self.axis, full=True)
        y = self.inner(image.flatten(0, 1)).unflatten(0, (len(x), -1)).squeeze(2)
        return y.narrow(self.axis, self._reach, self._detector[self.axis]).to(x.dtype)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        if y.ndim != 4 or tuple(y.shape[1:]) != self.measurement_shape:
            raise ValueError(
                f"y: expected (B, K, H', W') = (B, {', '.join(map(str, self.measurement_shape))}), "
                f"got shape {tuple(y.shape)}"
            )
        sides = (self._reach, self._reach)
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        wide = torch.nn.functional.pad(wide, sides if self.axis == -1 else (0, 0, *sides))
        image = self.inner.adjoint(wide.flatten(0, 1)[:, None]).unflatten(0, y.shape[:2])
        if self.line is not None:
            image = correlate(image, self.line, self.axis, full=True)
        image = (image * self.mask).sum(1, keepdim=True).to(wide.dtype)  # (B, 1, C, H, W)
        if self.point_rows is not None and self.point_columns is not None:
            image = image.expand(-1, len(self.point_rows), -1, -1, -1)
            image = correlate(image, self.point_columns, -1)
            image = correlate(image, self.point_rows, -2).sum(1, keepdim=True)
        return image[:, 0].to(y.dtype)


def take_mask(system: System, plain: SDCassi) -> None:
    """Give a system the mask of another, as a parameter where it is one."""
    if isinstance(plain.mask, nn.Parameter):
        system.mask = plain.mask
    else:
        system.register_buffer("mask", plain.mask)
