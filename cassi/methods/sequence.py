"""Reconstruction of a sequence of snapshots, in which each cube predicts the next cube."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d
from typing_extensions import Unpack

from cassi.checks import not_negative, whole_number
from cassi.methods.motion import find_motion, is_inside, move
from cassi.methods.restarts import CountingCallback
from cassi.methods.wrapper import ReconstructorWrapper
from cassi.prior_protocols import ComponentPrior, has_components
from cassi.priors import Subspace
from cassi.priors.subspace import block_means
from cassi.pulled_prior import PulledPrior
from cassi.solvers import ADMM, Geometric, Iteration, LinearSystem, Solution, Solver, Statistics
from cassi.solvers.base import Options, unpack_options
from cassi.solvers.linear_system import is_camera, zero_bad_pixels
from cassi.solvers.schedules import as_schedule

# Iterations from one comparison of cube and prediction to the next. The host waits for the device
# at each comparison.
WEIGHT_INTERVAL = 5

# A prediction makes weak components reliable. First: the energy limit below which components are
# dropped is divided by this. Second: a run starts with at least this many components.
ENERGY_DIVISOR, MIN_RANK = 50.0, 8

# A pixel is as predicted if its e is below the tolerance; see `Sequence`. If fewer pixels than this
# share are as predicted, the snapshot shows another scene. A larger limit starts anew more often; a
# smaller limit keeps predictions of another scene.
MIN_PREDICTED_SHARE = 0.3


@dataclass(frozen=True)
class Sequence(ReconstructorWrapper):
    """Reconstruct snapshots of one scene in order, each from the cube of the snapshot before it.

    The method reconstructs the first snapshot without changes. For every later snapshot, the last
    cube is moved as the scene has moved (`cassi.methods.motion`). This prediction p is the first
    cube of a shorter run, and the cube x is pulled towards p in every iteration:

        x ← x + w (p − x),   w = weight / (1 + e²/tolerance²)

    e is computed in blocks of 8×8 pixels. Within a block x − p is averaged over the pixels,
    relative to the signal level; e is the root mean square of these means over the bands. Each
    block takes the largest e of itself and its neighbours. So the pull is weak where parts of the
    scene have another motion. A scene that moves below a fixed mask is coded by other mask pixels
    in each snapshot, so the cubes improve from snapshot to snapshot. If e is below the tolerance in
    less than 30 % of the scene, the method starts anew.

    `begin` returns the reconstructor of one sequence; `run` reconstructs one snapshot alone.

    Args:
        method: a solver with ADMM on spectral components, such as `cassi.methods.auto`.
        iterations_each: iterations for a snapshot that has a prediction, >= 1.
        start: strength of the prior in the first of these iterations, relative to the signal level,
            > 0.
        weight: weight of the prediction, in [0, 1].
        tolerance: e at which the weight is halved, > 0.

    Raises:
        TypeError: the method is no solver with ADMM on spectral components.
        ValueError: a number is out of range.
    """

    iterations_each: int = 36
    start: float = 0.5
    weight: float = 0.2
    tolerance: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        method = self.method
        if not (
            isinstance(method, Solver)
            and isinstance(method.prior, Subspace)
            and isinstance(method.algorithm, ADMM)
        ):
            raise TypeError(
                "sequence: expected a solver of ADMM with a prior on spectral components, such as "
                f"solver=auto, got {type(self.method).__name__}; leave sequence=true out"
            )
        whole_number("iterations_each", self.iterations_each, 1)
        for name in ("start", "weight", "tolerance"):
            not_negative(f"Sequence {name}", vars(self)[name])
        if self.weight > 1 or not self.tolerance > 0 or not self.start > 0:
            raise ValueError("Sequence: expected a weight to 1, a start and a tolerance above 0")

    def begin(self) -> SequenceReconstructor:
        """Return the reconstructor of one sequence, which stores the last cube."""
        assert isinstance(self.method, Solver)
        return SequenceReconstructor(self.method, self)


class SequenceReconstructor:
    """One sequence of snapshots of one camera; see `Sequence`.

    Attributes:
        predicted_share: share of the last scene where e was below the tolerance; 0 after a new
            start.
        statistics: estimates from the first snapshot. Its noise, level and stopping point are used
            for all.
        followup_solver: the shorter solver for snapshots that have a prediction.
    """

    shares_batch, network = False, None

    def __init__(self, method: Solver, settings: Sequence) -> None:
        self.method, self.settings, self.count = method, settings, settings.iterations_each
        self.followup_solver: Solver | None = None
        self.statistics: Statistics | None = None
        self.cube: Tensor | None = None
        self.motion: Tensor | None = None
        self.predicted_share = 0.0

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return self.count + self.method.iterations

    @property
    def halo(self) -> int:
        """Number of lines beside a part of a scene that influence the result of the part."""
        return self.method.halo

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct the next snapshot: `(1, K, H, W')` → `(1, C, H, W)`."""
        return self.run(y, system).x

    def shorten(self, iterations: int) -> None:
        """Change the number of iterations for the snapshots that follow."""
        whole_number("iterations", iterations, 1)
        self.count = iterations

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct the next snapshot; see `cassi.solvers.Reconstructor.run`."""
        unpack_options(options, "sequence")
        solution = self._follow(y, system, options)
        is_stopped = solution is not None and solution.reason == "callback"
        is_other_scene = self.predicted_share < MIN_PREDICTED_SHARE and not is_stopped
        if solution is None or is_other_scene:
            # The callback got the iterations with the wrong prediction, so the history has them.
            history = [] if solution is None else solution.history
            solution = self._begin(y, system, options, history)
        self.cube = solution.checked().x
        return solution

    def _begin(
        self, y: Tensor, system: LinearSystem, options: Options, history: list[Iteration]
    ) -> Solution:
        """Reconstruct a snapshot without a prediction; prepare the solver for later snapshots."""
        method, prior = self.method, self.method.prior
        assert isinstance(prior, Subspace)
        history, seconds = list(history), history[-1].seconds if history else 0.0
        counter = CountingCallback(options.get("callback"), history, seconds)
        statistics = options.get("statistics")
        if statistics is None:
            statistics = Statistics(lambda: [(zero_bad_pixels(y, system), system)])
        run_options: Options = {**options, "statistics": statistics, "callback": counter}
        solution = method.run(y, system, **run_options)
        # Later runs anneal to the strength at which this run ended.
        count = method.iterations
        last = count if solution.stopped is None else min(count, solution.stopped.count)
        end = float(as_schedule(method.sigma)(last - 1, count))
        self.followup_solver = replace(
            method,
            prior=replace(prior, settle=1),  # the basis of a prediction is good at once
            sigma=Geometric(max(self.settings.start, end), end),
            noise=method.noise if solution.noise is None else float(solution.noise.max()),
            heldout=0.0,
        )
        self.statistics, self.motion, self.predicted_share = statistics, None, 0.0
        return replace(solution, history=history)

    def _follow(self, y: Tensor, system: LinearSystem, options: Options) -> Solution | None:
        """Reconstruct a snapshot from a prediction; None if there is no prediction."""
        last_cube = self.cube
        # A prediction needs single snapshots of one camera. If the camera has a guide, there is no
        # prediction, because the guide already pulls the components.
        if (
            last_cube is None
            or self.followup_solver is None
            or self.statistics is None
            or len(last_cube) > 1
            or not is_camera(system)
            or system.is_guided
            or tuple(last_cube.shape) != (len(y), *system.cube_shape)
        ):
            return None
        start = time.perf_counter()
        motion = find_motion(last_cube, zero_bad_pixels(y, system), system, self.motion)
        if not motion.isfinite().all():
            return None
        cube = move(last_cube, motion)
        # The part of the scene that enters at the border has no prediction.
        weight = self.settings.weight * is_inside(motion, *cube.shape[-2:])
        level, prior = self.statistics.level.to(cube), self.followup_solver.prior
        assert isinstance(prior, Subspace)
        run_prior = prior.begin()
        assert has_components(run_prior)
        pulled_prior = PredictionPrior(run_prior, cube / level, weight, self.settings.tolerance)
        history: list[Iteration] = []
        seconds = time.perf_counter() - start
        run_options: Options = {
            "x0": cube,
            "statistics": self.statistics,
            "callback": CountingCallback(options.get("callback"), history, seconds),
        }
        solver = replace(self.followup_solver, prior=pulled_prior, iterations=self.count)
        solution = solver.run(y, system, **run_options)
        if not solution.history:
            return None
        self.motion, self.predicted_share = motion, pulled_prior.predicted_share
        return replace(solution, history=history)


class PredictionPrior(PulledPrior):
    """The prior of one run on spectral components, with a pull towards a prediction of the cube.

    Args:
        prior: the prior of the run, on components.
        cube: the prediction, in signal levels, `(1, C, H, W)`.
        weight: weight of the prediction at each pixel, `(H, W)`.
        tolerance: error at which the weight is halved.

    Attributes:
        predicted_share: share of the scene where the error was below the tolerance in the last
            comparison.
    """

    side = 8
    """Side of a block, pixels. In a block, errors of the cube average out, another scene not."""

    def __init__(
        self, prior: ComponentPrior, cube: Tensor, weight: Tensor, tolerance: float
    ) -> None:
        super().__init__(prior, ENERGY_DIVISOR, MIN_RANK)
        self.cube, self.weight, self.tolerance = cube, weight, tolerance
        self.calls, self.predicted_share = 0, 1.0
        self.target_basis: object = None

    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Pull the components c of a cube F c towards the components of the prediction."""
        basis = self.prior.basis
        if self.target_basis is not basis:
            target = basis.analysis.mT @ self.cube.to(basis.analysis.dtype).flatten(2)
            self.target, self.target_basis = target.view_as(components), basis
        difference = self.target - components
        if self.calls % WEIGHT_INTERVAL == 0:
            self.weight_map = self._compute_weights(difference, basis.synthesis)
        self.calls += 1
        return torch.addcmul(components, difference, self.weight_map)

    def _compute_weights(self, difference: Tensor, synthesis: Tensor) -> Tensor:
        """Return w of `Sequence`, `(1, 1, H, W)`, from the difference of the components."""
        # The columns of F are orthogonal, so e² of a block is a weighted sum over components.
        squared_lengths = synthesis.square().sum(1)[..., None, None] / synthesis.shape[1]
        means = block_means(difference, self.side, 1)
        errors = (means.square() * squared_lengths).sum(1, keepdim=True)
        errors = max_pool2d(errors, 3, 1, 1)
        trust = 1 / (1 + errors / self.tolerance**2)
        self.predicted_share = float((trust > 0.5).float().mean())
        size = difference.shape[-2:]
        return self.weight * interpolate(trust, size=size, mode="bilinear", align_corners=False)
