"""A solver that has only so much time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import StopWhen, Wrapper
from cassi.solvers import LinearSystem, Solution, Solver, Timed
from cassi.solvers.base import Options
from cassi.solvers.schedules import as_schedule


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
    def shares_batch(self) -> bool:
        """The clock stops all samples."""
        return False

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        sigma = Timed(as_schedule(self.method.sigma), time.perf_counter() + self.seconds)
        timed = replace(self.method, sigma=sigma, heldout=0.0)
        given["callback"] = StopWhen(given.get("callback"), lambda _: sigma.is_over)
        return timed.run(y, system, **given)
