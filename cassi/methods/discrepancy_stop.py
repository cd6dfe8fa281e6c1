"""Stop where a solver begins to fit noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import StopWhen, Wrapper
from cassi.solvers import LinearSystem, Solution, Solver
from cassi.solvers.base import Options, take
from cassi.solvers.linear_system import seen
from cassi.solvers.statistics import relative_noise


@dataclass(frozen=True)
class DiscrepancyStop(Wrapper):
    """Stop when the residual falls below a fraction of the noise, and return the first cube.

        ‖y − Ax‖ < fraction · noise · ‖y‖

    Below the noise level a solver fits noise. Without a first cube the last one is returned.

    Args:
        method: a `Solver`; its `noise` is the noise level, or "auto".
        fraction: of the noise, >= 0; 0 never stops.

    Source: Morozov, "On the solution of functional equations by the method of regularization",
    1966.

    Raises:
        TypeError: the method has no `run`.
        ValueError: the fraction is negative.
    """

    method: Solver
    fraction: float

    def __post_init__(self) -> None:
        """Check the fraction."""
        super().__post_init__()
        not_negative("discrepancy_stop", self.fraction)

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample does not depend on its batch: one residual stops all."""
        return self.method.shares_batch and (self.fraction == 0 or self.method.noise == 0)

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        x0, callback, _, statistics = take(given)
        noise = relative_noise(seen(y, system), system, self.method.noise, statistics)
        least = self.fraction * float(noise.max())
        given["callback"] = StopWhen(callback, lambda iteration: iteration.residual < least)
        found = self.method.run(y, system, **given)
        fits_noise = bool(found.history) and found.history[-1].residual < least
        return replace(found, x=x0) if fits_noise and x0 is not None else found
