"""The one loop that runs every algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torch import Tensor

from cassi.solvers.base import (
    Algorithm,
    Callback,
    Iteration,
    Prior,
    Solution,
    begin,
    norm,
    wants_cube,
)
from cassi.solvers.linear_system import LinearSystem, begin_system, check_order
from cassi.solvers.objective import evaluate_objective
from cassi.solvers.schedules import Schedule
from cassi.solvers.statistics import Statistics


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
    objective: bool = False,
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
        objective: record the objective of every iteration, see `evaluate_objective`.
        statistics: of the whole measurement, where y is a part of it.
        began: `time.perf_counter()` from which seconds are counted; now if None.

    Returns:
        The last cube whose values are all finite, and statistics of every iteration.

    Raises:
        TypeError: measurement and camera are in the wrong order.
    """
    check_order("iterate", y, system)
    start = time.perf_counter() if began is None else began
    light = norm(y).item()
    prior, running = begin(prior), begin_system(system)
    state = algorithm.init(y, running, _first_cube(x0, y, running), statistics)
    history: list[Iteration] = []
    reason = "iterations"
    for index in range(iterations):
        strength = sigma(index, iterations)
        damping = algorithm.rho if rho is None else rho(index, iterations)
        following = algorithm.step(state, y, running, prior, strength, damping)
        residual = y - system(following.x) if following.residual is None else following.residual
        misfit, size = norm(residual).item(), following.norm().item()
        if not (math.isfinite(misfit) and math.isfinite(size)):
            reason = "diverged"
            break
        misfit, change = _ratio(misfit, light), _ratio(following.distance(state).item(), size)
        pause, value = time.perf_counter(), None
        if objective:
            value = evaluate_objective(algorithm, prior, following, y, system, strength, damping)
        record = Iteration(index + 1, misfit, change, pause - start, strength, value)
        state = following
        history.append(record)
        x = state.x if callback is not None and wants_cube(callback, record) else None
        stop = callback is not None and callback(record, x)
        start += time.perf_counter() - pause
        if stop:
            reason = "callback"
            break
        if record.change <= tol and tol > 0:
            reason = "tolerance"
            break
    return Solution(state.x, history, reason)


def _first_cube(
    x0: Tensor | Callable[[], Tensor | None] | None, y: Tensor, system: LinearSystem
) -> Tensor:
    x = x0() if callable(x0) else x0
    return system.pinv(y) if x is None else x


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator
