"""Parameters that change from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int, int], float]
"""(iteration, iterations) → value; the iteration counts from 0."""


@dataclass(frozen=True)
class Constant:
    """The same value, >= 0, at every iteration."""

    value: float

    def __post_init__(self) -> None:
        """Check the value."""
        if not self.value >= 0:
            raise ValueError(f"schedule: expected a value >= 0, got {self.value}")

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Geometric:
    """From `start` to `end` by equal factors: start·(end/start)^(i/(n-1)); both > 0.

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
    """From `start` to `end` by equal differences: start + (end − start)·i/(n-1); both >= 0.

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
    """Return a schedule, constant if a number >= 0 is given."""
    if not callable(value) and not isinstance(value, int | float):
        raise TypeError(f"sigma, rho: expected a number or a schedule, got {value!r}")
    return value if callable(value) else Constant(float(value))
