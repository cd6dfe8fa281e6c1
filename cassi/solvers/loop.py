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
from cassi.solvers.linear_system import (
    LinearSystem,
    Rho,
    begin_system,
    check_order,
    zero_bad_pixels,
)
from cassi.solvers.objective import evaluate_objective
from cassi.solvers.schedules import AnySchedule
from cassi.solvers.statistics import Statistics

FirstCube = Tensor | Callable[[], Tensor | None] | None

# On a GPU the host reads the norms once in this many iterations, because it waits for each read. If
# a run diverges, its result is the cube of the last read at which all norms so far were finite.
READ_INTERVAL = 32


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
        algorithm: an `Algorithm`, with `init` and `step`.
        y: measurement `(B, K, H', W')`.
        system: the camera A.
        prior: the regulariser. A prior with a method `begin` starts with an empty memory.
        iterations: at most this many.
        sigma: schedule of the prior's strength.
        rho: schedule of the ρ of the data step; None takes the ρ of the algorithm.
        x0: first cube `(B, C, H, W)`, or a function that makes it, so that the caller keeps no
            copy in memory; None takes the minimum-norm solution `pinv(y)`.
        tol: stop when ‖x − x_previous‖ <= tol·‖x‖; 0 never stops early.
        callback: called after every iteration; returning True stops the loop.
        objective: n > 0 records the objective (see `evaluate_objective`) in the first, every n-th
            and the last iteration; 0 never records it.
        statistics: estimates from the whole measurement, if y is a part of it.
        began: `time.perf_counter()` at the start of the run, for the seconds of the history; None
            takes the present time.

    Returns:
        The last cube, and statistics of every iteration. If the run diverges: see `READ_INTERVAL`.

    Raises:
        TypeError: measurement and camera are in the wrong order.
    """
    check_order("iterate", y, system)
    start = time.perf_counter() if began is None else began
    y = zero_bad_pixels(y, system)
    run = _Run(
        algorithm=algorithm,
        y=y,
        system=system,
        run_system=begin_system(system),
        prior=begin(prior, system),
        iterations=iterations,
        sigma=sigma,
        rho=(lambda *_: algorithm.rho) if rho is None else rho,
        callback=callback,
        objective=objective,
        norms=_Norms(norm(y).item()),
        start=start,
    )
    return run.solve(x0, statistics, tol)


class _Norms:
    """A queue of the norms of all iterations, which stay on the device until a norm is needed.

    One read takes all norms of the queue, because the host waits for the device at each read.

    Attributes:
        numbers: a row for each iteration: ‖y − Ax‖/‖y‖, ‖x − x_previous‖/‖x‖, and the largest σ of
            the batch if σ is a tensor.
        is_finite: whether the cube of each iteration is finite.
    """

    def __init__(self, y_norm: float) -> None:
        self.y_norm = y_norm
        self.queue: list[list[Length]] = []
        self.numbers: list[list[float]] = []
        self.is_finite: list[bool] = []

    def put(self, misfit: Length, x_norm: Length, change: Length, sigma: float | Tensor) -> None:
        """Append ‖y − Ax‖, ‖x‖ and ‖x − x_previous‖ of an iteration, and σ if it is a tensor."""
        strength = [Length(sigma.amax())] if isinstance(sigma, Tensor) else []
        self.queue.append([misfit, x_norm, change, *strength])

    def read_number(self, iteration: int, column: int) -> float:
        """Return a column of the `numbers` of an iteration; iterations count from 0 here."""
        if iteration >= len(self.numbers):
            self.read()
        return self.numbers[iteration][column]

    def read(self) -> None:
        """Read all norms of the queue."""
        values = iter(Length.read(list(itertools.chain.from_iterable(self.queue))))
        for lengths in self.queue:
            misfit, x_norm, change, *strength = itertools.islice(values, len(lengths))
            ratios = _divide(misfit, self.y_norm), _divide(change, x_norm)
            self.numbers.append([*ratios, *strength])
            self.is_finite.append(math.isfinite(misfit) and math.isfinite(x_norm))
        self.queue = []

    def are_finite(self, first: int) -> bool:
        """Tell whether the cubes are finite, from the iteration `first` on."""
        self.read()
        return all(self.is_finite[first:])

    def make_iteration(
        self, index: int, seconds: float, sigma: float | Tensor, objective: float | None
    ) -> Iteration:
        """Return an iteration whose numbers are read from the device on first access."""
        columns: list[Any] = [partial(self.read_number, index - 1, column) for column in range(3)]
        strength = columns[2] if isinstance(sigma, Tensor) else sigma
        return _LazyIteration(index, columns[0], columns[1], seconds, strength, objective)


class _LazyField:
    """A field that holds a number, or a function that is called when the field is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, record: Iteration, value: float | Callable[[], float]) -> None:
        vars(record)[self.name] = value

    def __get__(self, record: Iteration, owner: type) -> float:
        value = vars(record)[self.name]
        return value() if callable(value) else value


class _LazyIteration(Iteration):
    """An iteration whose norms may still be in the queue of `_Norms`."""

    residual: Any = _LazyField()
    change: Any = _LazyField()
    sigma: Any = _LazyField()


@dataclass
class _Run:
    """One run: the arguments of `iterate`, the camera and prior of the run, and its clock."""

    algorithm: Algorithm
    y: Tensor
    system: LinearSystem
    run_system: LinearSystem
    """The camera of the run, which may start a solve from the result of the last solve."""
    prior: Prior
    iterations: int
    sigma: AnySchedule
    rho: AnySchedule
    callback: Callback | None
    objective: int
    norms: _Norms
    start: float
    """`time.perf_counter()` at the start, plus the seconds of callbacks and objectives."""

    def solve(self, x0: FirstCube, statistics: Statistics | None, tol: float) -> Solution:
        """Run the iterations; see `iterate` for the arguments and the result."""
        y, run_system, count, norms = self.y, self.run_system, self.iterations, self.norms
        state = self.algorithm.init(y, run_system, _make_first_cube(x0, y, run_system), statistics)
        interval = 1 if y.device.type == "cpu" else READ_INTERVAL
        # The last state whose norms were read and finite, and the number of its iteration.
        finite_state, n_checked = state, 0
        history, reason = list[Iteration](), "iterations"
        for index in range(count):
            parameters = self.sigma(index, count), self.rho(index, count)
            next_state = self.algorithm.step(state, y, run_system, self.prior, *parameters)
            misfit = next_state.misfit(y, self.system)
            x_norm, change = next_state.norm(), next_state.distance(state)
            seconds = time.perf_counter() - self.start
            norms.put(misfit, x_norm, change, parameters[0])
            if index + 1 in (n_checked + interval, count):
                if not norms.are_finite(n_checked):
                    break
                finite_state, n_checked = next_state, index + 1
            state = next_state
            if self._report(history, state, seconds, *parameters):
                reason = "callback"
                break
            if tol > 0 and history[-1].change <= tol:
                reason = "tolerance"
                break
        if not norms.are_finite(n_checked):
            state, history, reason = finite_state, history[:n_checked], "diverged"
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
        pause_start, index, objective = time.perf_counter(), len(history) + 1, None
        if self.objective and is_sampled(index, self.objective, self.iterations):
            objective = evaluate_objective(
                self.algorithm, self.prior, state, self.y, self.system, sigma, rho
            )
        record = self.norms.make_iteration(index, seconds, sigma, objective)
        history.append(record)
        x = state.x if self.callback is not None and wants_cube(self.callback, record) else None
        stop = self.callback is not None and bool(self.callback(record, x))
        self.start += time.perf_counter() - pause_start
        return stop


def _make_first_cube(x0: FirstCube, y: Tensor, system: LinearSystem) -> Tensor:
    """Return the first cube; see `x0` of `iterate`."""
    x = x0() if callable(x0) else x0
    return system.pinv(y) if x is None else x


def _divide(numerator: float, denominator: float) -> float:
    """Return a ratio in which 0/0 is 0: a dark measurement is fitted exactly by a dark cube."""
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator
