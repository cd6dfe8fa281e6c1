"""How strong a prior has to stay: the end of its annealing, found by pixels held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.solvers.heldout import Lines, hold_out
from cassi.solvers.schedules import Schedule

TOLERANCE = 0.01
"""What the held-out error may be above its least: noise is in it as well, which hides how a weaker
prior still gains detail. On CAVE's validation scenes with shot noise the best cube is there."""
PASSED = 0.5
"""The strength, relative to that of the least error, from which on nothing better is to come."""
SETTLED = 0.4
"""The strength, in signal levels, from which on held-out errors are looked at: what comes before is
on its way from the first cube."""
DOUBT = 1.5
"""The held-out error, in units of the noise that plain windows show, from which on the rest of it
may be noise as well: what the model of the camera does not explain."""
MISFIT = 0.02
"""The least held-out error, relative to y, of which a part may be the camera's: simulated cameras,
which are as their models say, predict texture as badly as that."""
EVERY = 3
"""Iterations from one cube that is looked at to the next."""
LINES = 128
"""Of the scene, those with the most light, that are looked at."""


@dataclass(frozen=True)
class Annealed:
    """A schedule that stops falling: as `schedule` until `count` iterations, then the same value.

    Args:
        schedule: of the whole run.
        total: iterations that the schedule was made for.
        count: of them are gone through.
    """

    schedule: Schedule
    total: int
    count: int

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value at one iteration."""
        return self.schedule(min(iteration, self.count - 1), self.total)


class Watch:
    """Looks at the held-out error of every third iteration, and says when to stop.

    Args:
        lines: that the run is given, without the pixels held out.
        last: iterations of the run.
    """

    def __init__(self, lines: Lines, last: int) -> None:
        self.lines, self.last = lines, last
        self.count = 0
        self.x: Tensor | None = None
        self.counts: list[int] = []
        self.errors: list[float] = []
        self.strengths: list[float] = []

    def wants(self, iteration: Any) -> bool:
        """Return whether this iteration's cube is looked at."""
        settled = float(torch.as_tensor(iteration.sigma).amax()) <= SETTLED
        return settled and (iteration.index % EVERY == 0 or iteration.index == self.last)

    def __call__(self, iteration: Any, x: Tensor | None) -> bool:
        """Note the error of a cube; True ends the run."""
        self.count = iteration.index
        if x is None or not self.wants(iteration):
            return False
        strength = float(torch.as_tensor(iteration.sigma).amax())
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
class Choice:
    """What the pixels held out say.

    Attributes:
        count: iterations of the annealed run.
        factor: the noise, in units of that which plain windows show: 0 where that is texture, more
            than 1 where the model of the camera is wrong by more than the noise.
        error: the least held-out error, as a standard deviation of y; the noise is no more.
        lines: that were looked at.
        x: the cube of that error, of these lines; None where no error was a number.
    """

    count: int
    factor: float
    error: float
    lines: Lines
    x: Tensor | None


Run = Callable[[Tensor, Any, Watch, float], None]
"""(y, camera, watch, factor): reconstructs, with so much of the noise that is estimated, and calls
the watch after every iteration."""


def choose(y: Tensor, system: Any, share: float, iterations: int, noise: float, run: Run) -> Choice:
    """Find how far an annealed run may go with a measurement that seems noisy.

    The brightest lines of the scene are reconstructed without some of their pixels; the held-out
    error falls while the prior gives way to detail, and rises when what it gives way to is noise.
    Where it falls to the end, what seems noise may be texture: a run that trusts the measurement is
    looked at too. Where it stays far above the noise and that is no better, a run is looked at that
    takes all of the error for noise; it is taken unless it predicts clearly worse.

    Args:
        y: measurement `(B, K, H', W')`, or a part of one.
        system: its camera.
        share: of the pixels to hold out.
        iterations: of the whole annealing.
        noise: its standard deviation as plain windows show it, > 0.
        run: reconstructs.
    """
    lines = hold_out(y, system, LINES, share)
    size = float(lines.y.square().mean().sqrt())

    def look(factor: float) -> Choice:
        watch = Watch(lines, iterations)
        run(lines.y, lines.camera, watch, factor)
        least = min(watch.errors, default=math.inf)
        return Choice(watch.best_count(), factor, least * size, lines, watch.x)

    found = look(1.0)
    if found.count == iterations:
        found = min(found, look(0.0), key=lambda choice: choice.error)
    seems_more = found.error > max(DOUBT * noise, MISFIT * size)
    if found.factor == 1 and seems_more and math.isfinite(found.error):
        more = look(found.error / noise)
        if more.error < (1 + 2 * TOLERANCE) * found.error:
            return more
    return found
