"""What every network that reconstructs a snapshot shares."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from cassi import ops
from cassi.solvers.base import LinearSystem


class Camera(LinearSystem, Protocol):
    """What a network needs of a single-disperser camera; see `cassi.systems.SDCassi`."""

    bands: int
    step: int
    axis: int
    mask: Tensor
    """`(K, 1|C, H, W)`, or `(B, K, 1|C, H, W)`: a mask per sample."""


class Reconstructor(nn.Module):
    """A network `(y, system) -> x`, for cameras of one shot, dispersed along either axis.

    A subclass gives `recover`, which sees dispersion along columns only.

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
        self._check(y, system)
        if system.axis == -2:
            return self.recover(y.mT, Turned(system)).mT
        return self.recover(y, system)

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
        height, width = system.mask.shape[-2:]
        extra = (self.bands - 1) * abs(system.step)
        expected = (height + extra, width) if system.axis == -2 else (height, width + extra)
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
        self.bands, self.step = system.bands, system.step

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


def camera_mask(system: Camera) -> Tensor:
    """Return the mask of a camera of one shot: `(1|B, 1|C, H, W)`."""
    mask = system.mask
    return mask[:, 0] if mask.ndim == 5 else mask


def windows(y: Tensor, system: Camera) -> Tensor:
    """Return the part of y that each band falls on, shifted back: `(B, 1, H, W')` → `(B, C, H, W)`.

    The adjoint of a camera without a mask.
    """
    ones = y.new_ones(system.mask.shape[-2:])
    return ops.adjoint(y, ones, system.bands, system.step)


def offsets(system: Camera) -> list[int]:
    """Return how many columns each band is moved to the right."""
    step = system.step
    return [(c if step >= 0 else c - system.bands + 1) * step for c in range(system.bands)]
