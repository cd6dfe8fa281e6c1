"""A trained network as a reconstructor.

A shipped network starts from the cube of a solver. Further solvers refine the network's cube. The
result is a mean of these cubes. For networks that read y directly, bad pixels are filled.
"""

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
from cassi.models.camera_adapters import HasShapes, require_shapes
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
from cassi.solvers.base import Options, unpack_options
from cassi.solvers.early_stopping import StoppingPoint
from cassi.solvers.function import one_iteration
from cassi.solvers.heldout import HeldOutLines, draw_good_heldout, weighted_mean
from cassi.solvers.linear_system import (
    CameraSystem,
    LinearSystem,
    good_pixels,
    is_camera,
    zero_bad_pixels,
)
from cassi.solvers.refinement import MIN_VISIBLE_NOISE
from cassi.solvers.statistics import root_mean_square

# Weights of the cubes in their mean, one tuple for each number of cubes from one to four. They were
# chosen on validation scenes (docs/development/experiments/pretrained.md). The order is: the
# start's cube if there is a start, the network's cube, then the cubes of the solvers that refine.
CUBE_WEIGHTS = ((1.0,), (0.2, 0.8), (0.2, 0.2, 0.6), (0.1, 0.08, 0.3, 0.52))
# Usual weights of the same cubes in the brightness, the mean over the bands. Only those of four
# cubes differ from `CUBE_WEIGHTS`. `HeldOutLines.weigh` changes them for a scene. Most of the
# error lies in the brightness, and the last cube has the smallest error there.
BAND_MEAN_WEIGHTS = (*CUBE_WEIGHTS[:3], (0.0, 0.0, 0.25, 0.75))
# The `trust` t of `HeldOutLines.weigh`, chosen in docs/development/experiments/pretrained.md. A
# larger value lets the weights of a scene depart further from the usual ones.
WEIGHT_TOLERANCE = 6.0
# `HeldOutLines.weigh` also returns a position p on the line from the mean of the cubes (p = 0) to
# the start's cube (p = 1). At p the held-out pixels are predicted best. If p is below the first
# value here, the result is the mean. If p is above the second value, the result is the start's
# cube. In between it is a blend of both. Measured (docs/development/experiments/pretrained.md): p
# is at most 0.41 on ten training scenes of CAVE, and 0.49 to 1.29 on six pages of text under two
# coloured lights. On these pages the mean was up to 1.8 dB below `auto`.
REPLACEMENT_RANGE = (0.5, 0.75)
# Fraction of the detector pixels that no cube is computed from. They decide the weights of a scene.
# Holding out 1 % costs up to 0.02 dB, 2 % up to 0.04 dB
# (docs/development/experiments/pretrained.md).
HELDOUT_FRACTION = 0.01

# Function of the noise, relative to the root mean square of y, that returns solvers. The first one
# starts from the network's cube, each other one from the cube of the solver before it.
SolverChooser = Callable[[float], Sequence[Reconstructor]]


@dataclass(frozen=True)
class ShippedNetwork:
    """The attribute `shipped` of a network that comes with its weights.

    Attributes:
        card: the description in the file of weights.
        check: raises a ValueError if the network does not fit a camera.
        start: solver that computes the first cube and the noise of the measurement; or None.
        solvers: chooses the solvers that refine the network's cube; or None.
        doubts: lists how a camera and its noise differ from those of the training. The noise is
            relative to the root mean square of y.
    """

    card: Card
    check: Callable[[HasShapes], None]
    start: Solver | None = None
    solvers: SolverChooser | None = None
    doubts: Callable[[HasShapes, float], list[str]] | None = None


class WeightedCamera(CameraSystem, Protocol):
    """A camera with bad pixels or weights of pixels; see `cassi.systems.Weighted`."""

    is_good: Tensor
    """Bool, `(1|B, K, H', W')`, False at bad pixels."""

    @property
    def unweighted(self) -> LinearSystem:
        """The wrapped camera, without weights and without bad pixels."""


def is_weighted(system: LinearSystem) -> TypeGuard[WeightedCamera]:
    """Tell whether a camera has bad pixels or weights of pixels."""
    return good_pixels(system) is not None


def shipped_settings(network: nn.Module) -> ShippedNetwork | None:
    """Return the attribute `shipped` of a network that comes with its weights; else None."""
    return getattr(network, "shipped", None)


class Inference(nn.Module):
    """Runs a network in evaluation mode, and may make its cube consistent with y.

        x₀ = start(y),  x₁ = net(y, system, x₀),  x₂, x₃, … = solvers(y, from x₁),
        x = refine(mean of the x_i with weights w_i),   see `cassi.solvers.refine`

    Errors of different methods are partly independent, so a mean of the cubes has a smaller error.
    If there are `solvers`, some detector pixels are held out of all cubes. They decide how much
    each cube counts in the brightness, the mean over the bands
    (`cassi.solvers.heldout.HeldOutLines.weigh`). So the network's cube gets a small weight on a
    scene unlike those of the training. If the start's cube predicts these pixels much better than
    the mean does, it replaces the mean.

    This class is a `cassi.solvers.Reconstructor`, with one iteration.

    Args:
        network: `net(y, system) -> x`.
        refines: whether the cube is refined. If not, the result is the network's cube.
        start: computes the first cube and the noise, for a network that takes them.
        solvers: chooses solvers by the noise, relative to the root mean square of y. The first one
            starts from the network's cube, each other one from the cube of the solver before it.
        precision: one of `cassi.precision.PRECISIONS`. For a network that comes with its weights,
            "auto" is the fastest one on the device. For any other network it is 32-true.
        check: called with the camera before every run. It raises a ValueError if the camera does
            not fit.
    """

    iterations = 1
    halo = 96
    """Default halo of scenes that are reconstructed in blocks: this many rows around a block are
    read too, because the block's result depends on them. A smaller halo is faster, but the result
    differs more from that without blocks."""

    def __init__(
        self,
        network: nn.Module,
        *,
        refines: bool = False,
        start: Solver | None = None,
        solvers: SolverChooser | None = None,
        precision: str = "auto",
        check: Callable[[HasShapes], None] | None = None,
    ) -> None:
        super().__init__()
        check_precision(precision)
        if precision == "auto" and shipped_settings(network) is None:
            precision = "32-true"
        self.network = network.eval()
        self.refines, self.precision, self.check = refines, precision, check
        self.start, self.solvers = start, solvers
        # The solvers are chosen by the largest noise of a batch, so a sample's result may depend on
        # the other samples.
        self.shares_batch = solvers is None and (start is None or start.shares_batch)

    @torch.no_grad()
    def forward(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None = None
    ) -> Tensor:
        """Reconstruct: measurement `(B, K, H', W')` → cube `(B, C, H, W)`, float32.

        Args:
            y: measurement.
            system: the camera.
            statistics: statistics of the whole measurement if y is a part of it.

        Raises:
            ValueError: the camera does not fit the network.
        """
        return self._reconstruct(self._prepare(y, system), system, statistics)[0]

    def _prepare(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Return y with zeros at bad pixels; raise a ValueError if the camera does not fit."""
        if self.check is not None:
            self.check(require_shapes(system))
        warn_if_slow(self.precision, y.device)
        return zero_bad_pixels(y, system)

    @torch.no_grad()
    def run_start(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None = None
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Return the network's cube, the cubes of the start, and the noise of the start.

        The start runs twice: first with the noise of smooth windows, as in `auto`, then with this
        noise limited by held-out pixels (`_limit_noise`). If the limit changes nothing, the start
        runs once, and its two cubes are the same. The network begins with the second cube. Without
        a start the list is empty and the noise is None.

        Args:
            y: measurement `(B, K, H', W')`.
            system: the camera.
            statistics: statistics of the whole measurement if y is a part of it.
        """
        start_cubes: list[Tensor] = []
        noise = None
        if self.start is not None:
            all_statistics = statistics or Statistics(lambda: [(y, system)])
            solution = self.start.run(y, system, statistics=all_statistics).checked()
            limited_start = all_statistics.remember(
                self, partial(self._limit_noise, all_statistics, self.start, solution.stopped)
            )
            start_cubes.append(solution.x)
            if limited_start is not self.start:
                solution = limited_start.run(y, system, statistics=all_statistics).checked()
            start_cubes.append(solution.x)
            noise = solution.noise
        first_cube = start_cubes[-1] if start_cubes else None
        x = self._run_network(y, system, statistics=statistics, start=first_cube, noise=noise)
        return x, start_cubes, noise

    def _reconstruct(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the cube, and the noise of the measurement if it was estimated."""
        if not self.refines:
            x, _, start_noise = self.run_start(y, system, statistics)
            return x, start_noise
        lines = None
        if self.solvers is not None and is_camera(system):
            statistics = statistics or Statistics(lambda: [(y, system)])
            lines = HeldOutLines(y, system, draw_good_heldout(y, system, HELDOUT_FRACTION))
        heldout_camera = lines.camera if lines else system
        cubes, start_cube, noise = self._reconstruct_all(
            zero_bad_pixels(y, heldout_camera), heldout_camera, statistics
        )
        weights = start_fraction = None
        if lines is not None and statistics is not None:
            compute = partial(self._compute_weights, statistics, lines, cubes)
            weights, start_fraction = statistics.remember(self.solvers, compute)
        x = weighted_mean(cubes, CUBE_WEIGHTS[len(cubes) - 1], weights)
        if start_fraction is not None and start_cube is not None:
            x = torch.lerp(x, start_cube, start_fraction.to(x).view(-1, 1, 1, 1))
        # The caller reports a cube that is not finite. Refining it would only take time.
        if not bool(x.isfinite().all()):
            return x, noise
        # The noise in smooth windows may be texture, so noise below `MIN_VISIBLE_NOISE` is ignored.
        # With a start, `_limit_noise` has already limited the noise by held-out pixels.
        min_visible = MIN_VISIBLE_NOISE if self.start is None else 0.0
        x = refine(x, y, system, noise=noise, visible=min_visible, statistics=statistics)
        return x, noise

    def _reconstruct_all(
        self, y: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> tuple[list[Tensor], Tensor | None, Tensor]:
        """Return the cubes in the order of `CUBE_WEIGHTS`, the first cube of the start, the noise.

        Of the start's two cubes the second is in the list, and the first is the second result. This
        result is None if there is no start.
        """
        x, start_cubes, noise = self.run_start(y, system, statistics)
        if noise is None:
            noise_setting: float | Literal["auto"] = getattr(self.network, "noise", "auto")
            noise = relative_noise(y, system, noise_setting, statistics)
        cubes = [*start_cubes[1:], x]
        if self.solvers is not None and bool(x.isfinite().all()):
            for method in self.solvers(float(noise.max())):
                cubes.append(method.run(y, system, x0=cubes[-1], statistics=statistics).x)
        return cubes, start_cubes[0] if start_cubes else None, noise

    def _compute_weights(
        self, statistics: Statistics, lines: HeldOutLines, cubes: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the weights of the cubes `(M, B)`, and the fraction `(B,)` of the start's cube.

        This fraction of the start's cube is blended with the mean of all cubes. It is 1 if the
        start's cube predicts held-out pixels clearly better than the mean does, as on pages of text
        under coloured light.
        """
        # All parts of a scene get the same weights, so that they fit each other at the seams.
        y, camera = statistics.brightest()
        y = zero_bad_pixels(y, camera)
        if is_camera(camera) and not (y.shape == lines.y.shape and torch.equal(y, lines.y)):
            lines = HeldOutLines(y, camera, draw_good_heldout(y, camera, HELDOUT_FRACTION))
            cubes = self._reconstruct_all(
                zero_bad_pixels(y, lines.camera), lines.camera, statistics
            )[0]
        index = len(cubes) - 1
        weights, start_position = lines.weigh(
            cubes, CUBE_WEIGHTS[index], BAND_MEAN_WEIGHTS[index], WEIGHT_TOLERANCE
        )
        low, high = REPLACEMENT_RANGE
        return weights, ((start_position - low) / (high - low)).clamp(0, 1)

    @torch.no_grad()
    def _limit_noise(
        self, statistics: Statistics, start: Solver, stopping_point: StoppingPoint | None
    ) -> Solver:
        """Return the start solver, its noise limited by held-out pixels.

        If the network's error at held-out pixels is below the noise of smooth windows, this error
        is the noise of the result. The start does not change if it held out no pixels, or if its
        stopping point regards all of the estimated noise as texture (factor 0).
        """
        # In smooth windows texture may be mistaken for noise. The network reconstructs without the
        # held-out pixels. Its error at these pixels consists of noise and of texture that it
        # misses. So the noise is at most this error. The error replaces a larger estimate.
        if stopping_point is None or stopping_point.factor == 0 or stopping_point.x is None:
            return start
        lines, window_noise = stopping_point.lines, statistics.noise.to(stopping_point.x)
        y, camera = lines.camera.without_bad_pixels(lines.y), lines.camera
        x = self._run_network(
            y, camera, statistics=statistics, start=stopping_point.x, noise=window_noise
        )
        # The error is relative to the root mean square of the lines, but the noise to that of y.
        scale = root_mean_square(lines.y.flatten()[None])[0] / statistics.size.mean()
        # Both numbers are read from the device in one transfer.
        values = torch.stack((window_noise.mean(), scale.to(window_noise.dtype)))
        window_level, error_scale = values.tolist()
        heldout_error = lines.error(x) * error_scale
        if heldout_error >= window_level:
            return start
        return replace(start, noise=heldout_error, heldout=0.0)

    def _run_network(
        self, y: Tensor, system: LinearSystem, **inputs: Tensor | Statistics | None
    ) -> Tensor:
        """Run the network with those inputs for which it has a true attribute `takes_…`."""
        accepted_inputs = {
            key: value
            for key, value in inputs.items()
            if value is not None and getattr(self.network, f"takes_{key}", False)
        }
        # A network that reads y or the mask directly gets a measurement with filled bad pixels.
        if is_weighted(system) and not getattr(self.network, "sees_operators", False):
            y, system = fill_bad_pixels(y, system), system.unweighted
        with autocast(self.precision, y.device):
            x: Tensor = self.network(y, system, **accepted_inputs)
        check_cube(self.network, x, (len(y), *require_shapes(system).cube_shape))
        return x.float()

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y `(B, K, H', W')` and report how it went; see `cassi.solvers.Reconstructor`.

        The run has one iteration and no objective.

        Raises:
            ValueError: the camera does not fit the network, the cube is not finite, or a first cube
                `x0` is given.
        """
        _, callback, _, statistics = unpack_options(options, "network")
        begin_time = time.perf_counter()
        y = self._prepare(y, system)
        x, noise = self._reconstruct(y, system, statistics)
        # Reading this value waits for the GPU, so the time below is that of the whole run.
        if not bool(x.isfinite().all()):
            raise ValueError("the network's cube is not finite; check scale, dark and the mask")
        solution = one_iteration(x, y, system, time.perf_counter() - begin_time, callback)
        return replace(solution, noise=noise)


@torch.no_grad()
def fill_bad_pixels(y: Tensor, system: WeightedCamera) -> Tensor:
    r"""Fill the bad pixels of a measurement from the good pixels G around them.

        y_i ← (A1)_i · Σ_{j ∈ W_i ∩ G} y_j / Σ_{j ∈ W_i ∩ G} (A1)_j

    The ratio of the sums is the brightness of the scene around pixel i. (A1)_i is the light that
    the mask sends to the pixel itself. W_i is the smallest square of 3, 5, 9, … pixels around i
    that has a good pixel with light. Networks that read the measurement directly need this, because
    they were trained without bad pixels.

    Returns:
        Measurement shaped like y. A bad pixel is zero if no good pixel with light was found.
    """
    y = system.without_bad_pixels(y)
    is_bad = ~system.is_good.expand_as(y)
    full_camera = system.unweighted
    coverage = full_camera(torch.ones_like(full_camera.adjoint(y)))
    good_coverage, result, side = system.without_bad_pixels(coverage), y, 3
    while bool(is_bad.any()) and side < 4 * max(y.shape[-2:]):
        mean_y, mean_coverage = (F.avg_pool2d(v, side, 1, side // 2) for v in (y, good_coverage))
        is_fillable = is_bad & (mean_coverage > 0)
        result = torch.where(is_fillable, coverage * mean_y / mean_coverage, result)
        is_bad, side = is_bad & ~is_fillable, 2 * side - 1
    return result


def prepare(
    network: nn.Module, refine: bool | Literal["auto"] = "auto", precision: str = "auto"
) -> Inference:
    """Wrap a network as a reconstructor.

    Args:
        network: `net(y, system) -> x`.
        refine: whether the cube is made consistent with the measurement, see
            `cassi.solvers.refine`. "auto" means: only for a network that comes with its weights.
        precision: see `Inference`.

    Raises:
        ValueError: `refine` is not True, False or "auto", or the precision is unknown.
    """
    if refine not in (True, False, "auto"):
        raise ValueError(f"refine: expected true, false or auto, got {refine!r}")
    shipped_network = shipped_settings(network)
    refines = shipped_network is not None if refine == "auto" else bool(refine)
    if shipped_network is None:
        return Inference(network, refines=refines, precision=precision)
    return Inference(
        network,
        refines=refines,
        start=shipped_network.start,
        solvers=shipped_network.solvers if refines else None,
        precision=precision,
        check=shipped_network.check,
    )
