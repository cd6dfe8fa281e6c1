"""Fast iterative shrinkage-thresholding."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.checks import not_negative
from cassi.prior_protocols import Prior
from cassi.solvers.base import Algorithm, State
from cassi.solvers.linear_system import LinearSystem, Rho
from cassi.solvers.objective import data_misfit, inner_product
from cassi.solvers.statistics import Statistics, largest_eigenvalue


@dataclass(frozen=True)
class FistaState(State):
    """The cube, the extrapolated point z, the momentum t of each sample, and ‖A‖²."""

    point: Tensor
    momentum: Tensor  # (B, 1, 1, 1)
    lipschitz: Tensor  # ()


@dataclass(frozen=True)
class FISTA(Algorithm[FistaState]):
    """Fast iterative shrinkage-thresholding: a gradient step from z, then the prior.

        x⁺ = prior(z + Aᵀ(y − Az)/(L + ρ), σ),   t⁺ = (1 + √(1 + 4t²))/2,
        z⁺ = x⁺ + (t − 1)/t⁺·(x⁺ − x),           L = ‖A‖², computed once by power iteration.

    If prior(v, σ) = argmin_u ½‖u − v‖² + R(u), the method minimises ½‖Ax − y‖² + (L + ρ)R(x).

    Args:
        rho: ρ >= 0, added to L; shortens the gradient step.
        restart: reset the momentum of a sample if the momentum points uphill.

    Raises:
        ValueError: `rho` is negative.

    Source: Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
    problems", SIAM J. Imaging Sciences 2(1), 2009, section 4; restart: O'Donoghue, Candès,
    "Adaptive restart for accelerated gradient schemes", 2015, section 3.2.
    """

    rho: float = 0.0
    restart: bool = True

    def __post_init__(self) -> None:
        not_negative("FISTA rho", self.rho)

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> FistaState:
        """Return the first state, without momentum."""
        momentum = x0.new_ones((len(x0), 1, 1, 1))
        return FistaState(x0, x0, momentum, largest_eigenvalue(y, system, statistics))

    def step(
        self, state: FistaState, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> FistaState:
        """Take the gradient step, apply the prior, extrapolate."""
        step = 1 / (state.lipschitz + rho)
        x = prior(state.point + step * system.adjoint(y - system(state.point)), sigma)
        move, momentum = x - state.x, state.momentum
        if self.restart:
            # z − x⁺ is the gradient mapping at z. Momentum that points along it goes uphill.
            is_uphill = inner_product(state.point - x, move).view(-1, 1, 1, 1) > 0
            momentum = torch.where(is_uphill, torch.ones_like(momentum), momentum)
        next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        point = x + (momentum - 1) / next_momentum * move
        return FistaState(x, point, next_momentum, state.lipschitz)

    def objective(
        self, state: FistaState, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor:
        """Return ½‖Ax − y‖² + (L + ρ)R(x), per sample: `(B,)`."""
        return data_misfit(state.x, y, system) + (state.lipschitz + rho) * penalty
