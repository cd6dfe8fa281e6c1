"""Schedules that change their course at given iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cassi.solvers.schedules import Constant, Schedule


@dataclass(frozen=True)
class Phases:
    """One schedule after another, each over its own number of iterations; the last one stays.

    The counts are iterations, whatever the length of the run; after the last count the last value
    of the last schedule is kept. The names of a mapping do not matter, they are for configs.

    >>> from cassi.solvers import Geometric
    >>> two = Phases([Constant(2.0), Geometric(1.0, 0.01)], [2, 3])
    >>> [two(i, 6) for i in range(6)]
    [2.0, 2.0, 1.0, 0.1, 0.01, 0.01]
    """

    schedules: Sequence[Schedule] | Mapping[str, Schedule]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        """Check that there is a count for every schedule."""
        if not self.schedules or len(self.schedules) != len(self.counts):
            raise ValueError(
                "schedule: expected as many counts as parts and at least one, got "
                f"{len(self.schedules)} parts and {len(self.counts)} counts"
            )
        if any(not isinstance(count, int) or count < 1 for count in self.counts):
            raise ValueError(f"schedule: expected counts of at least 1, got {list(self.counts)}")

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        for schedule, count in zip(self._parts(), self.counts, strict=True):
            if iteration < count:
                return schedule(iteration, count)
            iteration -= count
        return schedule(count - 1, count)

    def _parts(self) -> list[Schedule]:
        if isinstance(self.schedules, Mapping):
            return list(self.schedules.values())
        return list(self.schedules)


@dataclass(frozen=True)
class Steps:
    """Each of some values, >= 0, for its own number of iterations; the last one stays.

    >>> [Steps([0.5, 0.2, 0.1], [2, 1, 1])(i, 6) for i in range(6)]
    [0.5, 0.5, 0.2, 0.1, 0.1, 0.1]
    """

    values: Sequence[float]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        """Check the values and the counts."""
        self._phases()

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        return self._phases()(iteration, iterations)

    def _phases(self) -> Phases:
        return Phases([Constant(value) for value in self.values], self.counts)
