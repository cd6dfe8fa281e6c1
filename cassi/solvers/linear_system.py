"""The protocols of a camera for solvers, and functions for systems with fewer operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

Rho = float | Tensor
"""ρ: one number, one per sample `(B,)`, or one per detector pixel `(1|B, K, H', W')`."""


class LinearSystem(Protocol):
    """The operators of a camera that every solver needs; see `cassi.systems.System`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return A x: `(B, C, H, W)` → `(B, K, H', W')`."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Return Aᵀy: `(B, K, H', W')` → `(B, C, H, W)`."""

    def pinv(self, y: Tensor) -> Tensor:
        """Return the minimum-norm solution Aᵀ(AAᵀ)⁺y, `(B, C, H, W)`."""

    def data_step(self, v: Tensor, y: Tensor, rho: Rho = 0.0) -> Tensor:
        """Return argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², `(B, C, H, W)`."""


class SubspaceSystem(LinearSystem, Protocol):
    """The operators that algorithms on spectral components need too. Every `System` has them.

    c are components, and F and G the matrices of a `cassi.prior_protocols.Basis`.
    """

    @property
    def has_closed_form(self) -> bool:
        """Whether `gram_solve` has a closed form.

        Then the host reads no value from the device during a solve, and no solve depends on an
        earlier one. So a CUDA graph may record it.
        """

    def gram_solve(self, r: Tensor, rho: Rho = 0.0) -> Tensor:
        """Solve (AAᵀ + ρI) z = r."""

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + AAᵀy."""

    def residual_subspace(self, y: Tensor, components: Tensor, basis: Tensor) -> Tensor:
        """Return y − A F c, `(B, K, H', W')`; `basis` is F, `(B, C, R)`."""

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return Gᵀ Aᵀ y, `(B, K, H', W')` → `(B, R, H, W)`; `basis` is G, `(B, C, R)`."""


class CameraSystem(SubspaceSystem, Protocol):
    """A `cassi.systems.System`, which also has a shape, parts and bad pixels."""

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    @property
    def part_axis(self) -> int | None:
        """The axis along which a scene may be cut, -2 or -1; None if it cannot be cut."""

    @property
    def good_pixels(self) -> Tensor | None:
        """The good pixels, bool, `(1|B, K, H', W')`; None for all."""

    @property
    def is_guided(self) -> bool:
        """Whether the camera has a guide of the scene."""

    def begin(self) -> LinearSystem:
        """Return the camera for one run. It may start each solve from the result of the last."""

    def around_prior(self, prior: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the prior of a run; a guided camera adds a pull towards the guide."""

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy."""

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Return A F c, `(B, R, H, W)` → `(B, K, H', W')`; `basis` is F, `(B, C, R)`."""

    def part(self, start: int, stop: int) -> CameraSystem:
        """Return the camera of the lines from `start` to before `stop`."""

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return a measurement in which bad pixels are zero."""

    def weighted(
        self, variance: Tensor | None = None, bad_pixels: Tensor | None = None
    ) -> CameraSystem:
        """Return the camera without bad pixels, or with pixels weighted by their variance."""


def is_camera(system: LinearSystem) -> TypeGuard[CameraSystem]:
    """Tell whether a linear system is a `CameraSystem`, with parts and bad pixels."""
    return hasattr(system, "weighted")


def has_subspace(system: LinearSystem) -> TypeGuard[SubspaceSystem]:
    """Tell whether a linear system has the operators on spectral components."""
    return hasattr(system, "adjoint_subspace")


def part_axis(system: LinearSystem) -> int | None:
    """Return the axis along which a scene may be cut, -2 or -1; None if it cannot be cut."""
    return system.part_axis if is_camera(system) else None


def good_pixels(system: LinearSystem) -> Tensor | None:
    """Return the good pixels of a camera, bool, `(1|B, K, H', W')`; None for all."""
    return system.good_pixels if is_camera(system) else None


def check_order(function: str, y: object, system: object) -> None:
    """Raise a TypeError if measurement and camera are in the wrong order."""
    if isinstance(system, Tensor) and not isinstance(y, Tensor):
        raise TypeError(f"{function}: expected (y, system), got (system, y); give y first")


def zero_bad_pixels(y: Tensor, system: LinearSystem) -> Tensor:
    """Return the measurement with zeros at the bad pixels of the camera."""
    return system.without_bad_pixels(y) if is_camera(system) else y


def begin_system(system: LinearSystem) -> LinearSystem:
    """Return the camera for one run; see `CameraSystem.begin`."""
    return system.begin() if is_camera(system) else system


def damped_inverse(y: Tensor, system: LinearSystem, rho: Rho) -> Tensor:
    """Return Aᵀ(AAᵀ + ρI)⁻¹y, `(B, C, H, W)`: the data step from zero, or `pinv` if all ρ are 0.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        rho: damping ρ >= 0, a number, `(B,)`, or one per detector pixel, `(1|B, K, H', W')`.
    """
    return solve_from_zero(y, system, rho) if torch.as_tensor(rho).any() else system.pinv(y)


def solve_from_zero(y: Tensor, system: LinearSystem, rho: Rho) -> Tensor:
    """Return the `damped_inverse` for ρ > 0.

    Unlike `damped_inverse`, this does not test whether ρ is 0, so the host does not wait for the
    device.
    """
    return system.data_step(torch.zeros_like(system.adjoint(y)), y, rho)
