"""The one loop that runs every algorithm."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from cassi.prior_protocols import Prior
from cassi.solvers.base import (
    Algorithm,
    Callback,
    Iteration,
    Length,
    Solution,
    State,
    begin,
    is_sampled,
    norm,
    wants_cube,
)
from cassi.solvers.components import Components
from cassi.solvers.linear_system import LinearSystem, Rho, begin_system, check_order, seen
from cassi.solvers.objective import evaluate_objective
from cassi.solvers.schedules import AnySchedule
from cassi.solvers.statistics import Statistics

FirstCube = Tensor | Callable[[], Tensor | None] | None
READ_EVERY = 32
"""Iterations from one look at the norms to the next on a device that the host would wait for. What
diverges there ends with the cube of the last look."""


def iterate(
    algorithm: Algorithm,
    y: Tensor,
    system: LinearSystem,
    prior: Prior,
    *,
    iterations: int,
    sigma: AnySchedule,
    rho: AnySchedule | None = None,
    x0: FirstCube = None,
    tol: float = 0.0,
    callback: Callback | None = None,
    objective: int = 0,
    statistics: Statistics | None = None,
    began: float | None = None,
) -> Solution:
    """Run an algorithm until its iterations are done, a tolerance is met, or a callback stops it.

    Args:
        algorithm: has `init` and `step`.
        y: measurement `(B, K, H', W')`.
        system: the camera A.
        prior: the regulariser. One with a method `begin` starts with an empty memory.
        iterations: at most this many.
        sigma: schedule of the prior's strength.
        rho: schedule of ρ of the data step; the algorithm's own ρ if None.
        x0: first cube `(B, C, H, W)`, or a function that makes it, so that it is not kept in
            memory; the minimum-norm solution `pinv(y)` if None.
        tol: stop when ‖x − x_previous‖ <= tol·‖x‖; 0 never stops early.
        callback: called after every iteration; returning True stops the loop.
        objective: record the objective of the first iteration, of every so many and of the last,
            see `evaluate_objective`; 0 is of none.
        statistics: of the whole measurement, where y is a part of it.
        began: `time.perf_counter()` from which seconds are counted; now if None.

    Returns:
        The last cube whose values are all finite, and statistics of every iteration.

    Raises:
        TypeError: measurement and camera are in the wrong order.
    """
    check_order("iterate", y, system)
    start = time.perf_counter() if began is None else began
    y = seen(y, system)
    norms = _Norms(norm(y).item())
    running, prior = begin_system(system), begin(prior, system)
    rho = (lambda *_: algorithm.rho) if rho is None else rho
    parts = algorithm, y, system, running, prior, iterations, sigma, rho
    return _Run(*parts, callback, objective, norms, start).until_the_end(x0, statistics, tol)


class _Norms:
    """A queue of the norms of all iterations. They stay on the device until one is asked for.

    Then all that wait are read, in turn. `numbers` has of each iteration residual, change and the
    largest σ of a tensor of them; `finite` whether its cube is.
    """

    def __init__(self, light: float) -> None:
        self.light = light
        self.waiting: list[list[Length]] = []
        self.numbers: list[list[float]] = []
        self.finite: list[bool] = []

    def put(self, misfit: Length, size: Length, distance: Length, sigma: float | Tensor) -> None:
        """Append ‖y − Ax‖, ‖x‖ and ‖x − x_previous‖ of an iteration, and σ if it is a tensor."""
        strength = [Length(sigma.amax())] if isinstance(sigma, Tensor) else []
        self.waiting.append([misfit, size, distance, *strength])

    def number(self, place: int, which: int) -> float:
        """Return a number of an iteration, which counts from 0."""
        if place >= len(self.numbers):
            self.read()
        return self.numbers[place][which]

    def read(self) -> None:
        """Read what waits; the host waits once."""
        values = iter(Length.read(list(itertools.chain.from_iterable(self.waiting))))
        for lengths in self.waiting:
            misfit, size, distance, *strength = itertools.islice(values, len(lengths))
            residual, change = _ratio(misfit, self.light), _ratio(distance, size)
            self.numbers.append([residual, change, *strength])
            self.finite.append(math.isfinite(misfit) and math.isfinite(size))
        self.waiting = []

    def are_finite(self, first: int) -> bool:
        """Tell whether the cubes of all iterations from one on are finite."""
        self.read()
        return all(self.finite[first:])

    def iteration(
        self, index: int, seconds: float, sigma: float | Tensor, objective: float | None
    ) -> Iteration:
        """Return an iteration whose numbers are read when they are asked for."""
        late: list[Any] = [partial(self.number, index - 1, which) for which in range(3)]
        strength = late[2] if isinstance(sigma, Tensor) else sigma
        return _Unread(index, late[0], late[1], seconds, strength, objective)


class _Late:
    """A field that may be given as a function, which is called when the field is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, record: Iteration, value: float | Callable[[], float]) -> None:
        vars(record)[self.name] = value

    def __get__(self, record: Iteration, owner: type) -> float:
        value = vars(record)[self.name]
        return value() if callable(value) else value


class _Unread(Iteration):
    """An iteration whose norms wait in a queue."""

    residual: Any = _Late()
    change: Any = _Late()
    sigma: Any = _Late()


@dataclass
class _Run:
    """What the iterations of a run have in common."""

    algorithm: Algorithm
    y: Tensor
    system: LinearSystem
    running: LinearSystem
    prior: Prior
    iterations: int
    sigma: AnySchedule
    rho: AnySchedule
    callback: Callback | None
    objective: int
    norms: _Norms
    start: float

    def until_the_end(self, x0: FirstCube, statistics: Statistics | None, tol: float) -> Solution:
        """Iterate; arguments and result are those of `iterate`."""
        y, running, count, norms = self.y, self.running, self.iterations, self.norms
        state = self.algorithm.init(y, running, _first_cube(x0, y, running), statistics)
        every = 1 if y.device.type == "cpu" else READ_EVERY
        finite, checked = state, 0  # the last state that is known to be finite, and its iteration
        history, reason = list[Iteration](), "iterations"
        for index in range(count):
            parameters = self.sigma(index, count), self.rho(index, count)
            following = self.algorithm.step(state, y, running, self.prior, *parameters)
            lengths = following.misfit(y, self.system), following.norm(), following.distance(state)
            seconds = time.perf_counter() - self.start
            norms.put(*lengths, parameters[0])
            if index + 1 in (checked + every, count):
                if not norms.are_finite(checked):
                    break
                finite, checked = following, index + 1
            state = following
            if self._report(history, state, seconds, *parameters):
                reason = "callback"
                break
            if tol > 0 and history[-1].change <= tol:
                reason = "tolerance"
                break
        if not norms.are_finite(checked):
            state, history, reason = finite, history[:checked], "diverged"
        return Solution(state.x, history, reason)

    def _report(
        self,
        history: list[Iteration],
        state: State | Components,
        seconds: float,
        sigma: float | Tensor,
        rho: Rho,
    ) -> bool:
        """Append an iteration to the history; return whether the callback ends the run."""
        pause, index, objective = time.perf_counter(), len(history) + 1, None
        if self.objective and is_sampled(index, self.objective, self.iterations):
            parts = self.algorithm, self.prior, state, self.y, self.system, sigma, rho
            objective = evaluate_objective(*parts)
        record = self.norms.iteration(index, seconds, sigma, objective)
        history.append(record)
        x = state.x if self.callback is not None and wants_cube(self.callback, record) else None
        stop = self.callback is not None and bool(self.callback(record, x))
        self.start += time.perf_counter() - pause
        return stop


def _first_cube(x0: FirstCube, y: Tensor, system: LinearSystem) -> Tensor:
    x = x0() if callable(x0) else x0
    return system.pinv(y) if x is None else x


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator
