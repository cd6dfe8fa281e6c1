"""Early stopping of an annealed run: held-out pixels show how weak the prior may become."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from cassi.solvers.base import Iteration
from cassi.solvers.heldout import Lines, hold_out
from cassi.solvers.linear_system import Camera
from cassi.solvers.schedules import AnySchedule
from cassi.solvers.statistics import root_mean_square

TOLERANCE = 0.01
"""How far the held-out error may be above its least, relative: it contains noise, which hides that
a weaker prior still gains detail. On CAVE's validation scenes with shot noise the best cube is
there."""
PASSED = 0.5
"""The strength, relative to that of the least error, below which the run stops."""
SETTLED = 0.4
"""The strength, in signal levels, below which held-out errors count: before, the cube still depends
on the first one."""
DOUBT = 1.5
"""The held-out error, in units of the noise of plain windows, above which all of it may be noise:
the model of the camera has errors too."""
MISFIT = 0.02
"""The held-out error, relative to y, above which the camera's model may be wrong: with an exact
model, texture alone gives errors up to this."""
EVERY = 3
"""Iterations from one held-out error to the next."""
COARSE = 2
"""Iterations of the whole run per iteration of the run that finds the stopping point. The strength
of the prior falls as far in both."""
LINES = 64
"""Number of lines, those with the most light, that are reconstructed without held-out pixels."""
TEXTURE = 0.5
"""Share of the estimated noise. A held-out error below it shows that most of that noise is texture:
a run without noise is compared."""


def truncated(schedule: AnySchedule, total: int, count: int) -> AnySchedule:
    """Return a schedule of `total` iterations that stays as it is after `count` of them."""
    return lambda iteration, _: schedule(min(iteration, count - 1), total)


class HeldOutMonitor:
    """Computes the held-out error of every third iteration, and stops the run."""

    def __init__(self, lines: Lines, last: int) -> None:
        self.lines, self.last = lines, last
        self.count = 0
        self.x: Tensor | None = None
        self.counts: list[int] = []
        self.errors: list[float] = []
        self.strengths: list[float] = []

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the cube of this iteration is needed."""
        settled = iteration.sigma <= SETTLED
        return settled and (iteration.index % EVERY == 0 or iteration.index == self.last)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Note the error of a cube; True ends the run."""
        self.count = iteration.index
        if x is None or not self.wants(iteration):
            return False
        strength = iteration.sigma
        error = self.lines.error(x)
        if error < min(self.errors, default=math.inf):
            self.x = x
        self.errors.append(error)
        self.counts.append(iteration.index)
        self.strengths.append(strength)
        least = min(range(len(self.errors)), key=self.errors.__getitem__)
        weak = self.strengths[-1] < PASSED * self.strengths[least]
        return weak and self.errors[-1] > (1 + 2 * TOLERANCE) * self.errors[least]

    def best_count(self) -> int:
        """Return the iterations up to the last whose error is nearly the least."""
        if not self.errors:
            return self.count
        bound = (1 + TOLERANCE) * min(self.errors)
        return max(n for n, e in zip(self.counts, self.errors, strict=True) if e <= bound)


@dataclass(frozen=True)
class StoppingPoint:
    """The iteration at which held-out pixels stop a run, and the noise that they show.

    Attributes:
        count: iterations of the annealed run.
        factor: the noise, in units of that of plain windows. Below 1, part of that is texture.
            Above 1, the model of the camera is wrong by more than the noise.
        error: the least held-out error, as a standard deviation of y; an upper bound of the noise.
        lines: lines of the measurement that were used.
        x: the cube of that error, of these lines; None where no error was finite.
    """

    count: int
    factor: float
    error: float
    lines: Lines
    x: Tensor | None


Run = Callable[[Tensor, Camera, HeldOutMonitor, float], None]
"""(y, camera, monitor, factor): reconstructs with `factor` times the estimated noise, and calls the
monitor after every iteration."""


def find_stopping_point(
    y: Tensor, system: Camera, share: float, iterations: int, noise: float, run: Run
) -> StoppingPoint:
    """Find how many iterations of an annealed run suit a noisy measurement.

    The brightest lines are reconstructed without some pixels, and the cube predicts these. As the
    prior gets weaker, the error falls while the cube gains detail, and rises when it gains noise:
    there the run stops. No reconstruction predicts noise, so the error bounds the noise from above:

    - Estimated noise above the error is texture.
    - Where the error is far below the noise, a run without noise is compared.
    - Where the error is far above the noise, the model of the camera may be wrong by more than the
      noise. A run that takes all of the error for noise is compared, and taken unless it predicts
      clearly worse.

    `noise` is the standard deviation estimated in plain windows, > 0.
    """
    lines = hold_out(y, system, LINES, share)
    size = float(root_mean_square(lines.y.flatten()[None]))

    def look(factor: float) -> StoppingPoint:
        monitor = HeldOutMonitor(lines, math.ceil(iterations / COARSE))
        run(lines.y, lines.camera, monitor, factor)
        least = min(monitor.errors, default=math.inf)
        count = min(COARSE * monitor.best_count(), iterations)
        return StoppingPoint(count, factor, least * size, lines, monitor.x)

    found = look(1.0)
    if found.error > max(DOUBT * noise, MISFIT * size) and math.isfinite(found.error):
        more = look(found.error / noise)
        return more if more.error < (1 + 2 * TOLERANCE) * found.error else found
    if found.error < TEXTURE * noise:
        clean = look(0.0)
        if clean.error < found.error:
            return replace(clean, count=iterations)
    if found.error < noise:
        return replace(found, count=iterations, factor=found.error / noise)
    return found
