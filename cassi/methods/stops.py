"""A time limit for solvers."""

import time
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import ReconstructorWrapper
from cassi.solvers import LinearSystem, Solution, Solver, Timed
from cassi.solvers.base import CallbackWrapper, Options
from cassi.solvers.schedules import as_schedule


@dataclass(frozen=True)
class TimeLimit(ReconstructorWrapper):
    """Lower σ in step with the clock, and stop when the time is over; see `Timed`.

    Args:
        method: a `Solver`.
        seconds: time from the start of the run to its end, > 0.

    Raises:
        TypeError: the method has no `run`.
        ValueError: the time is not above 0.
    """

    method: Solver
    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not not_negative("time_limit", self.seconds):
            raise ValueError("time_limit: expected seconds above 0 or null, got 0")

    @property
    def noise(self) -> float | Literal["auto"]:
        """The `noise` of the solver."""
        return self.method.noise

    @property
    def shares_batch(self) -> bool:
        """False: the clock stops all samples together."""
        return False

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        sigma = Timed(as_schedule(self.method.sigma), time.perf_counter() + self.seconds)
        # A `Timed` schedule serves one run only. Early stopping needs further runs, so it is
        # switched off.
        limited_solver = replace(self.method, sigma=sigma, heldout=0.0)
        callback = CallbackWrapper(options.get("callback"), is_over=lambda: sigma.is_over)
        options["callback"] = callback
        return limited_solver.run(y, system, **options)
