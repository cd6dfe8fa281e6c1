"""Alternating direction method of multipliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem, Prior, State
from cassi.solvers.objective import data_misfit


@dataclass(frozen=True)
class AdmmState(State):
    """The denoised cube and the scaled multiplier."""

    dual: Tensor


@dataclass(frozen=True)
class ADMM:
    """Alternating direction method of multipliers, with the prior as the second proximal step.

        v = argmin ½‖Av − y‖² + ρ/2‖v − (x − u)‖²,   x ← prior(v + u, σ),   u ← u + v − x

    Args:
        rho: ρ > 0; small values trust the measurement.

    Source: Boyd et al., "Distributed optimization and statistical learning via the alternating
    direction method of multipliers", 2011, section 3.1.1; Chan et al., "Plug-and-play ADMM", 2017.
    """

    rho: float = 0.01

    def __post_init__(self) -> None:
        """Check ρ."""
        if not self.rho > 0:
            raise ValueError(f"ADMM rho: expected a number > 0, got {self.rho}")

    def init(self, y: Tensor, system: LinearSystem, x0: Tensor | None = None) -> AdmmState:
        """Start from `x0`, or from the shortest cube that explains y, with a zero multiplier."""
        x = system.pinv(y) if x0 is None else x0
        return AdmmState(x, torch.zeros_like(x))

    def step(
        self,
        state: AdmmState,
        y: Tensor,
        system: LinearSystem,
        prior: Prior,
        sigma: Any,
        rho: Any = 0.01,
    ) -> AdmmState:
        """Fit the measurement, denoise, update the multiplier."""
        total = system.data_step(state.x - state.dual, y, rho) + state.dual
        x = prior(total, sigma)
        return AdmmState(x, total - x)

    def objective(
        self, state: AdmmState, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Any
    ) -> Tensor:
        """Return ½‖Ax − y‖² + ρR(x), per sample: `(B,)`."""
        return data_misfit(state.x, y, system) + rho * penalty
