"""Snapshots in a row of one scene: the last cube predicts the next one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d
from typing_extensions import Unpack

from cassi.checks import not_negative, whole_number
from cassi.methods.motion import find_motion, inside, move
from cassi.methods.restarts import Counted
from cassi.methods.wrapper import Wrapper
from cassi.prior_protocols import ComponentPrior, has_components
from cassi.priors import Subspace
from cassi.priors.subspace import block_means
from cassi.pulled_prior import PulledPrior
from cassi.solvers import ADMM, Geometric, Iteration, LinearSystem, Solution, Solver, Statistics
from cassi.solvers.base import Options, take
from cassi.solvers.linear_system import is_camera, seen
from cassi.solvers.schedules import as_schedule

EVERY = 5
"""Iterations from one look at what has changed to the next."""
KEPT, RANK = 50.0, 8
"""With a prediction weak components are kept down to 1/50 of the energy, and 8 at the start."""
JOINED = 0.3
"""Share of the scene below which a prediction counts as none: the scene is another one."""


@dataclass(frozen=True)
class Sequence(Wrapper):
    """Reconstruct snapshots of one scene in their order, each from the cube of the one before.

    The first snapshot takes the method as it is. For every other one, the last cube is moved as the
    scene moved (`cassi.methods.motion`). This prediction p is the first cube, and pulls in every
    iteration of a shorter run:

        x ← x + w (p − x),   w = weight / (1 + e²/tolerance²)

    e is the root mean square, over bands, of the means of x − p over blocks of 8×8 pixels, relative
    to the signal level; a block takes the largest e of its neighbours. So parts that move by
    themselves are left alone. A scene that moves below a fixed mask is coded anew in each snapshot,
    and the cubes get better from one to the next. Where less than 30 % of the scene are as
    predicted, the method starts afresh.

    `begin` returns the reconstructor of one sequence; `run` reconstructs one snapshot alone.

    Args:
        method: a solver with ADMM on spectral components, such as `cassi.methods.auto`.
        iterations_each: of a snapshot that has a prediction, >= 1.
        start: strength of the prior in the first of them, relative to the signal level, > 0.
        weight: of the prediction, in [0, 1].
        tolerance: e at which the weight is halved, > 0.

    Raises:
        TypeError: the method is another one.
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

    def begin(self) -> Following:
        """Return the reconstructor of one sequence, which keeps the last cube."""
        assert isinstance(self.method, Solver)
        return Following(self.method, self)


class Following:
    """One sequence of snapshots of one camera; see `Sequence`.

    Attributes:
        joined: share of the last scene that was as predicted; 0 where it started afresh.
    """

    shares_batch, network = False, None

    def __init__(self, method: Solver, of: Sequence) -> None:
        self.method, self.of, self.count = method, of, of.iterations_each
        self.shorter: Solver | None = None
        self.known: Statistics | None = None
        self.cube: Tensor | None = None
        self.motion: Tensor | None = None
        self.joined = 0.0

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return self.count + self.method.iterations

    @property
    def halo(self) -> int:
        """Number of lines around a part of a scene that influence its result."""
        return self.method.halo

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct the next snapshot: `(1, K, H, W')` → `(1, C, H, W)`."""
        return self.run(y, system).x

    def shorten(self, iterations: int) -> None:
        """Take another number of iterations for the snapshots that follow."""
        whole_number("iterations", iterations, 1)
        self.count = iterations

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct the next snapshot; see `cassi.solvers.Reconstructor.run`."""
        take(given, "sequence")
        solution = self._follow(y, system, given)
        stopped = solution is not None and solution.reason == "callback"
        if solution is None or (self.joined < JOINED and not stopped):
            solution = self._begin(y, system, given, [] if solution is None else solution.history)
        self.cube = solution.checked().x
        return solution

    def _begin(
        self, y: Tensor, system: LinearSystem, given: Options, before: list[Iteration]
    ) -> Solution:
        method, prior = self.method, self.method.prior
        assert isinstance(prior, Subspace)
        history, seconds = list(before), before[-1].seconds if before else 0.0
        counted = Counted(given.get("callback"), history, seconds)
        # Noise, level and stopping point hold for the snapshots that follow.
        known = given.get("statistics")
        known = Statistics(lambda: [(seen(y, system), system)]) if known is None else known
        more: Options = {**given, "statistics": known, "callback": counted}
        solution = method.run(y, system, **more)
        count = method.iterations
        last = count if solution.stopped is None else min(count, solution.stopped.count)
        end = float(as_schedule(method.sigma)(last - 1, count))
        noise = method.noise if solution.noise is None else float(solution.noise.max())
        shorter = replace(
            method,
            prior=replace(prior, settle=1),
            sigma=Geometric(max(self.of.start, end), end),
            noise=noise,
            heldout=0.0,
        )
        self.shorter, self.known, self.motion, self.joined = shorter, known, None, 0.0
        return replace(solution, history=history)

    def _follow(self, y: Tensor, system: LinearSystem, given: Options) -> Solution | None:
        last = self.cube
        if (
            last is None
            or self.shorter is None
            or self.known is None
            or len(last) > 1
            or not is_camera(system)
            or system.is_guided
            or tuple(last.shape) != (len(y), *system.cube_shape)
        ):
            return None
        began = time.perf_counter()
        motion = find_motion(last, seen(y, system), system, self.motion)
        if not motion.isfinite().all():
            return None
        cube = move(last, motion)
        there = inside(motion, *cube.shape[-2:])
        level, prior = self.known.level.to(cube), self.shorter.prior
        assert isinstance(prior, Subspace)
        smooth = prior.begin()
        assert has_components(smooth)
        near = Predicted(smooth, cube / level, self.of.weight * there, self.of.tolerance)
        history: list[Iteration] = []
        counted = Counted(given.get("callback"), history, time.perf_counter() - began)
        more: Options = {"x0": cube, "statistics": self.known, "callback": counted}
        shorter = replace(self.shorter, prior=near, iterations=self.count)
        solution = shorter.run(y, system, **more)
        if not solution.history:
            return None
        self.motion, self.joined = motion, near.joined
        return replace(solution, history=history)


class Predicted(PulledPrior):
    """The prior of one run on spectral components, with a pull towards a prediction of the cube.

    Attributes:
        joined: share of the scene that is as predicted, in the last look.
    """

    side = 8

    def __init__(
        self, prior: ComponentPrior, cube: Tensor, weight: Tensor, tolerance: float
    ) -> None:
        super().__init__(prior, KEPT, RANK)
        self.cube, self.weight, self.tolerance = cube, weight, tolerance
        self.calls, self.joined = 0, 1.0
        self.aimed: object = None  # of the aim

    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Pull components c of a cube F c to those of the prediction."""
        c = components
        basis = self.prior.basis
        if self.aimed is not basis:
            aim = basis.analysis.mT @ self.cube.to(basis.analysis.dtype).flatten(2)
            self.aim, self.aimed = aim.view_as(c), basis
        away = self.aim - c
        if self.calls % EVERY == 0:
            self.map = self._weigh(away, basis.synthesis)
        self.calls += 1
        return torch.addcmul(c, away, self.map)

    def _weigh(self, away: Tensor, synthesis: Tensor) -> Tensor:
        sizes = synthesis.square().sum(1)[..., None, None] / synthesis.shape[1]
        errors = (block_means(away, self.side, 1).square() * sizes).sum(1, keepdim=True)
        errors = max_pool2d(errors, 3, 1, 1)
        trust = 1 / (1 + errors / self.tolerance**2)
        self.joined = float((trust > 0.5).float().mean())
        size = away.shape[-2:]
        smooth = interpolate(trust, size=size, mode="bilinear", align_corners=False)
        return smooth * self.weight
