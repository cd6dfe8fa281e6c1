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

# docs/development/experiments/early-stopping.md compares numbers of lines, shares of held-out
# pixels and numbers of iterations.

# The run stops at the weakest prior whose held-out error exceeds the least error by at most this
# share. The error contains noise, which hides that a weaker prior still gains detail. On CAVE's
# validation scenes with shot noise, the best cube has such an error.
ERROR_TOLERANCE = 0.01

# The run ends once the strength is below this share of the strength at the least error. Before
# that, a smaller error may still come.
MIN_STRENGTH_SHARE = 0.5

# Held-out errors count only at strengths up to this, in signal levels. At larger strengths the cube
# still depends on the first cube.
MAX_MEASURED_STRENGTH = 0.4

# A held-out error above both of these limits may come from a wrong model of the camera. The first
# limit is in units of the noise estimated in smooth windows. The second limit is relative to the
# root mean square of y: with an exact model, texture alone gives errors up to this limit.
MODEL_ERROR_NOISE_RATIO = 1.5
MODEL_ERROR_SIGNAL_RATIO = 0.02

# A held-out error below this share of the estimated noise shows that most of the estimate is
# texture. A second run then assumes no noise, and the run with the smaller error counts. CAVE's
# `beads` has 22.06 dB with this second run, and 20.8 dB without it.
TEXTURE_NOISE_RATIO = 0.5

ERROR_INTERVAL = 3  # iterations from one held-out error to the next

# The whole run has this many times the iterations of the run that finds the stopping point. The
# strength of the prior falls over the same range in both, so the stopping point holds for both.
ITERATION_RATIO = 2

# The brightest lines, this many, are reconstructed without their held-out pixels. One run on 64
# lines is as good as up to three runs on 128, and `auto` takes three quarters of the time.
N_LINES = 64


def truncate(schedule: AnySchedule, total: int, count: int) -> AnySchedule:
    """Return a schedule for runs of `total` iterations that is constant after `count` of them."""
    return lambda iteration, _: schedule(min(iteration, count - 1), total)


class HeldOutMonitor:
    """A callback that computes the held-out error of every third iteration, and stops the run.

    Attributes:
        last: number of the last iteration of the run.
        x: the cube of the least error so far, `(B, C, H, W)`.
        counts: numbers of the iterations whose error was computed.
        errors: the relative held-out errors of these iterations.
        strengths: the σ of these iterations.
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
        # Errors scatter, so the run ends only at a clearly weaker prior with a clearly larger
        # error.
        is_weaker = strength < MIN_STRENGTH_SHARE * self.strengths[best]
        return is_weaker and error > (1 + 2 * ERROR_TOLERANCE) * self.errors[best]

    def find_best_count(self) -> int:
        """Return the number of the last iteration within the tolerance of the least error."""
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
        x: the cube of these lines with the least error; None if no error was finite.
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

    The brightest lines are reconstructed without some pixels, and the cube predicts these pixels.
    As the prior gets weaker, the error falls while the cube gains detail, and rises once the cube
    gains noise. The run stops near the least error. No reconstruction predicts noise, so the least
    error is an upper bound of the noise:

    - If the error is below the estimated noise, the rest of the estimate is texture. The run takes
      the error for the noise, and is not stopped early.
    - If the error is far below the estimated noise, a second run assumes no noise. The run
      with the smaller error counts.
    - If the error is far above the estimated noise, the model of the camera may be wrong by more
      than the noise. A second run takes all of the error for noise. Its result counts unless its
      held-out error is clearly larger.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        share: share of the pixels that are held out, in (0, 0.5].
        iterations: number of iterations of the whole run.
        noise: standard deviation of the noise, as estimated in smooth windows, > 0.
        run: reconstructs some lines of y, and calls the monitor.
    """
    lines = hold_out(y, system, N_LINES, share)
    signal = float(root_mean_square(lines.y.flatten()[None]))

    def find_point(factor: float) -> StoppingPoint:
        monitor = HeldOutMonitor(lines, math.ceil(iterations / ITERATION_RATIO))
        run(lines.y, lines.camera, monitor, factor)
        error = signal * min(monitor.errors, default=math.inf)
        count = min(ITERATION_RATIO * monitor.find_best_count(), iterations)
        return StoppingPoint(count, factor, error, lines, monitor.x)

    point = find_point(1.0)
    max_error = max(MODEL_ERROR_NOISE_RATIO * noise, MODEL_ERROR_SIGNAL_RATIO * signal)
    if math.isfinite(point.error) and point.error > max_error:
        noisier_point = find_point(point.error / noise)
        is_as_good = noisier_point.error < (1 + 2 * ERROR_TOLERANCE) * point.error
        return noisier_point if is_as_good else point
    if point.error < TEXTURE_NOISE_RATIO * noise:
        noiseless_point = find_point(0.0)
        if noiseless_point.error < point.error:
            return replace(noiseless_point, count=iterations)
    # If the bound is below the estimated noise, the run is not stopped, and has less damping.
    if point.error < noise:
        return replace(point, count=iterations, factor=point.error / noise)
    return point
