"""Parameters that change from iteration to iteration."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from cassi.checks import not_negative, whole_number

Schedule = Callable[[int, int], float]
"""(iteration, iterations) → value; the iteration counts from 0."""
AnySchedule = Callable[[int, int], float | Tensor]
"""A `Schedule`, or one whose values are tensors `(B,)`: a number per sample."""


@runtime_checkable
class NoiseDependent(Protocol):
    """A schedule that depends on the noise, such as `cassi.solvers.AboveNoise`."""

    def for_noise(self, noise: Tensor, y: Tensor, rho: float | Tensor) -> AnySchedule:
        """Return the schedule for a measurement y with this noise and this ρ."""


@dataclass(frozen=True)
class Constant:
    """A schedule with the same value, >= 0, at every iteration.

    Raises:
        ValueError: a negative value.
    """

    value: float

    def __post_init__(self) -> None:
        """Check the value."""
        not_negative("schedule", self.value)

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Geometric:
    """A schedule from `start` to `end` by equal factors; both > 0.

        value(i) = start·(end/start)^(i/(n−1)),   i = 0 … n − 1

    Raises:
        ValueError: `start` or `end` is not positive.

    >>> [Geometric(1.0, 0.01)(i, 3) for i in range(3)]
    [1.0, 0.1, 0.01]
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        """Check both ends."""
        if not (self.start > 0 and self.end > 0):
            raise ValueError(
                f"schedule: expected a start and an end > 0, got {self.start} and {self.end}"
            )

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        return self.start * (self.end / self.start) ** (iteration / max(1, iterations - 1))


@dataclass(frozen=True)
class Linear:
    """A schedule from `start` to `end` by equal differences; both >= 0.

        value(i) = start + (end − start)·i/(n−1),   i = 0 … n − 1

    Raises:
        ValueError: `start` or `end` is negative.

    >>> [Linear(1.0, 0.0)(i, 3) for i in range(3)]
    [1.0, 0.5, 0.0]
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        """Check both ends."""
        if not (self.start >= 0 and self.end >= 0):
            raise ValueError(
                f"schedule: expected a start and an end >= 0, got {self.start} and {self.end}"
            )

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        return self.start + (self.end - self.start) * (iteration / max(1, iterations - 1))


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number >= 0 as a constant schedule.

    Raises:
        TypeError: the value is neither a number nor a schedule.
        ValueError: the number is negative.
    """
    if not callable(value) and not isinstance(value, int | float):
        raise TypeError(f"sigma, rho: expected a number or a schedule, got {value!r}")
    return value if callable(value) else Constant(float(value))


@dataclass(frozen=True)
class Phases:
    """One schedule after another, each for its own number of iterations.

    After all counts the last value stays. The counts do not depend on the length of the run.

    Args:
        schedules: a list, or a mapping whose names serve configs only.
        counts: number of iterations of each schedule, >= 1.

    Raises:
        ValueError: no schedule, unequal numbers of schedules and counts, or a count below 1.

    >>> from cassi.solvers import Geometric
    >>> two = Phases([Constant(2.0), Geometric(1.0, 0.01)], [2, 3])
    >>> [two(i, 6) for i in range(6)]
    [2.0, 2.0, 1.0, 0.1, 0.01, 0.01]
    """

    schedules: Sequence[Schedule] | Mapping[str, Schedule]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        """Check that every schedule has a count."""
        if not self.schedules or len(self.schedules) != len(self.counts):
            raise ValueError(
                "schedule: expected as many counts as parts and at least one, got "
                f"{len(self.schedules)} parts and {len(self.counts)} counts"
            )
        for count in self.counts:
            whole_number("schedule counts", count, 1)

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        for schedule, count in zip(self._list_parts(), self.counts, strict=True):
            if iteration < count:
                return schedule(iteration, count)
            iteration -= count
        return schedule(count - 1, count)

    def _list_parts(self) -> list[Schedule]:
        if isinstance(self.schedules, Mapping):
            return list(self.schedules.values())
        return list(self.schedules)


@dataclass(frozen=True)
class Steps:
    """A schedule of values >= 0, each for its own number of iterations; the last value stays.

    Raises:
        ValueError: no value, unequal numbers of values and counts, a negative value, or a count
            below 1.

    >>> [Steps([0.5, 0.2, 0.1], [2, 1, 1])(i, 6) for i in range(6)]
    [0.5, 0.5, 0.2, 0.1, 0.1, 0.1]
    """

    values: Sequence[float]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        """Check the values and the counts."""
        self._make_phases()

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        return self._make_phases()(iteration, iterations)

    def _make_phases(self) -> Phases:
        return Phases([Constant(value) for value in self.values], self.counts)


@dataclass
class Timed:
    """A schedule that reaches its last value at a given time. An object serves one run.

        value = schedule(i, n),   i = max(i_last + 1, ⌊n·t/T⌋), at most n − 1

    i_last is the i of the last call. t is the time since the first call, T the time from the first
    call to the end. A machine that is too slow for all n iterations goes through the same range of
    values in fewer iterations.

    Args:
        schedule: the schedule of a run of n iterations.
        ends: `time.perf_counter()` at which the run ends.
    """

    schedule: Schedule
    ends: float
    _start: float | None = field(default=None, init=False)
    _index: int = field(default=-1, init=False)
    _last_index: int = field(default=0, init=False)

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        seconds = time.perf_counter()
        self._start = seconds if self._start is None else self._start
        # At the first call the end may have passed, so that the remaining time is 0 or negative.
        fraction = (seconds - self._start) / max(self.ends - self._start, 1e-9)
        self._last_index = iterations - 1
        index = max(self._index + 1, int(min(fraction, 1.0) * iterations))
        self._index = min(self._last_index, index)
        return self.schedule(self._index, iterations)

    @property
    def is_over(self) -> bool:
        """Whether the schedule has returned its last value, or the time is over."""
        return self._index >= self._last_index or time.perf_counter() >= self.ends
