"""What every network that reconstructs a snapshot shares."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.solvers import LinearSystem


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
        ...

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        ...


class Reconstructor(nn.Module):
    """A network `(y, system) -> x`, for cameras of one shot, dispersed along either axis.

    A subclass gives `recover`, which sees dispersion along columns only, by whole pixels to the
    right of the first column. Of a camera that moves or warps its bands otherwise it sees the next
    such one, see `Aligned`; what it does with the camera's own data step is exact.

    Args:
        bands: number C of bands.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        if isinstance(bands, bool) or not isinstance(bands, int) or bands < 1:
            raise ValueError(f"bands: expected a whole number of at least 1, got {bands!r}")
        self.bands = bands

    def forward(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: measurement `(B, 1, H', W')` → cube `(B, C, H, W)`.

        Raises:
            ValueError: the camera has another number of bands, or several shots, or y is not one
                of its measurements.
        """
        y, camera = self.align(y, system)
        x = self.recover(y, camera)
        return x.mT if system.axis == -2 else x

    def align(self, y: Tensor, system: Camera) -> tuple[Tensor, Camera]:
        """Return measurement and camera as `recover` sees them: `(B, 1, H, W')`.

        Raises:
            ValueError: the camera has another number of bands, or several shots, or y is not one
                of its measurements.
        """
        self._check(y, system)
        if system.axis == -2:
            y, system = y.mT, Turned(system)
        if tuple(system.offsets) == ops.step_offsets(system.bands, system.step):
            return y, system
        aligned = Aligned(system)
        return aligned.window(y), aligned

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        raise NotImplementedError

    def _check(self, y: Tensor, system: Camera) -> None:
        name = type(self).__name__
        if system.bands != self.bands:
            raise ValueError(
                f"{name}: expected a camera of {self.bands} bands, got {system.bands}; make the "
                f"network for them, create_model(…, bands={system.bands})"
            )
        if system.mask.shape[-4] != 1:
            raise ValueError(
                f"{name}: expected a camera of one shot, got {system.mask.shape[-4]} shots; "
                "solvers take several"
            )
        expected = system.measurement_shape[1:]
        if y.ndim != 4 or (y.shape[1], *y.shape[-2:]) != (1, *expected):
            raise ValueError(
                f"{name} y: expected (B, 1, {expected[0]}, {expected[1]}) as the camera says, "
                f"got {tuple(y.shape)}"
            )


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

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        return self.system.data_step(v.mT, y.mT, rho).mT


class Aligned:
    """Any camera, seen as one that moves its bands by whole pixels, the leftmost one by none.

    Its measurement is the part of the detector on which the bands then lie, zeros where there is
    none. Bands are taken to begin at the nearest whole pixel; the operators are the camera's own.

    Args:
        system: disperses along columns.
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

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², where y is known."""
        whole = F.pad(y, self.cuts)
        if min(self.pads) < 0:  # what was cut off is as v says
            simulated = self.system(v)
            whole = whole + simulated - F.pad(self.window(simulated), self.cuts)
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
