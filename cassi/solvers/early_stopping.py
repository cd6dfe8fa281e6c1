"""Early stopping of an annealed run: held-out pixels show how weak the prior may become."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from cassi.solvers.base import Iteration
from cassi.solvers.heldout import HeldOutLines, hold_out
from cassi.solvers.linear_system import CameraSystem
from cassi.solvers.schedules import AnySchedule
from cassi.solvers.statistics import root_mean_square

# docs/development/experiments/early-stopping.md has the measurements behind lines, share of pixels
# and iterations.

# The run stops at the weakest prior whose held-out error is within this share of the least one.
# The error contains noise, which hides that a weaker prior still gains detail. On CAVE's validation
# scenes with shot noise the best cube is there.
ERROR_TOLERANCE = 0.01

# The run ends once the strength is below this share of the strength at the least error. Until then
# a smaller error may still come.
MIN_STRENGTH_SHARE = 0.5

# Held-out errors count below this strength, in signal levels. Before, the cube still depends on the
# first cube.
MAX_MEASURED_STRENGTH = 0.4

# A held-out error above both of these limits may come from a wrong model of the camera. The first
# is in units of the noise estimated in smooth windows. The second is relative to y: with an exact
# model, texture alone gives errors up to it.
MODEL_ERROR_NOISE_RATIO = 1.5
MODEL_ERROR_SIGNAL_RATIO = 0.02

# A held-out error below this share of the estimated noise shows that most of the estimate is
# texture. A run without noise is then compared. CAVE's `beads` has 22.06 dB with this comparison,
# and 20.8 dB without it.
TEXTURE_NOISE_RATIO = 0.5

ERROR_INTERVAL = 3  # iterations from one held-out error to the next

# Iterations of the whole run per iteration of the run that finds the stopping point. The strength
# of the prior falls as far in both, so that a stopping point carries over.
ITERATION_RATIO = 2

# The brightest lines, this many of them, are reconstructed without held-out pixels. One run on 64
# lines is as good as three runs on 128, in three quarters of the time.
N_LINES = 64


def truncated(schedule: AnySchedule, total: int, count: int) -> AnySchedule:
    """Return a schedule for runs of `total` iterations that is constant after `count` of them."""
    return lambda iteration, _: schedule(min(iteration, count - 1), total)


class HeldOutMonitor:
    """A callback that computes the held-out error of every third iteration, and stops the run.

    Attributes:
        x: the cube of the least error so far, `(B, C, H, W)`.
        counts: iterations whose error was computed; `errors` and `strengths` belong to them.
    """

    def __init__(self, lines: HeldOutLines, last: int) -> None:
        self.lines, self.last = lines, last
        self.count = 0
        self.x: Tensor | None = None
        self.counts: list[int] = []
        self.errors: list[float] = []
        self.strengths: list[float] = []

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the cube of this iteration is needed."""
        is_due = iteration.index % ERROR_INTERVAL == 0 or iteration.index == self.last
        return is_due and iteration.sigma <= MAX_MEASURED_STRENGTH

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Record the error of a cube; True ends the run."""
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
        best = min(range(len(self.errors)), key=self.errors.__getitem__)
        # Errors scatter: the end needs a clearly weaker prior and a clearly larger error.
        is_weaker = strength < MIN_STRENGTH_SHARE * self.strengths[best]
        return is_weaker and error > (1 + 2 * ERROR_TOLERANCE) * self.errors[best]

    def best_count(self) -> int:
        """Return the number of the last iteration whose error is nearly the least."""
        if not self.errors:
            return self.count
        bound = (1 + ERROR_TOLERANCE) * min(self.errors)
        return max(n for n, e in zip(self.counts, self.errors, strict=True) if e <= bound)


@dataclass(frozen=True)
class StoppingPoint:
    """The iteration at which held-out pixels stop a run, and the noise level that they imply.

    Attributes:
        count: iterations of the annealed run.
        factor: the noise in units of the estimate from smooth windows. Below 1, a part of the
            estimate is texture. Above 1, the error of the camera's model exceeds the noise.
        error: the least held-out error, as a standard deviation of y; an upper bound of the noise.
        lines: lines of the measurement that were used.
        x: the cube of the least error, of these lines; None where no error was finite.
    """

    count: int
    factor: float
    error: float
    lines: HeldOutLines
    x: Tensor | None


Run = Callable[[Tensor, CameraSystem, HeldOutMonitor, float], None]
"""(y, camera, monitor, factor): reconstructs y with `factor` times the estimated noise, and calls
the monitor after every iteration."""


def find_stopping_point(
    y: Tensor, system: CameraSystem, share: float, iterations: int, noise: float, run: Run
) -> StoppingPoint:
    """Find how many iterations of an annealed run suit a noisy measurement.

    The brightest lines are reconstructed without some pixels, and the cube predicts these. As the
    prior gets weaker, the error falls while the cube gains detail, and rises when it gains noise:
    there the run stops. No reconstruction predicts noise, so the error bounds the noise from above:

    - Estimated noise above the error is texture.
    - If the error is far below the noise, a run without noise is compared.
    - If the error is far above the noise, the model of the camera may be wrong by more than the
      noise. A second run takes all of the error for noise. Its result counts unless it predicts
      clearly worse.

    `share` of the pixels are held out. `noise` is the standard deviation estimated in smooth
    windows, > 0.
    """
    lines = hold_out(y, system, N_LINES, share)
    signal = float(root_mean_square(lines.y.flatten()[None]))

    def find_point(factor: float) -> StoppingPoint:
        monitor = HeldOutMonitor(lines, math.ceil(iterations / ITERATION_RATIO))
        run(lines.y, lines.camera, monitor, factor)
        error = signal * min(monitor.errors, default=math.inf)
        count = min(ITERATION_RATIO * monitor.best_count(), iterations)
        return StoppingPoint(count, factor, error, lines, monitor.x)

    point = find_point(1.0)
    max_error = max(MODEL_ERROR_NOISE_RATIO * noise, MODEL_ERROR_SIGNAL_RATIO * signal)
    if math.isfinite(point.error) and point.error > max_error:
        noisier = find_point(point.error / noise)
        return noisier if noisier.error < (1 + 2 * ERROR_TOLERANCE) * point.error else point
    if point.error < TEXTURE_NOISE_RATIO * noise:
        noiseless = find_point(0.0)
        if noiseless.error < point.error:
            return replace(noiseless, count=iterations)
    # The bound shows less noise than estimated: the run then goes to its end with less damping.
    if point.error < noise:
        return replace(point, count=iterations, factor=point.error / noise)
    return point
