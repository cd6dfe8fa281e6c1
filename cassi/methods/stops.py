"""What ends a run: noise that it fits, or the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from cassi.checks import not_negative
from cassi.methods.wrapper import Wrapper
from cassi.solvers import Callback, Iteration, LinearSystem, Solution, Solver, Statistics, Timed
from cassi.solvers.base import wants_cube
from cassi.solvers.linear_system import seen
from cassi.solvers.schedules import as_schedule
from cassi.solvers.statistics import relative_noise


@dataclass(frozen=True)
class StopWhen:
    """A callback that also ends the run where a condition holds.

    Args:
        callback: of the caller; or None.
        is_over: tells from an iteration's statistics whether the run ends.
    """

    callback: Callback | None
    is_over: Callable[[Iteration], bool]

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the caller's callback needs the cube."""
        return self.callback is not None and wants_cube(self.callback, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Hand the iteration on; True ends the run."""
        stopped = self.callback is not None and bool(self.callback(iteration, x))
        return stopped or self.is_over(iteration)


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Let σ fall as fast as the time takes, and stop when it is over.

    Args:
        method: a `Solver`.
        seconds: from the start of the run, > 0.

    Raises:
        ValueError: a time that is not above 0.
    """

    method: Solver
    seconds: float

    def __post_init__(self) -> None:
        """Check the time."""
        super().__post_init__()
        if not not_negative("time_limit", self.seconds):
            raise ValueError("time_limit: expected seconds above 0 or null, got 0")

    @property
    def noise(self) -> float | Literal["auto"]:
        """Of the solver."""
        return self.method.noise

    @property
    def shares_batch(self) -> bool:
        """The clock stops all samples."""
        return False

    def run(
        self,
        y: Tensor,
        system: LinearSystem,
        *,
        callback: Callback | None = None,
        **given: Any,
    ) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        sigma = Timed(as_schedule(self.method.sigma), time.perf_counter() + self.seconds)
        timed = replace(self.method, sigma=sigma, heldout=0.0)
        clock = StopWhen(callback, lambda _: sigma.is_over)
        return timed.run(y, system, callback=clock, **given)


@dataclass(frozen=True)
class DiscrepancyStop(Wrapper):
    """Stop when the residual falls below a fraction of the noise, and return the first cube.

        ‖y − Ax‖ < fraction · noise · ‖y‖

    Below the noise level a solver fits noise. Without a first cube the last one is returned.

    Args:
        method: a `Solver`, or one with a `TimeLimit`; it says what the noise is.
        fraction: of the noise, >= 0; 0 never stops.

    Source: Morozov, "On the solution of functional equations by the method of regularization",
    1966.

    Raises:
        ValueError: a negative fraction.
    """

    method: Solver | TimeLimit
    fraction: float

    def __post_init__(self) -> None:
        """Check the fraction."""
        super().__post_init__()
        not_negative("discrepancy_stop", self.fraction)

    @property
    def shares_batch(self) -> bool:
        """One residual stops all samples."""
        return self.method.shares_batch and (self.fraction == 0 or self.method.noise == 0)

    def run(
        self,
        y: Tensor,
        system: LinearSystem,
        *,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        statistics: Statistics | None = None,
        **given: Any,
    ) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        noise = relative_noise(seen(y, system), system, self.method.noise, statistics)
        least = self.fraction * float(noise.max())
        monitor = StopWhen(callback, lambda iteration: iteration.residual < least)
        found = self.method.run(y, system, x0=x0, callback=monitor, statistics=statistics, **given)
        fits_noise = bool(found.history) and found.history[-1].residual < least
        return replace(found, x=x0) if fits_noise and x0 is not None else found
