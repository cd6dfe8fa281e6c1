"""What a solver needs of a camera."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class LinearSystem(Protocol):
    """What a solver needs of a camera; see `cassi.systems.System`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return A x: `(B, C, H, W)` → `(B, K, H', W')`."""
        ...

    def adjoint(self, y: Tensor) -> Tensor:
        """Return Aᵀy: `(B, K, H', W')` → `(B, C, H, W)`."""
        ...

    def pinv(self, y: Tensor) -> Tensor:
        """Return the minimum-norm solution Aᵀ(AAᵀ)⁺y, `(B, C, H, W)`."""
        ...

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Return argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², `(B, C, H, W)`."""
        ...


def check_order(function: str, y: Any, system: Any) -> None:
    """Raise a TypeError where measurement and camera are in the wrong order."""
    if isinstance(system, Tensor) and not isinstance(y, Tensor):
        raise TypeError(f"{function}: expected (y, system), got (system, y); give y first")


def seen(y: Tensor, system: Any) -> Tensor:
    """Return the measurement as the camera sees it: without its bad pixels, where it has some."""
    known = hasattr(system, "without_bad_pixels")  # a camera of the user's need not
    result: Tensor = system.without_bad_pixels(y) if known else y
    return result


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
    if not torch.as_tensor(rho).any():
        return system.pinv(y)
    return system.data_step(torch.zeros_like(system.adjoint(y)), y, rho)
