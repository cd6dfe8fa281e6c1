"""The one loop that runs every algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cassi.solvers.base import Algorithm, LinearSystem, Prior, begin, begin_system
from cassi.solvers.objective import evaluate_objective
from cassi.solvers.schedules import Schedule


@dataclass(frozen=True)
class Iteration:
    """Statistics of one iteration."""

    index: int
    """Counts from 1."""
    residual: float
    """‖y − Ax‖/‖y‖"""
    change: float
    """‖x − x_previous‖/‖x‖"""
    seconds: float
    """Since the start, without the time spent in callbacks and on the objective."""
    sigma: float
    objective: float | None = None
    """What algorithm and prior minimise, where it was asked for and there is such a thing."""


Callback = Callable[[Iteration, Tensor], bool | None]
"""Called with the statistics and the cube after every iteration; returning True stops the loop."""


@dataclass(frozen=True)
class Solution:
    """A reconstructed cube and how the loop came to it."""

    x: Tensor
    history: list[Iteration]
    reason: str
    """Why the loop ended: `iterations`, `tolerance`, `callback` or `diverged`."""


def iterate(
    algorithm: Algorithm,
    system: LinearSystem,
    y: Tensor,
    prior: Prior,
    *,
    iterations: int,
    sigma: Schedule,
    rho: Schedule | None = None,
    x0: Tensor | Callable[[], Tensor | None] | None = None,
    tol: float = 0.0,
    callback: Callback | None = None,
    objective: bool = False,
) -> Solution:
    """Run an algorithm.

    Args:
        algorithm: gives `init` and `step`.
        system: the camera A.
        y: measurement `(B, K, H, W')`.
        prior: the regulariser; one with a `begin` starts with an empty memory.
        iterations: at most this many.
        sigma: the prior's strength at each iteration.
        rho: ρ of the data step at each iteration; the algorithm's own if None.
        x0: first cube `(B, C, H, W)`, or what makes it, so that nobody keeps it in memory.
        tol: stop when ‖x − x_previous‖ <= tol·‖x‖; 0 never stops early.
        callback: called after every iteration; returning True stops the loop.
        objective: record the objective of every iteration, see `evaluate_objective`.

    Returns:
        The last cube whose values are all finite, with the statistics of every iteration.
    """
    start = time.perf_counter()
    norm = _norm(y)
    prior, running = begin(prior), begin_system(system)
    state = algorithm.init(y, running, x0() if callable(x0) else x0)
    history: list[Iteration] = []
    reason = "iterations"
    for index in range(iterations):
        strength = sigma(index, iterations)
        damping = algorithm.rho if rho is None else rho(index, iterations)
        following = algorithm.step(state, y, running, prior, strength, damping)
        residual = y - system(following.x) if following.residual is None else following.residual
        misfit, size = _norm(residual), _norm(following.x)
        if not (math.isfinite(misfit) and math.isfinite(size)):
            reason = "diverged"
            break
        misfit, change = _ratio(misfit, norm), _ratio(_norm(following.x - state.x), size)
        pause, value = time.perf_counter(), None
        if objective:
            value = evaluate_objective(algorithm, prior, following, y, system, strength, damping)
        statistics = Iteration(index + 1, misfit, change, pause - start, strength, value)
        state = following
        history.append(statistics)
        stop = callback is not None and callback(statistics, state.x)
        start += time.perf_counter() - pause
        if stop:
            reason = "callback"
            break
        if statistics.change <= tol and tol > 0:
            reason = "tolerance"
            break
    return Solution(state.x, history, reason)


def _norm(value: Tensor) -> float:
    return value.float().norm().item() if value.dtype.itemsize < 4 else value.norm().item()


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator
