"""Generalized alternating projection."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cassi.checks import not_negative
from cassi.prior_protocols import Prior
from cassi.solvers.base import Algorithm, State
from cassi.solvers.linear_system import LinearSystem, Rho
from cassi.solvers.objective import data_misfit, half_square
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True)
class GapState(State):
    """The cube, and the target: the measurement onto which the next step projects."""

    target: Tensor


@dataclass(frozen=True)
class GAP(Algorithm[GapState]):
    """Generalized alternating projection: project onto the measurement, then apply the prior.

        v = x + Aᵀ(AAᵀ + ρI)⁻¹(t − Ax),   x ← prior(v, σ)

    Plain GAP projects onto the measurement, t = y. The accelerated form adds the residual to the
    target, t ← t + (y − Ax), and needs far fewer iterations.

    Args:
        accelerated: add the residual to the target after every iteration.
        rho: damping ρ of the projection, >= 0; 0 projects exactly.

    Raises:
        ValueError: `rho` is negative.

    Source: Liao, Li, Carin, "Generalized alternating projection for weighted-ℓ2,1 minimization",
    SIAM J. Imaging Sciences 7(2), 2014; Yuan, "GAP-TV", ICIP 2016, algorithm 1.
    """

    accelerated: bool = True
    rho: float = 0.0
    is_damped: ClassVar[bool] = True
    fits_exactly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        not_negative("GAP rho", self.rho)

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> GapState:
        """Start with the measurement as the target."""
        return GapState(x0, y)

    def step(
        self, state: GapState, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> GapState:
        """Project, apply the prior, and move the target when accelerated."""
        x = prior(system.data_step(state.x, state.target, rho), sigma)
        if not self.accelerated:
            return GapState(x, y)
        # The prior moves x off the target. The residual of x is added to the target, so the
        # next projection corrects the move.
        residual = y - system(x)
        return GapState(x, state.target + residual, residual=residual)

    def objective(
        self, state: GapState, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor:
        """Return ½(y − Ax)ᵀ(AAᵀ + ρI)⁻¹(y − Ax) + R(x), per sample: `(B,)`.

        Plain GAP minimises this objective. Accelerated GAP approaches the solution of Ax = y with
        the least R(x), for which the first term is zero.
        """
        # The data step minimises ½‖v − x‖² + ½‖Av − y‖²/ρ, whose minimum is the first term. Without
        # damping Av = y, and ‖Av − y‖²/ρ would be 0/0.
        v = system.data_step(state.x, y, rho)
        distance = half_square(v - state.x)
        if isinstance(rho, int | float) and rho == 0:
            return distance + penalty
        return distance + data_misfit(v, y, system) / rho + penalty
