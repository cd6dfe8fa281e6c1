"""What a solver needs of a camera."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor


class LinearSystem(Protocol):
    """What a solver needs of a camera; see `cassi.systems.System`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return A x: `(B, C, H, W)` → `(B, K, H', W')`."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Return Aᵀy: `(B, K, H', W')` → `(B, C, H, W)`."""

    def pinv(self, y: Tensor) -> Tensor:
        """Return the minimum-norm solution Aᵀ(AAᵀ)⁺y, `(B, C, H, W)`."""

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Return argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², `(B, C, H, W)`."""


class Camera(LinearSystem, Protocol):
    """What a `cassi.systems.System` can be asked beside: its shape, its parts, other pixels."""

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    def part(self, start: int, stop: int) -> Camera:
        """Return the camera of some lines."""

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return a measurement in which bad pixels are zero."""

    def weighted(self, variance: Any = None, bad_pixels: Any = None) -> Camera:
        """Return the camera that leaves pixels out, or weighs them."""


def is_camera(system: LinearSystem) -> TypeGuard[Camera]:
    """Tell whether pixels can be left out of what the camera sees."""
    return hasattr(system, "weighted")


def part_axis(system: LinearSystem) -> int | None:
    """Return the axis along which a scene may be cut, -2 or -1; None where it cannot be."""
    return getattr(system, "part_axis", None)


def good_pixels(system: LinearSystem) -> Tensor | None:
    """Return the pixels that the camera sees, bool, `(1|B, K, H', W')`; None for all."""
    return getattr(system, "good", None)


def check_order(function: str, y: Any, system: Any) -> None:
    """Raise a TypeError where measurement and camera are in the wrong order."""
    if isinstance(system, Tensor) and not isinstance(y, Tensor):
        raise TypeError(f"{function}: expected (y, system), got (system, y); give y first")


def seen(y: Tensor, system: LinearSystem) -> Tensor:
    """Return the measurement as the camera sees it: without its bad pixels, where it has some."""
    return system.without_bad_pixels(y) if is_camera(system) else y


def begin_system(system: LinearSystem) -> LinearSystem:
    """Return the camera for one run. It may keep the last solve to start the next one from."""
    run: LinearSystem = system.begin() if hasattr(system, "begin") else system
    return run


def damped_inverse(y: Tensor, system: LinearSystem, rho: Any) -> Tensor:
    """Return Aᵀ(AAᵀ + ρI)⁻¹y, `(B, C, H, W)`: the data step from zero; `pinv` where ρ = 0.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        rho: damping ρ >= 0, a number, `(B,)`, or one per detector pixel, `(1|B, K, H', W')`.
    """
    return damped_start(y, system, rho) if torch.as_tensor(rho).any() else system.pinv(y)


def damped_start(y: Tensor, system: LinearSystem, rho: Any) -> Tensor:
    """Return the `damped_inverse` where ρ > 0: no value of a tensor is read."""
    return system.data_step(torch.zeros_like(system.adjoint(y)), y, rho)
