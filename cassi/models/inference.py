"""A trained network as it is used: a reconstructor in a precision, on cameras it fits, refined."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.checks import check_cube
from cassi.models.grid import Shaped, shaped
from cassi.models.registry import Card
from cassi.precision import autocast, check_precision, warn_if_slow
from cassi.solvers import (
    Reconstructor,
    Solution,
    Solver,
    Statistics,
    refine,
    relative_noise,
)
from cassi.solvers.base import Options, take
from cassi.solvers.early_stopping import StoppingPoint
from cassi.solvers.function import one_iteration
from cassi.solvers.heldout import Lines, draw_seen, weighted_mean
from cassi.solvers.linear_system import Camera, LinearSystem, good_pixels, is_camera, seen
from cassi.solvers.refinement import VISIBLE
from cassi.solvers.statistics import root_mean_square

SHARES = ((1.0,), (0.2, 0.8), (0.2, 0.2, 0.6), (0.1, 0.08, 0.3, 0.52))
"""Of one to four cubes in their mean: the start's, the network's and those of the solvers that
refine, in this order."""
BRIGHTNESS = (*SHARES[:3], (0.0, 0.0, 0.25, 0.75))
"""The same of their means over the bands, on average over scenes. Most of an error is there, and
the last cube has the least of it."""
TRUST = 6.0
"""In what held-out pixels say of the weights of a scene, see `Lines.weigh`."""
NEARER = (0.5, 0.75)
"""How far towards the start's cube held-out pixels are predicted best, see `Lines.weigh`: up to the
first the mean of the cubes stays as it is, from the second on the cube of `auto` takes its place.
On ten scenes of CAVE's training set it is at most 0.41, on six pages of text under two coloured
lights 0.49 to 1.29. There the mean was up to 1.8 dB below `auto`."""
HELDOUT = 0.01
"""Share of the detector pixels that the cubes are made without, to find the shares of a scene."""

Choose = Callable[[float], Sequence[Reconstructor]]
"""The noise relative to the root mean square of y → methods, each from the cube before it."""


@dataclass(frozen=True)
class Shipped:
    """What is known of a network that comes with its weights: its attribute `shipped`.

    Attributes:
        card: what its file says.
        check: refuses a camera that it does not fit.
        start: finds the first cube and the noise of the measurement; or None.
        solvers: chooses the solvers that refine; or None.
        doubts: tells in what a camera and a noise, relative to the root mean square of y, are
            unlike those of the training.
    """

    card: Card
    check: Callable[[Shaped], None]
    start: Solver | None = None
    solvers: Choose | None = None
    doubts: Callable[[Shaped, float], list[str]] | None = None


class WeightedCamera(Camera, Protocol):
    """A camera that leaves pixels out or weighs them; see `cassi.systems.Weighted`."""

    good: Tensor
    """Bool, `(1|B, K, H', W')`, False at bad pixels."""

    @property
    def unweighted(self) -> LinearSystem:
        """The camera with all its pixels."""


def is_weighted(system: LinearSystem) -> TypeGuard[WeightedCamera]:
    """Tell whether a camera leaves pixels out or weighs them."""
    return good_pixels(system) is not None


def shipped_with(network: nn.Module) -> Shipped | None:
    """Return what is known of a network that comes with its weights; None of any other."""
    return getattr(network, "shipped", None)


class Inference(nn.Module):
    """Runs a network in evaluation mode and, where asked, makes its cube consistent with y.

        x₀ = start(y),  x₁ = net(y, system, x₀),  x₂, x₃, … = solvers(y, from x₁),
        x = refine(x(w)),   see `cassi.solvers.refine`

    Errors of several methods are partly independent: their mean has less of them. Where there are
    solvers, all cubes are made without some detector pixels. The weights of their means over the
    bands are those that predict these pixels, see `cassi.solvers.heldout.Lines.weigh`: on a scene
    unlike those of the training the network's cube gives way.

    It is a `cassi.solvers.Reconstructor`, with one iteration.

    Args:
        network: `net(y, system) -> x`.
        refined: refine the cube.
        start: finds the first cube and what noise there is, for a network that takes them.
        solvers: is given the noise relative to the root mean square of y, and returns the solvers
            that go on from the cube, one after the other, before it is refined.
        precision: one of `cassi.precision.PRECISIONS`; "auto" is what is fast on the device for a
            network that comes with its weights, and 32-true for any other.
        check: is given the camera before every run, to refuse one that does not fit.
    """

    iterations = 1
    halo = 96

    def __init__(
        self,
        network: nn.Module,
        *,
        refined: bool = False,
        start: Solver | None = None,
        solvers: Choose | None = None,
        precision: str = "auto",
        check: Callable[[Shaped], None] | None = None,
    ) -> None:
        super().__init__()
        check_precision(precision)
        if precision == "auto" and shipped_with(network) is None:
            precision = "32-true"
        self.network = network.eval()
        self.refined, self.precision, self.check = refined, precision, check
        self.start, self.solvers = start, solvers
        # The solvers are chosen for all samples of a batch.
        self.shares_batch = solvers is None and (start is None or start.shares_batch)

    @torch.no_grad()
    def forward(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None = None
    ) -> Tensor:
        """Reconstruct: measurement `(B, K, H', W')` → cube `(B, C, H, W)`, float32.

        Statistics are those of the whole measurement, where y is a part of one.

        Raises:
            ValueError: the camera does not fit the network.
        """
        return self._reconstruct(self._prepare(y, system), system, statistics)[0]

    def _prepare(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Return the measurement without bad pixels; ValueError where the camera does not fit."""
        if self.check is not None:
            self.check(shaped(system))
        warn_if_slow(self.precision, y.device)
        return seen(y, system)

    @torch.no_grad()
    def begin(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None = None
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Return the network's first cube, those of its start, and the noise that this found.

        The start's are one that goes by the noise that windows show, as `auto`, and one that goes
        by the noise of `_look`. It is the same one where that is no other noise.

        Args:
            y: measurement `(B, K, H', W')`.
            system: the camera.
            statistics: of the whole measurement, where y is a part of one.
        """
        starts: list[Tensor] = []
        noise = None
        if self.start is not None:
            whole = statistics or Statistics(lambda: [(y, system)])
            found = self.start.run(y, system, statistics=whole).checked()
            start = whole.remember(self, partial(self._look, whole, self.start, found.stopped))
            starts.append(found.x)
            if start is not self.start:
                found = start.run(y, system, statistics=whole).checked()
            starts.append(found.x)
            noise = found.noise
        first = starts[-1] if starts else None
        x = self._recover(y, system, statistics=statistics, start=first, noise=noise)
        return x, starts, noise

    def _reconstruct(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the cube, and the noise that was found, if any was looked for."""
        if not self.refined:
            x, _, found = self.begin(y, system, statistics)
            return x, found
        lines = None
        if self.solvers is not None and is_camera(system):
            statistics = statistics or Statistics(lambda: [(y, system)])
            lines = Lines(y, system, draw_seen(y, system, HELDOUT))
        seen_by = lines.camera if lines else system
        cubes, untrained, noise = self._recover_all(seen(y, seen_by), seen_by, statistics)
        weights = turn = None
        if lines is not None and statistics is not None:
            find = partial(self._weigh, statistics, lines, cubes)
            weights, turn = statistics.remember(self.solvers, find)
        x = weighted_mean(cubes, SHARES[len(cubes) - 1], weights)
        if turn is not None and untrained is not None:
            x = torch.lerp(x, untrained, turn.to(x).view(-1, 1, 1, 1))
        # A cube that is not finite is for the caller to report.
        if not bool(x.isfinite().all()):
            return x, noise
        # What plain windows alone show may be texture; what a start went by was looked into.
        visible = VISIBLE if self.start is None else 0.0
        x = refine(x, y, system, noise=noise, visible=visible, statistics=statistics)
        return x, noise

    def _recover_all(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> tuple[list[Tensor], Tensor | None, Tensor]:
        """Return the cubes whose mean is the result, in the order of `SHARES`, and the noise.

        In between, the cube of `auto`, where the network has a start.
        """
        x, starts, noise = self.begin(y, system, statistics)
        if noise is None:
            given: float | Literal["auto"] = getattr(self.network, "noise", "auto")
            noise = relative_noise(y, system, given, statistics)
        cubes = [*starts[1:], x]
        if self.solvers is not None and bool(x.isfinite().all()):
            for method in self.solvers(float(noise.max())):
                cubes.append(method.run(y, system, x0=cubes[-1], statistics=statistics).x)
        return cubes, starts[0] if starts else None, noise

    def _weigh(self, whole: Statistics, lines: Lines, cubes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the weights of the cubes, of the whole scene also where y is a part of it.

        And how much of `auto`'s cube takes the place of their mean, `(B,)`: all of it where the
        start's predicts held-out pixels clearly better, as on pages of text under coloured light.
        """
        y, camera = whole.brightest()
        y = seen(y, camera)
        if is_camera(camera) and not (y.shape == lines.y.shape and torch.equal(y, lines.y)):
            lines = Lines(y, camera, draw_seen(y, camera, HELDOUT))
            cubes = self._recover_all(seen(y, lines.camera), lines.camera, whole)[0]
        at = len(cubes) - 1
        weights, nearest = lines.weigh(cubes, SHARES[at], BRIGHTNESS[at], TRUST)
        return weights, ((nearest - NEARER[0]) / (NEARER[1] - NEARER[0])).clamp(0, 1)

    @torch.no_grad()
    def _look(self, statistics: Statistics, start: Solver, found: StoppingPoint | None) -> Solver:
        """Return the start, told of the noise where windows show more than there can be.

        A start that looked at no pixels held out is taken as it is, and so is one that by them has
        all noise to be texture. Otherwise the network goes on from what it found without them. What
        it misses them by is texture as well as noise: where that is less than the noise that
        windows show, it is all there can be.
        """
        if found is None or found.factor == 0 or found.x is None:
            return start
        lines, shown = found.lines, statistics.noise.to(found.x)
        y, camera = lines.camera.without_bad_pixels(lines.y), lines.camera
        x = self._recover(y, camera, statistics=statistics, start=found.x, noise=shown)
        size = root_mean_square(lines.y.flatten()[None])[0] / statistics.size.mean()
        level, share = torch.stack((shown.mean(), size.to(shown.dtype))).tolist()
        missed = lines.error(x) * share
        return start if missed >= level else replace(start, noise=missed, heldout=0.0)

    def _recover(
        self, y: Tensor, system: LinearSystem, **known: Tensor | Statistics | None
    ) -> Tensor:
        """Run the network; of what is known it is given what it takes."""
        more = {
            key: value
            for key, value in known.items()
            if value is not None and getattr(self.network, f"takes_{key}", False)
        }
        if is_weighted(system) and not getattr(self.network, "sees_operators", False):
            y, system = fill_in(y, system), system.unweighted
        with autocast(self.precision, y.device):
            x: Tensor = self.network(y, system, **more)
        check_cube(self.network, x, (len(y), *shaped(system).cube_shape))
        return x.float()

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y `(B, K, H', W')` and report how it went; see `cassi.solvers.Reconstructor`.

        It takes no first cube, and has one iteration and no objective.
        """
        _, callback, _, statistics = take(given, "network")
        start = time.perf_counter()
        y = self._prepare(y, system)
        x, noise = self._reconstruct(y, system, statistics)
        # Reading a number also waits for a GPU to be done.
        if not bool(x.isfinite().all()):
            raise ValueError("the network's cube is not finite; check scale, dark and the mask")
        found = one_iteration(x, y, system, time.perf_counter() - start, callback)
        return replace(found, noise=noise)


@torch.no_grad()
def fill_in(y: Tensor, system: WeightedCamera) -> Tensor:
    r"""Fill the bad pixels of a measurement in from the good ones G around them.

        y_i ← (A1)_i · Σ_{j ∈ W_i ∩ G} y_j / Σ_{j ∈ W_i ∩ G} (A1)_j

    The light behind a pixel is as the light behind its neighbours, the code is its own. W is a
    square around the pixel, the smallest of 3, 5, 9, … pixels that has light. It is for networks
    that read the measurement themselves: they have learned what one looks like.

    Returns:
        Shaped like y; zeros where nothing is good.
    """
    y = system.without_bad_pixels(y)
    bad = ~system.good.expand_as(y)
    whole = system.unweighted
    flat = whole(torch.ones_like(whole.adjoint(y)))
    light, filled, side = system.without_bad_pixels(flat), y, 3
    while bool(bad.any()) and side < 4 * max(y.shape[-2:]):
        above, below = (F.avg_pool2d(v, side, 1, side // 2) for v in (y, light))
        ready = bad & (below > 0)
        filled = torch.where(ready, flat * above / below, filled)
        bad, side = bad & ~ready, 2 * side - 1
    return filled


def prepare(
    network: nn.Module, refine: bool | Literal["auto"] = "auto", precision: str = "auto"
) -> Inference:
    """Make a network ready to reconstruct.

    `refine` makes the cube consistent with the measurement, see `cassi.solvers.refine`; "auto" does
    so for a network that comes with its weights.
    """
    if refine not in (True, False, "auto"):
        raise ValueError(f"refine: expected true, false or auto, got {refine!r}")
    shipped = shipped_with(network)
    refined = shipped is not None if refine == "auto" else bool(refine)
    if shipped is None:
        return Inference(network, refined=refined, precision=precision)
    return Inference(
        network,
        refined=refined,
        start=shipped.start,
        solvers=shipped.solvers if refined else None,
        precision=precision,
        check=shipped.check,
    )
