"""Two-step iterative shrinkage/thresholding."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cassi.checks import not_negative
from cassi.prior_protocols import Prior, is_proximal
from cassi.solvers.base import Algorithm, State
from cassi.solvers.linear_system import LinearSystem, Rho
from cassi.solvers.objective import half_square, inner_product
from cassi.solvers.statistics import Statistics, largest_eigenvalue


@dataclass(frozen=True)
class TwistState(State):
    """The last two cubes, ‖A‖², and the residual of the last cube."""

    residual: Tensor = field(kw_only=True)
    previous: Tensor | None
    lipschitz: Tensor  # ()


@dataclass(frozen=True)
class TwIST(Algorithm[TwistState]):
    """Two-step iterative shrinkage/thresholding: the next cube comes from the last two.

        Γ(x) = prior(x + Aᵀ(y − Ax)/(L + ρ), σ),   L = ‖A‖², computed once by power iteration,
        x_1 = Γ(x_0),   x_{t+1} = (1 − α)x_{t−1} + (α − β)x_t + βΓ(x_t)

    If the eigenvalues of AᵀA/L are in [ξ, 1], convergence is fastest with r = (1 − √ξ)/(1 + √ξ),
    α = r² + 1 and β = 2α/(1 + ξ). Like FISTA it minimises ½‖Ax − y‖² + (L + ρ)R(x), where
    prior(v, σ) = argmin ½‖u − v‖² + R(u).

    The published safeguard takes the plain step Γ(x_t) if the two-step cube has a larger objective
    than the last cube. Here the safeguard decides for each sample separately. A denoiser has no
    objective: the plain step is then taken if the two-step move points against Γ(x_t) − x_t.

    Args:
        rho: ρ >= 0, added to L; shortens the gradient step.
        least: ξ in (0, 1]; smaller for ill-conditioned cameras, 1 is plain iterative shrinkage.
        monotone: use the safeguard.

    Raises:
        ValueError: a number is out of range.

    Source: Bioucas-Dias, Figueiredo, "A new TwIST", IEEE TIP 16(12), 2007, equations 18, 19, 26
    and 27.
    """

    rho: float = 0.0
    least: float = 0.1
    monotone: bool = True

    def __post_init__(self) -> None:
        not_negative("TwIST rho", self.rho)
        if not 0 < self.least <= 1:
            raise ValueError(f"TwIST least: expected a number in (0, 1], got {self.least}")

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> TwistState:
        """Return the first state, without a previous cube."""
        lipschitz = largest_eigenvalue(y, system, statistics)
        return TwistState(x0, None, lipschitz, residual=y - system(x0))

    def step(
        self, state: TwistState, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> TwistState:
        """Compute Γ(x_t), and combine it with the last two cubes."""
        lipschitz = state.lipschitz + rho
        x = shrunk_x = prior(state.x + system.adjoint(state.residual) / lipschitz, sigma)
        if state.previous is not None:
            # Equations 26 and 27; (1 − α)x_{t−1} + (α − β)x_t + βΓ(x_t) written as moves from x_t.
            rate = (1 - math.sqrt(self.least)) / (1 + math.sqrt(self.least))
            beta = 2 * (rate**2 + 1) / (1 + self.least)
            x = state.x + rate**2 * (state.x - state.previous) + beta * (shrunk_x - state.x)
        residual = y - system(x)
        if self.monotone and state.previous is not None:
            penalty = last_penalty = None
            if is_proximal(prior):
                penalty, last_penalty = prior.penalty(x, sigma), prior.penalty(state.x, sigma)
            if penalty is None or last_penalty is None:
                is_worse = inner_product(x - state.x, shrunk_x - state.x) < 0
            else:
                # The last objective is evaluated anew, because σ and ρ may have changed since.
                misfit, last_misfit = half_square(residual), half_square(state.residual)
                objective = misfit + lipschitz * penalty
                is_worse = objective > last_misfit + lipschitz * last_penalty
            if is_worse.any():
                x = torch.where(is_worse.view(-1, 1, 1, 1), shrunk_x, x)
                residual = y - system(x)
        return TwistState(x, state.x, state.lipschitz, residual=residual)

    def objective(
        self, state: TwistState, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor:
        """Return ½‖Ax − y‖² + (L + ρ)R(x), per sample: `(B,)`."""
        return half_square(state.residual) + (state.lipschitz + rho) * penalty
