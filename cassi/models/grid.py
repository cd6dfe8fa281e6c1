"""Cameras as networks see them, and the grids on which networks keep their bands."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.solvers import LinearSystem

Strength = TypeVar("Strength")


@runtime_checkable
class Shaped(Protocol):
    """A camera that says how large cubes and measurements are; see `cassi.systems.System`."""

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""


def shaped(system: LinearSystem) -> Shaped:
    """Return a camera that says its shapes; raise a TypeError for any other."""
    if not isinstance(system, Shaped):
        raise TypeError(f"expected a camera with cube_shape, got {type(system).__name__}")
    return system


class Camera(LinearSystem, Protocol):
    """What a network needs of a camera; see `cassi.systems.SDCassi`."""

    bands: int
    step: int
    """Pixels per band; rounded, where there are offsets."""
    axis: int
    mask: Tensor
    """`(K, 1|C, H, W)`, or `(B, K, 1|C, H, W)`: a mask per sample."""

    @property
    def offsets(self) -> tuple[float, ...]:
        """Where on the detector each band begins, pixels along the axis."""

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""


class Turned:
    """A camera that disperses along rows, seen with rows and columns exchanged."""

    axis = -1

    def __init__(self, system: Camera) -> None:
        self.system, self.mask = system, system.mask.mT
        self.bands, self.step, self.offsets = system.bands, system.step, system.offsets
        shots, height, width = system.measurement_shape
        self.measurement_shape = shots, width, height

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        return self.system(x.mT).mT

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.system.adjoint(y.mT).mT

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse."""
        return self.system.pinv(y.mT).mT

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        rho = rho.mT if isinstance(rho, Tensor) and rho.ndim > 2 else rho
        return self.system.data_step(v.mT, y.mT, rho).mT


class Aligned:
    """Any camera, seen as one that moves its bands by whole pixels, the leftmost one by none.

    Its measurement is the part of the detector on which the bands then lie, zeros where there is
    none. Bands are taken to begin at the nearest whole pixel; the operators are the camera's own.
    """

    axis = -1

    def __init__(self, system: Camera) -> None:
        self.system, self.mask = system, system.mask
        self.bands, self.step = system.bands, system.step
        nearest = [round(offset) for offset in system.offsets]
        first = min(nearest)
        self.offsets = tuple(float(start - first) for start in nearest)
        shots, height, detector = system.measurement_shape
        width = system.mask.shape[-1] + max(nearest) - first
        self.measurement_shape = shots, height, width
        self.pads = (-first, first + width - detector)
        self.cuts = (first, detector - first - width)

    def window(self, y: Tensor) -> Tensor:
        """Cut a measurement of the camera: `(B, 1, H, D)` → `(B, 1, H, W')`."""
        return F.pad(y, self.pads)

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        return self.window(self.system(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.system.adjoint(F.pad(y, self.cuts))

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse of the camera."""
        return self.system.pinv(F.pad(y, self.cuts))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², where y is known."""
        whole = F.pad(y, self.cuts)
        if min(self.pads) < 0:  # what was cut off is as v says
            simulated = self.system(v)
            whole = whole + simulated - F.pad(self.window(simulated), self.cuts)
        if isinstance(rho, Tensor) and tuple(rho.shape[-3:]) == self.measurement_shape:
            rho = F.pad(rho, self.cuts, value=torch.inf)  # no influence where nothing is known
        return self.system.data_step(v, whole, rho)


def camera_mask(system: Camera) -> Tensor:
    """Return the mask of a camera of one shot: `(1|B, 1|C, H, W)`."""
    mask = system.mask
    return mask[:, 0] if mask.ndim == 5 else mask


def windows(y: Tensor, system: Camera) -> Tensor:
    """Return the part of y that each band falls on, shifted back: `(B, 1, H, W')` → `(B, C, H, W)`.

    The adjoint of a camera without a mask.
    """
    width = system.mask.shape[-1]
    if isinstance(system, Aligned):
        return torch.cat([y[..., start : start + width] for start in offsets(system)], 1)
    return ops.adjoint(y, y.new_ones(system.mask.shape[-2:]), system.bands, system.step)


def overlay(x: Tensor, system: Camera) -> Tensor:
    """Sum bands where they fall, the adjoint of `windows`: `(B, C, H, W)` → `(B, 1, H, W')`."""
    if isinstance(system, Aligned):
        shifts = offsets(system)
        pads = [(start, max(shifts) - start) for start in shifts]
        return torch.stack([F.pad(x[:, c], pad) for c, pad in enumerate(pads)], 1).sum(1, True)
    return ops.forward(x, x.new_ones(system.mask.shape[-2:]), system.step)


def offsets(system: Camera) -> list[int]:
    """Return how many columns each band is moved to the right, of a camera as `recover` sees it."""
    return [int(offset) for offset in system.offsets]


class Wide:
    """A camera behind a crop: it sees the first W of W' columns of a cube.

    A wide cube is `(B, C, H, W')`. Networks that move the bands apart by rolling them over W'
    columns, and together again before each denoiser, meet the mask in the first W columns of the
    cube that is together: what lies to the right of those is context for the denoiser only, and a
    data step leaves it as it is.
    """

    def __init__(self, system: Camera) -> None:
        self.system = system
        self.width = system.mask.shape[-1]
        self.extra = max(offsets(system))

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return self.system(x[..., : self.width])

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.adjoint(y), (0, self.extra))

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.pinv(y), (0, self.extra))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²; v and the result are `(B, C, H, W')`."""
        if self.extra == 0:
            return self.system.data_step(v, y, rho)
        seen = self.system.data_step(v[..., : self.width], y, rho)
        return torch.cat((seen, v[..., self.width :]), -1)


def roll_bands(x: Tensor, shifts: Sequence[int]) -> Tensor:
    """Roll each band of `(B, C, H, W')` along the columns: one number of columns per band."""
    bands = [band.roll(shift, -1) for band, shift in zip(x.unbind(1), shifts, strict=True)]
    return torch.stack(bands, 1)


def place_bands(x: Tensor, shifts: Sequence[int], extra: int) -> Tensor:
    """Put each band among zeros: `(B, C, H, W)` → `(B, C, H, W + extra)`."""
    bands = [
        F.pad(band, (shift, extra - shift)) for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def initial_cube(y: Tensor, system: Camera) -> Tensor:
    """Return the windows of y at the scale of one band, 2/C · y: `(B, 1, H, W')` → `(B, C, H, W)`.

    Masks of simulations pass about half of the light, so that Σ m·x is about C/2 bands. The cube
    is laid out with its bands innermost.

    Source: Cai et al., "Mask-guided spectral-wise transformer", CVPR 2022, equation 4.
    """
    return windows(y * 2 / system.bands, system).contiguous(memory_format=torch.channels_last)


def band_masks(y: Tensor, system: Camera) -> Tensor:
    """Return the mask of each band, in the dtype of y: `(1|B, C, H, W)`."""
    mask = camera_mask(system).to(y.dtype)
    return mask.expand(-1, system.bands, -1, -1)


def moved_masks(y: Tensor, system: Camera) -> Tensor:
    """Return the mask of each band where it falls, zeros around it: `(1|B, C, H, W')`."""
    return place_bands(band_masks(y, system), offsets(system), y.shape[-1] - system.mask.shape[-1])


class Sensing:
    """A camera whose bands already lie where they fall, and whose mask is any matrix Φ.

    A x = Σ_c Φ_c ⊙ x_c
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return ops.forward(x, self.matrix, 0)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return ops.adjoint(y, self.matrix, self.matrix.shape[2], 0)

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return self.data_step(torch.zeros_like(self.matrix[:, 0]), y)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        return ops.data_step(v, y, self.matrix, 0, rho)


def gather_bands(x: Tensor, shifts: Sequence[int], width: int) -> Tensor:
    """Cut each band out where it falls: `(B, C, H, W')` → `(B, C, H, width)`."""
    bands = [
        band[..., shift : shift + width] for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def in_place(
    denoise: Callable[[Tensor, Strength], Tensor], shifts: Sequence[int], width: int, columns: int
) -> Callable[[Tensor, Strength], Tensor]:
    """Return a prior of cubes as one of cubes whose bands lie where they fall on the detector.

    Returns:
        Bands in place `(B, C, H, W')` and strength → the same.
    """

    def prior(v: Tensor, sigma: Strength) -> Tensor:
        return place_bands(denoise(gather_bands(v, shifts, width), sigma), shifts, columns - width)

    return prior


def mix_measurement(
    layer: nn.Conv2d, y: Tensor, masks: Tensor, system: Camera, scale: float = 1.0
) -> Tensor:
    """Mix y and the masks of `moved_masks` into a cube `(B, C, H, W')`, its bands where they fall.

    A 1×1 convolution of 2C channels: scale·y where band c falls, and the mask there. Of the first C
    channels it needs no image: y is the same in all of them, so what is left is one weight per band
    and column.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer", NeurIPS 2022.
    """
    width = system.mask.shape[-1]
    ones = y.new_ones(1, system.bands, 1, width)
    reached = place_bands(ones, offsets(system), y.shape[-1] - width)
    of_y, of_mask = layer.weight.chunk(2, 1)
    per_column = F.conv2d(reached, of_y) * scale
    guess = F.linear(masks.permute(0, 2, 3, 1), of_mask.flatten(1), layer.bias)
    return guess.permute(0, 3, 1, 2) + per_column * y
