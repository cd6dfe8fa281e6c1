"""The protocols of iterative reconstruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

Prior = Callable[[Tensor, float], Tensor]
"""(cube, sigma) → cube: removes disturbance of standard deviation sigma from the cube."""


class Remembering(Protocol):
    """A prior that learns from call to call within one run: a warm start, a fitted network."""

    def begin(self) -> Prior:
        """Return the prior of one run, with an empty memory of its own.

        Where that remembers something per band, it may have a method `turn(R)`, which is called
        before its bands change to Rᵀx, R `(B, C, C')`; see `cassi.priors.Subspace`.
        """
        ...


class Proximal(Protocol):
    """A prior that is a proximal map: prior(v, σ) = argmin_u ½‖u − v‖² + R(u)."""

    def penalty(self, x: Tensor, sigma: Any) -> Tensor | None:
        """Return R(x) of each sample, `(B,)`; None where these parameters have no R."""
        ...


def begin(prior: Prior) -> Prior:
    """Return the prior for one run: what `prior.begin()` gives where there is one, else itself.

    It has the `penalty` of the prior, if that has one.
    """
    run: Any = prior.begin() if hasattr(prior, "begin") else prior
    if hasattr(prior, "penalty") and not hasattr(run, "penalty"):
        run.penalty = prior.penalty  # a function made for this run alone
    return run


class LinearSystem(Protocol):
    """What a solver needs of a camera; see `cassi.systems.System`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        ...

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        ...

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse."""
        ...

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        ...


@dataclass(frozen=True)
class State:
    """Where an algorithm stands: the current cube, and what a subclass adds to it.

    `residual` is y − Ax when the algorithm has computed it anyway.
    """

    x: Tensor
    residual: Tensor | None = field(default=None, kw_only=True)


def begin_system(system: LinearSystem) -> LinearSystem:
    """Return the camera for one run, which may remember; what is only evaluated goes past it."""
    run: LinearSystem = system.begin() if hasattr(system, "begin") else system
    return run


def softened_inverse(y: Tensor, system: LinearSystem, rho: Any) -> Tensor:
    """Return Aᵀ(AAᵀ + ρI)⁻¹y, `(B, C, H, W)`: the data step from nothing; `pinv` where ρ = 0.

    Args:
        y: measurement `(B, K, H, W')`.
        system: the camera.
        rho: ρ >= 0, a number or `(B,)`.
    """
    if not torch.as_tensor(rho).any():
        return system.pinv(y)
    return system.data_step(torch.zeros_like(system.adjoint(y)), y, rho)


class Algorithm(Protocol):
    """Two pure functions; an algorithm owns no loop, no tensors and no schedule.

    With a class attribute `softens = True` it says that its ρ is that of a data step, to be raised
    for noisy measurements.
    """

    @property
    def rho(self) -> float:
        """The ρ of the data step where no schedule gives another."""
        ...

    def init(self, y: Tensor, system: LinearSystem, x0: Tensor | None = None) -> Any:
        """Return the first state, from `x0` where it is given."""
        ...

    def step(
        self, state: Any, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Any
    ) -> Any:
        """Return the next state."""
        ...
