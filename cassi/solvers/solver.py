"""An algorithm, a prior and their schedules bound together: a reconstructor."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from cassi.checks import not_negative, whole_number
from cassi.solvers.base import (
    Algorithm,
    Callback,
    Iteration,
    Prior,
    Reconstructor,
    Solution,
    wants_cube,
)
from cassi.solvers.gap import GAP
from cassi.solvers.linear_system import LinearSystem, check_order, damped_inverse, seen
from cassi.solvers.loop import iterate
from cassi.solvers.refine import no_closer
from cassi.solvers.schedules import Geometric, Schedule, Timed, as_schedule
from cassi.solvers.statistics import (
    UNSEEN,
    Statistics,
    check_noise,
    damped_schedule,
    relative_noise,
    signal_level,
)
from cassi.solvers.strength import Annealed, Choice, Watch, choose

ALGORITHM, SIGMA = GAP(), Geometric(0.4, 0.1)
HALO = 40
SETTLED = 20
"""Iterations at the last strength, where the annealing ends early."""
PARTNER = 0.25
"""Share of a partner's cube in the result of a pass."""


@dataclass(frozen=True)
class Pass:
    """Where a run of several passes stands.

    Attributes:
        passes: that are done.
        x: their result, `(B, C, H, W)`.
        history: of all of them.
    """

    passes: int
    x: Tensor
    history: list[Iteration]


class Checkpoint(Protocol):
    """Keeps the result of the last pass for a run that goes on."""

    def read(self) -> Pass | None:
        """Return what was kept; None where there is nothing."""
        ...

    def write(self, done: Pass) -> None:
        """Keep it, in place of what was kept before."""
        ...


@dataclass(frozen=True)
class Solver:
    """Everything about an iterative reconstruction except camera and measurement.

    Args:
        prior: `(cube, sigma) -> cube`; `cassi.priors.InTurn` has one for every pass.
        algorithm: `GAP`, `ADMM`, ….
        iterations: at most this many, of all passes together.
        sigma: strength of the prior, a number or a schedule, relative to the `signal_level`.
        rho: ρ of the data step, a number or schedule; the algorithm's own if None.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.
        noise: relative to the root mean square of y; ρ rises with it. "auto" estimates it.
        consistent: end with a data step, for data consistency; no closer than the noise.
        heldout: share of the detector pixels by which it is found how far σ may fall where "auto"
            sees noise, see `cassi.solvers.strength`; 0 lets it fall to its end.
        visible: noise, relative to the root mean square of y, below which "auto" takes it for
            texture, in the start too; where there is more, all passes have the first prior. 0: no
            such bound.
        closest: share of the noise; a run, of several passes each, whose residual falls below fits
            noise: it ends there, and its first cube stays, where it had one. 0: no such bound.
        start: reconstructs the first cube where none is given; its iterations are not counted.
        blend: share of the first cube in the result, of `start` or given as `x0`, in [0, 1). Errors
            of two methods are partly independent, and their mean has less of them; where both
            explain y, it does too. Of several passes each has its own first cube.
        passes: runs, one after another, at most `iterations`, which they share; each begins at the
            result of the one before it.
        again: strength of the prior in all passes but the first; None: `sigma`.
        partner: another method, such as a network, whose cube has a quarter of the result of every
            pass, and with it a growing share of the last.
        time_limit: seconds, > 0, after which the run is at its end: σ falls as fast as that takes.

    Raises:
        ValueError: fewer than one iteration, a negative tolerance or noise, a share out of range,
            a time limit that is not above 0.
    """

    prior: Prior
    algorithm: Algorithm = ALGORITHM
    iterations: int = 100
    sigma: float | Schedule = SIGMA
    rho: float | Schedule | None = None
    tol: float = 0.0
    noise: float | Literal["auto"] = "auto"
    consistent: bool = False
    heldout: float = 0.0
    visible: float = 0.0
    closest: float = 0.0
    start: Reconstructor | None = None
    blend: float = 0.0
    passes: int = 1
    again: float | Schedule | None = None
    partner: Reconstructor | None = None
    time_limit: float | None = None
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check the parts and the numbers."""
        if not callable(self.prior):
            raise TypeError(f"prior: expected a callable, got {self.prior!r}")
        if not (hasattr(self.algorithm, "init") and hasattr(self.algorithm, "step")):
            raise TypeError(f"algorithm: expected GAP, ADMM, …, got {self.algorithm!r}")
        whole_number("iterations", self.iterations, 1)
        whole_number("passes", self.passes, 1)
        not_negative("tol", self.tol)
        check_noise(self.noise)
        if not 0 <= self.heldout <= 0.5:
            raise ValueError(f"heldout: expected a share from 0 to 0.5, got {self.heldout}")
        not_negative("visible", self.visible)
        not_negative("closest", self.closest)
        if self.start is not None and not hasattr(self.start, "run"):
            raise TypeError(f"start: expected a reconstructor or None, got {self.start!r}")
        if self.partner is not None and not hasattr(self.partner, "run"):
            raise TypeError(f"partner: expected a reconstructor or None, got {self.partner!r}")
        if not 0 <= self.blend < 1:
            raise ValueError(f"blend: expected a share from 0 to below 1, got {self.blend}")
        if self.time_limit is not None and not not_negative("time_limit", self.time_limit):
            raise ValueError("time_limit: expected seconds above 0 or null, got 0")

    @property
    def halo(self) -> int:
        """Lines around a part of a scene that have an influence on it."""
        return max([HALO, *(each.halo for each in self._others)])

    @property
    def shares_batch(self) -> bool:
        """Whether a sample comes out the same whatever else is in its batch.

        A tolerance, a time limit, a residual and pixels held out stop all samples at the same
        iteration, and noise is visible in all of them or in none.
        """
        if self.tol > 0 or self.time_limit is not None or (self.closest > 0 and self.noise != 0):
            return False
        alone = (self.heldout > 0 or self.visible > 0) and self.noise == "auto"
        return not alone and all(each.shares_batch for each in self._others)

    @property
    def _others(self) -> list[Reconstructor]:
        return [each for each in (self.start, self.partner) if each is not None]

    @torch.no_grad()
    def align(self, y: Tensor, system: LinearSystem) -> Any:
        """Return where a network that it begins with, or goes beside, finds the mask; or None."""
        found = (each.align(y, system) for each in self._others if hasattr(each, "align"))
        return next((each for each in found if each is not None), None)

    @torch.no_grad()
    def run(
        self,
        y: Tensor,
        system: LinearSystem,
        *,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        objective: bool = False,
        statistics: Statistics | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Solution:
        """Reconstruct y and report how it went; the cube is in the unit in which A x = y.

        Args:
            y: measurement `(B, K, H, W')` of the camera; ValueError if it is unfit.
            system: the camera.
            x0: first cube `(B, C, H, W)`, in the units of the result.
            callback: called after every iteration with statistics and cube; True stops.
            objective: record the objective, in units of the squared signal level.
            statistics: of the whole measurement, where y is a part of one.
            checkpoint: keeps the result of every pass, and has that of an earlier run to go on
                from.
        """
        began = time.perf_counter()
        measured = seen(y, system)
        if statistics is None and (moved := self.align(measured, system)) is not None:
            system = moved.system
        noisy = self.noise != "auto" and 0 < self.visible <= self.noise
        if self.visible > 0 and self.noise == "auto":
            statistics = statistics or Statistics(lambda: [(measured, system)])
            noisy = not bool((statistics.noise < self.visible).all())
            statistics = statistics if noisy else statistics.trusted()
        if min(self.passes, self.iterations) > 1 or self.partner is not None:
            more = objective, statistics, checkpoint, not noisy
            return self._repeat(measured, system, x0, callback, *more)
        level = signal_level(measured, system, statistics)
        y, noise = measured / level, None
        damped = getattr(self.algorithm, "damped", False)
        if damped or self.consistent or self.heldout or self.closest:
            noise = relative_noise(y, system, self.noise, statistics)
        sigma, count = as_schedule(self.sigma), self.iterations
        rho = given = as_schedule(self.algorithm.rho if self.rho is None else self.rho)
        seeming, choice = noise, None
        whole = statistics or Statistics(lambda: [(measured, system)])
        if noise is not None and self._is_to_choose(noise, system):
            shown = noise
            size = measured.square().flatten(1).mean(1).sqrt()
            choice = whole.remember(self, lambda: self._choose(whole, shown))
            sigma, count = Annealed(sigma, count, choice.count), min(count, choice.count + SETTLED)
            seeming = noise * choice.factor
            noise = torch.minimum(seeming, choice.error / size)
        if damped and seeming is not None:
            rho = damped_schedule(given, seeming, y, system, statistics)

        limit = self.time_limit
        timed = None if limit is None else Timed(sigma, began + limit)
        least = 0.0 if noise is None else self.closest * float(noise.max())

        first: Tensor | None = None

        def start() -> Tensor | None:
            nonlocal first
            if x0 is not None:
                x = x0 / level
            elif self.start is not None:
                x = self.start.run(measured, system, statistics=whole).checked().x / level
            elif rho is not given:  # pinv blows up noise that dark pixels let through
                return damped_inverse(y, system, rho(0, count))
            else:
                return None
            first = x if self.blend > 0 or least > 0 else None
            return x

        solution = iterate(
            self.algorithm,
            y,
            system,
            self.prior,
            iterations=count,
            sigma=timed or sigma,
            rho=rho,
            x0=start,
            tol=self.tol,
            callback=_Follow(callback, level, timed, least) if callback or timed or least else None,
            objective=objective,
            statistics=statistics,
            began=began,
        )
        x = solution.x
        if first is not None and solution.history and solution.history[-1].residual < least:
            x = first
        elif self.consistent and noise is not None:
            x = no_closer(x, system.data_step(x, y, rho(count - 1, count)), y, system, noise)
        if first is not None:
            x = torch.lerp(x, first, self.blend)
        return Solution(x * level, solution.history, solution.reason, seeming, choice)

    def _repeat(
        self,
        y: Tensor,
        system: LinearSystem,
        x: Tensor | None,
        callback: Callback | None,
        objective: bool,
        statistics: Statistics | None,
        checkpoint: Checkpoint | None,
        in_turn: bool,
    ) -> Solution:
        began = time.perf_counter()
        kept = None if checkpoint is None else checkpoint.read()
        history: list[Iteration] = []
        passes, first = min(self.passes, self.iterations), 0
        later = self.sigma if self.again is None else self.again
        if kept is not None:
            first, x, history = kept.passes, kept.x.to(y), list(kept.history)
            began -= history[-1].seconds
        solution = Solution(y if x is None else x, history, "iterations")  # where all are done
        other: Tensor | None = None
        if self.partner is not None and first < passes:
            other = self.partner.run(y, system, statistics=statistics).checked().x
        for k in range(first, passes):
            passed, done = time.perf_counter() - began, len(history)
            left = None if self.time_limit is None else max(self.time_limit - passed, 1e-3)
            prior: Any = self.prior
            once = replace(
                self,
                prior=prior.of_pass(k * in_turn) if hasattr(prior, "of_pass") else prior,
                passes=1,
                partner=None,
                visible=0.0,
                iterations=self.iterations // passes,
                start=self.start if k == 0 else None,
                sigma=self.sigma if k == 0 and in_turn else later,
                time_limit=None if left is None else left / (passes - k),
            )

            watch = _Passed(callback, history, done, passed)
            solution = once.run(
                y, system, x0=x, callback=watch, objective=objective, statistics=statistics
            )
            x = solution.x
            if watch.is_stopped or solution.reason == "diverged":
                break
            if other is not None:
                x = torch.lerp(x, other, PARTNER)
                solution = replace(solution, x=x)
            if checkpoint is not None:
                checkpoint.write(Pass(k + 1, x, history))
        return replace(solution, history=history)

    def _is_to_choose(self, noise: Tensor, system: Any) -> bool:
        possible = self.heldout > 0 and hasattr(system, "weighted")
        return possible and self.noise == "auto" and bool((noise > UNSEEN).any())

    def _choose(self, statistics: Statistics, noise: Tensor) -> Choice:
        y, system = statistics.brightest()
        share = float(noise.mean())

        def run(y: Tensor, camera: LinearSystem, watch: Watch, factor: float) -> None:
            told: Any = "auto" if factor == 1 else factor * share
            annealed = replace(self, noise=told, heldout=0.0, consistent=False, time_limit=None)
            annealed.run(y, camera, callback=watch, statistics=statistics)

        deviation = share * float(statistics.size.mean())
        return choose(y, system, self.heldout, self.iterations, deviation, run)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


class _Follow:
    """Hands cubes on in the units of the measurement, and stops in time, or at a residual."""

    def __init__(
        self, callback: Callback | None, level: Tensor, timed: Timed | None, least: float
    ) -> None:
        self.callback, self.level, self.timed, self.least = callback, level, timed, least

    def wants(self, iteration: Iteration) -> bool:
        return self.callback is not None and wants_cube(self.callback, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        cube = None if x is None or self.callback is None else x * self.level
        told = self.callback is not None and self.callback(iteration, cube)
        late = self.timed is not None and self.timed.is_over
        return bool(told) or late or iteration.residual < self.least


class _Passed:
    """Counts on from the passes before."""

    def __init__(
        self, callback: Callback | None, history: list[Iteration], done: int, seconds: float
    ) -> None:
        self.callback, self.history = callback, history
        self.done, self.seconds, self.is_stopped = done, seconds, False

    def wants(self, iteration: Iteration) -> bool:
        return self.callback is not None and wants_cube(self.callback, self._moved(iteration))

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        moved = self._moved(iteration)
        self.history.append(moved)
        self.is_stopped = self.callback is not None and bool(self.callback(moved, x))
        return self.is_stopped

    def _moved(self, each: Iteration) -> Iteration:
        return replace(each, index=each.index + self.done, seconds=each.seconds + self.seconds)


def solve(
    y: Tensor,
    system: LinearSystem,
    *,
    prior: Prior,
    x0: Tensor | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> Tensor:
    """Reconstruct a cube `(B, C, H, W)` in one call; further arguments as for `Solver`."""
    check_order("solve", y, system)
    return Solver(prior, **settings).run(y, system, x0=x0, callback=callback).x
