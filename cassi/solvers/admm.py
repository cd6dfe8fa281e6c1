"""Alternating direction method of multipliers."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor

from cassi.prior_protocols import Prior, has_components
from cassi.solvers.base import Algorithm, State
from cassi.solvers.components import Components, begin_components, step_components
from cassi.solvers.linear_system import CameraSystem, LinearSystem, Rho, has_subspace, is_camera
from cassi.solvers.objective import data_misfit, half_square
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True)
class AdmmState(State):
    """The cube x, and the argument v + u that the prior got."""

    argument: Tensor


AnyState = AdmmState | Components


@dataclass(frozen=True)
class ADMM(Algorithm[AnyState]):
    """Alternating direction method of multipliers, with the prior as the second proximal step.

        v = argmin ½‖Av − y‖² + ρ/2‖v − (x − u)‖²,   v ← r·v + (1 − r)·x
        x ← prior(v + u, σ),   u ← u + v − x

    Args:
        rho: ρ > 0; smaller values follow the measurement more closely.
        relaxation: r in (0, 2); 1 is the plain algorithm, 1.5 to 1.8 need fewer iterations.

    Raises:
        ValueError: a number is out of range.

    Source: Boyd et al., "Distributed optimization and statistical learning via the alternating
    direction method of multipliers", 2011, sections 3.1.1 and 3.4.3; Chan et
    al., "Plug-and-play ADMM", 2017.
    """

    rho: float = 0.01
    relaxation: float = 1.0
    is_damped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise ValueError(f"ADMM rho: expected a number > 0, got {self.rho}")
        if not 0 < self.relaxation < 2:
            raise ValueError(
                f"ADMM relaxation: expected a number between 0 and 2, got {self.relaxation}"
            )

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> AdmmState:
        """Start with a zero multiplier."""
        return AdmmState(x0, x0)

    def step(
        self, state: AnyState, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> AnyState:
        """Take the data step, apply the prior, update the multiplier.

        With a prior on spectral components the step works on components too; see
        `cassi.solvers.components`.
        """
        if has_components(prior) and has_subspace(system):
            if not isinstance(state, Components):
                state = begin_components(state.x, y, system, prior) or state
            if isinstance(state, Components):
                return step_components(state, y, system, prior, sigma, rho, self.relaxation)
        assert isinstance(state, AdmmState)  # all steps of a run have the same prior
        argument = self._compute_argument(state, y, system, rho)
        x = prior(argument, sigma)
        # Only the explicit data step needs the residual. Without such a step the forward pass is
        # saved.
        residual = y - system(x) if _has_explicit_step(system) else None
        return AdmmState(x, argument, residual=residual)

    def _compute_argument(
        self, state: AdmmState, y: Tensor, system: LinearSystem, rho: Rho
    ) -> Tensor:
        """Return v + u, the next argument of the prior."""
        # t is the argument v + u of the last step. Then x − u = 2x − t, and after relaxation
        # v + u = t + r (v − x).
        x, argument, r = state.x, state.argument, self.relaxation
        if not _has_explicit_step(system):
            return argument + r * (system.data_step(torch.lerp(argument, x, 2.0), y, rho) - x)
        # v = 2x − t + Aᵀz, so only the detector image z is solved for. No cube of the data step is
        # stored. The residual of x comes from the last step.
        residual = y - system(x) if state.residual is None else state.residual
        z = system.gram_solve(2 * residual - (y - system(argument)), rho)
        return system.add_adjoint(torch.lerp(argument, x, r), r * z)

    def objective(
        self, state: AnyState, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor:
        """Return ½‖Ax − y‖² + ρR(x), per sample: `(B,)`."""
        if isinstance(state, Components):
            return half_square(state.residual) + rho * penalty
        return data_misfit(state.x, y, system) + rho * penalty


def _has_explicit_step(system: LinearSystem) -> TypeGuard[CameraSystem]:
    """Tell whether the camera has a closed form of `gram_solve`.

    Then the data step may be written as v + Aᵀz, with z from `gram_solve`. Conjugate gradients stop
    at a tolerance, so with them this form would give another cube than `data_step`.
    """
    return is_camera(system) and system.has_closed_form
