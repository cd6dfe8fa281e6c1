"""Half-quadratic splitting."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cassi.prior_protocols import Prior
from cassi.solvers.base import Algorithm, State
from cassi.solvers.linear_system import LinearSystem, Rho
from cassi.solvers.objective import data_misfit, half_square
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True)
class HQS(Algorithm[State]):
    """Half-quadratic splitting: fit the measurement near the last cube, then apply the prior.

        v = argmin ½‖Av − y‖² + ρ/2‖v − x‖²,   x ← prior(v, σ)

    The method minimises ½‖Av − y‖² + ρ/2‖v − x‖² + ρR(x) over v and x in turn. v and x agree in the
    limit of a large ρ. So ρ usually grows from iteration to iteration while σ falls.

    Args:
        rho: ρ > 0; smaller values follow the measurement more closely.

    Raises:
        ValueError: `rho` is not positive.

    Source: Geman, Yang, "Nonlinear image recovery with half-quadratic regularization", IEEE TIP
    4(7), 1995; with a denoiser: Zhang et al., "Learning deep CNN denoiser prior", CVPR 2017.
    """

    rho: float = 0.01
    is_damped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise ValueError(f"HQS rho: expected a number > 0, got {self.rho}")

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> State:
        """Return the first state."""
        return State(x0)

    def step(
        self, state: State, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> State:
        """Take the data step, apply the prior."""
        return State(prior(system.data_step(state.x, y, rho), sigma))

    def objective(
        self, state: State, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor:
        """Return min_v ½‖Av − y‖² + ρ/2‖v − x‖² + ρR(x), per sample: `(B,)`."""
        v = system.data_step(state.x, y, rho)
        return data_misfit(v, y, system) + rho * (half_square(v - state.x) + penalty)
