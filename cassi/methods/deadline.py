"""Choice of the best of several methods whose measured time keeps a deadline."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from cassi.checks import is_number
from cassi.solvers import LinearSystem, Reconstructor

RUNS = 5
"""Timed runs of each method."""


@dataclass(frozen=True)
class Choice:
    """The method that `choose_within` has chosen; a function `(y, system) -> x`.

    Attributes:
        name: name of the method.
        method: the reconstructor.
        seconds: median of its timed runs.
        expected: the longest time that is expected of a later run, seconds.
        deadline: seconds that a run may take.
        rejections: for each better method, its name, and its expected time or why it does not fit.
    """

    name: str
    method: Reconstructor
    seconds: float
    expected: float
    deadline: float
    rejections: tuple[str, ...] = ()

    @property
    def is_kept(self) -> bool:
        """Whether the method is expected to keep the deadline."""
        return self.expected <= self.deadline

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H', W')` → `(B, C, H, W)`."""
        return self.method.run(y, system).checked().x

    def __str__(self) -> str:
        """Describe the choice in one line."""
        times = f"{format_seconds(self.seconds)}, expected at most {format_seconds(self.expected)}"
        if not self.is_kept:
            return (
                f"the fastest method, {self.name}, takes {times}; this misses the deadline of "
                f"{format_seconds(self.deadline)}"
            )
        return f"{self.name} takes {times}, of {format_seconds(self.deadline)}"


def choose_within(
    deadline: float,
    candidates: Mapping[str, Callable[[], Reconstructor]],
    run: Callable[[Reconstructor], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Return the first of several methods that keeps a deadline, or the fastest one if none does.

    A method runs once untimed, because the first run loads weights and chooses kernels, and then
    `RUNS` times. Later runs may be slower than the slowest of them. So the longest expected time
    lies as far above the slowest run as this lies above the median:

        expected = slowest + (slowest − median)

    A method that misses the deadline in one run is not run again.

    Args:
        deadline: seconds that a run may take.
        candidates: functions that make the methods, by name; the best method comes first.
        run: runs a method once, and waits for its result.
        clock: returns the present time in seconds.

    Raises:
        TypeError, ValueError: no method fits the camera; the error is that of the last one.
    """
    fastest: Choice | None = None
    rejections: list[str] = []
    for name, make in candidates.items():
        try:
            method = make()
            run(method)
        except (TypeError, ValueError) as error:
            last_error = error
            rejections.append(f"{name}: {error}")
            continue
        seconds = _time_runs(method, run, deadline, clock)
        middle, slowest = median(seconds), max(seconds)
        choice = Choice(name, method, middle, 2 * slowest - middle, deadline, tuple(rejections))
        if choice.is_kept:
            return choice
        if fastest is None or choice.expected < fastest.expected:
            fastest = choice
        rejections.append(f"{name}, {format_seconds(choice.expected)}")
    if fastest is None:
        raise last_error
    return fastest


def _time_runs(
    method: Reconstructor,
    run: Callable[[Reconstructor], object],
    deadline: float,
    clock: Callable[[], float],
) -> list[float]:
    """Return the seconds of up to `RUNS` runs of a method, the last of which may miss it."""
    seconds: list[float] = []
    while len(seconds) < RUNS and max(seconds, default=0.0) <= deadline:
        start = clock()
        run(method)
        seconds.append(clock() - start)
    return seconds


def format_seconds(seconds: float) -> str:
    """Return a time in milliseconds below one second, else in seconds.

    >>> format_seconds(0.0177), format_seconds(2.25)
    ('17.7 ms', '2.25 s')
    """
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def parse_deadline(value: object) -> float:
    """Return the seconds of a deadline: a number of seconds, or a text such as 20ms or 0.5s.

    Raises:
        ValueError: the value is no time above 0.

    >>> parse_deadline("20ms"), parse_deadline(0.5)
    (0.02, 0.5)
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s)\s*", str(value))
    if match is not None:
        seconds = float(match[1]) / (1e3 if match[2] == "ms" else 1)
    else:
        seconds = float(value) if is_number(value) else 0.0
    if not seconds > 0:
        raise ValueError(f"deadline: expected a time such as 20ms or 0.5s, got {value!r}")
    return seconds
