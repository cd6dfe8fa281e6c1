"""The one loop that runs every algorithm."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from cassi.solvers.base import (
    Algorithm,
    Callback,
    Iteration,
    Length,
    Prior,
    Solution,
    begin,
    is_sampled,
    norm,
    wants_cube,
)
from cassi.solvers.linear_system import LinearSystem, begin_system, check_order, seen
from cassi.solvers.objective import evaluate_objective
from cassi.solvers.schedules import Schedule
from cassi.solvers.statistics import Statistics

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
    sigma: Schedule,
    rho: Schedule | None = None,
    x0: Tensor | Callable[[], Tensor | None] | None = None,
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
    light = norm(y).item()
    running = begin_system(system)
    prior = begin(prior, running)
    state = algorithm.init(y, running, _first_cube(x0, y, running), statistics)
    every = 1 if y.device.type == "cpu" else READ_EVERY
    finite, unread = state, list[_Unread]()  # the last state that is known to be finite, and since
    history: list[Iteration] = []
    reason = "iterations"
    for index in range(iterations):
        strength = sigma(index, iterations)
        damping = algorithm.rho if rho is None else rho(index, iterations)
        following = algorithm.step(state, y, running, prior, strength, damping)
        norms = light, following.misfit(y, system), following.norm(), following.distance(state)
        seconds = time.perf_counter() - start
        record = _Unread(index + 1, seconds=seconds, sigma=strength, norms=norms)
        unread.append(record)
        if len(unread) == every or index + 1 == iterations:
            _look(unread)
            if not all(each.is_finite for each in unread):
                reason = "diverged"
                break
            finite, unread = following, []
        pause = time.perf_counter()
        if objective and is_sampled(index + 1, objective, iterations):
            value = evaluate_objective(algorithm, prior, following, y, system, strength, damping)
            record.note("objective", value)
        state = following
        history.append(record)
        x = state.x if callback is not None and wants_cube(callback, record) else None
        stop = callback is not None and callback(record, x)
        start += time.perf_counter() - pause
        if stop:
            reason = "callback"
            break
        if tol > 0 and record.change <= tol:
            reason = "tolerance"
            break
    _look(unread)
    if not all(each.is_finite for each in unread):
        state, history = finite, history[: unread[0].index - 1]
        reason = "diverged"
    return Solution(state.x, history, reason)


class _Unread(Iteration):
    """An iteration whose numbers stay on the device until somebody asks for them.

    Args:
        index, residual, change, seconds, sigma, objective: see `Iteration`; a tensor σ is one of
            each sample, and tells its largest.
        norms: of y, y − Ax, x, and x − x_previous, in place of `residual` and `change`.
    """

    def __init__(
        self,
        index: int,
        residual: float = math.nan,
        change: float = math.nan,
        seconds: float = 0.0,
        sigma: float | Tensor = 0.0,
        objective: float | None = None,
        norms: tuple[Any, ...] = (),
    ) -> None:
        self.note("index", index)
        self.note("seconds", seconds)
        if isinstance(sigma, Tensor):
            norms = (*norms, Length(sigma.amax()))
        else:
            self.note("sigma", sigma)
        self.note("objective", objective)
        self.note("_norms", norms)
        if not norms:
            self.note("residual", residual)
            self.note("change", change)

    def note(self, name: str, value: Any) -> None:
        """Set a field, of those that are not known at first."""
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Read the numbers."""
        if name not in ("residual", "change", "sigma", "is_finite"):
            raise AttributeError(name)
        _look([self])
        return vars(self)[name]


def _look(records: Sequence[_Unread]) -> None:
    """Read the numbers of iterations; the host waits once."""
    read = iter(Length.read([value for record in records for value in record._norms[1:]]))
    for record in records:
        light, *lengths = record._norms
        misfit, size, distance, *strength = itertools.islice(read, len(lengths))
        if strength:
            record.note("sigma", strength[0])
        record.note("residual", _ratio(misfit, light))
        record.note("change", _ratio(distance, size))
        record.note("is_finite", math.isfinite(misfit) and math.isfinite(size))


def _first_cube(
    x0: Tensor | Callable[[], Tensor | None] | None, y: Tensor, system: LinearSystem
) -> Tensor:
    x = x0() if callable(x0) else x0
    return system.pinv(y) if x is None else x


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator
