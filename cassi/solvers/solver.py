"""An algorithm, a prior and their schedules bound together: a reconstructor."""

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative, whole_number
from cassi.prior_protocols import Prior
from cassi.solvers.base import Algorithm, Callback, Options, Relay, Solution, take
from cassi.solvers.early_stopping import (
    HeldOutMonitor,
    StoppingPoint,
    find_stopping_point,
    truncated,
)
from cassi.solvers.gap import GAP
from cassi.solvers.linear_system import (
    Camera,
    LinearSystem,
    check_order,
    damped_start,
    is_camera,
    seen,
)
from cassi.solvers.loop import iterate
from cassi.solvers.refinement import no_closer
from cassi.solvers.schedules import AnySchedule, Geometric, NoiseDependent, Schedule, as_schedule
from cassi.solvers.statistics import (
    UNSEEN,
    Statistics,
    check_noise,
    damped_schedule,
    relative_noise,
    root_mean_square,
    signal_level,
)

ALGORITHM, SIGMA = GAP(), Geometric(0.4, 0.1)
HALO = 40
LAST = 20
"""Iterations at the last strength, where the annealing is stopped early."""


@dataclass(frozen=True, eq=False)
class _Preparation:
    """One run of a solver: its measurement in signal levels, its schedules and its noise."""

    y: Tensor
    level: Tensor  # (B, 1, 1, 1)
    system: LinearSystem
    statistics: Statistics | None
    iterations: int
    sigma: AnySchedule
    rho: AnySchedule
    is_damped: bool
    """Whether noise raises ρ."""
    noise: Tensor | None
    """That the run goes by, relative to the root mean square of y, `(B,)`."""
    bound: Tensor | None
    """The same, of the residual that the result has at least; None: no last data step."""
    stopping_point: StoppingPoint | None

    def first_cube(self, x0: Tensor | None) -> Tensor | None:
        """Return the first cube in signal levels, `(B, C, H, W)`; None: the `pinv` of y."""
        if x0 is not None:
            return x0 / self.level
        if not self.is_damped:
            return None
        # The pseudo-inverse amplifies noise that dark mask pixels let through.
        return damped_start(self.y, self.system, self.rho(0, self.iterations))

    def result(self, x: Tensor) -> Tensor:
        """Return the last cube, after a data step if asked for, in the unit of the measurement."""
        if self.bound is not None:
            rho = self.rho(self.iterations - 1, self.iterations)
            stepped = self.system.data_step(x, self.y, rho)
            x = no_closer(x, stepped, self.y, self.system, self.bound)
        return x * self.level


@dataclass(frozen=True)
class Solver:
    """An iterative reconstruction: a prior, an algorithm, and their schedules.

    To start, repeat, blend or limit a solver, wrap it in a reconstructor of `cassi.methods`.

    Args:
        prior: `(cube, sigma) -> cube`.
        algorithm: `GAP`, `ADMM`, ….
        iterations: at most this many.
        sigma: strength of the prior, a number or a schedule, relative to the `signal_level`.
        rho: ρ of the data step, a number or schedule; the algorithm's own if None.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.
        noise: relative to the root mean square of y, >= 0; ρ rises with it. "auto" estimates it.
        consistent: end with a data step, for data consistency; no closer than the noise.
        heldout: share in [0, 0.5] of the detector pixels that are held out to stop the annealing
            early, where "auto" finds noise; see `cassi.solvers.early_stopping`. 0: never.

    Raises:
        TypeError: the prior is not callable, or the algorithm has no `init` and `step`.
        ValueError: fewer than one iteration, a negative tolerance or noise, a share out of range.
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
    halo: ClassVar[int] = HALO
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check the parts and the numbers."""
        if not callable(self.prior):
            raise TypeError(f"prior: expected a callable, got {self.prior!r}")
        if isinstance(self.algorithm, type):
            name = self.algorithm.__name__
            raise TypeError(f"algorithm: expected {name}(), got the class {name}")
        if not isinstance(self.algorithm, Algorithm):
            raise TypeError(f"algorithm: expected GAP(), ADMM(), …, got {self.algorithm!r}")
        whole_number("iterations", self.iterations, 1)
        not_negative("tol", self.tol)
        check_noise(self.noise)
        if not 0 <= self.heldout <= 0.5:
            raise ValueError(f"heldout: expected a share from 0 to 0.5, got {self.heldout}")

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample does not depend on the rest of its batch.

        It does with a tolerance or held-out pixels: they stop all samples at the same iteration.
        """
        return self.tol == 0 and not (self.heldout > 0 and self.noise == "auto")

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y and report how it went; the cube is in the unit in which A x = y.

        Args:
            y: measurement `(B, K, H', W')` of the camera.
            system: the camera.
            given: see `Options`.
        """
        x0, callback, objective, statistics = take(given)
        began = time.perf_counter()
        ready = self._prepare(seen(y, system), system, statistics)
        solution = iterate(
            self.algorithm,
            ready.y,
            system,
            self.prior,
            iterations=ready.iterations,
            sigma=ready.sigma,
            rho=ready.rho,
            x0=lambda: ready.first_cube(x0),
            tol=self.tol,
            callback=None if callback is None else Relay(callback, lambda x: x * ready.level),
            objective=objective,
            statistics=ready.statistics,
            began=began,
        )
        x = ready.result(solution.x)
        return Solution(x, solution.history, solution.reason, ready.noise, ready.stopping_point)

    def _prepare(
        self, measured: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> _Preparation:
        """Estimate level and noise, find the stopping point, and adapt the schedules to them."""
        algorithm, may_stop = self.algorithm, self.heldout > 0 and self.noise == "auto"
        if statistics is None and may_stop and is_camera(system):
            statistics = Statistics(lambda: [(measured, system)])  # both runs ask for them
        level = signal_level(measured, system, statistics, dark=algorithm.divides)
        y, noise, bound, point = measured / level, None, None, None
        sigma: AnySchedule = as_schedule(self.sigma)
        count, own = self.iterations, as_schedule(algorithm.rho if self.rho is None else self.rho)
        rho: AnySchedule = own
        adapts = isinstance(sigma, NoiseDependent)
        if algorithm.damped or adapts or self.consistent or self.heldout:
            noise = bound = relative_noise(y, system, self.noise, statistics)
        if noise is not None and statistics is not None and may_stop and is_camera(system):
            point = self._find_stopping_point(noise, statistics)
        if noise is not None and point is not None:
            count = min(count, point.count + LAST)
            noise = noise * point.factor
            bound = torch.minimum(noise, point.error / root_mean_square(measured))
        if noise is not None and algorithm.damped:
            rho = damped_schedule(own, noise, y, system, statistics)
        if noise is not None and isinstance(sigma, NoiseDependent):
            sigma = sigma.told(noise, y, rho(count - 1, count))
        if point is not None:
            sigma = truncated(sigma, self.iterations, point.count)
        bound, is_damped = bound if self.consistent else None, rho is not own
        parts = y, level, system, statistics, count, sigma, rho, is_damped
        return _Preparation(*parts, noise, bound, point)

    def _find_stopping_point(self, noise: Tensor, statistics: Statistics) -> StoppingPoint | None:
        """Find where held-out pixels stop the annealing, once for a measurement; None: no noise."""
        if not bool((noise > UNSEEN).any()):
            return None

        def find() -> StoppingPoint:
            y, brightest = statistics.brightest()
            camera = cast(Camera, brightest)  # a part of one
            share, size = torch.stack((noise.mean(), statistics.size.mean().to(noise))).tolist()

            def run(y: Tensor, camera: Camera, monitor: HeldOutMonitor, factor: float) -> None:
                setting: float | Literal["auto"] = "auto" if factor == 1 else factor * share
                count = monitor.last
                same = replace(self, iterations=count, noise=setting, heldout=0, consistent=False)
                same.run(y, camera, callback=monitor, statistics=statistics)

            heldout, count = self.heldout, self.iterations
            return find_stopping_point(y, camera, heldout, count, share * size, run)

        return statistics.remember(self, find)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


def solve(
    y: Tensor,
    system: LinearSystem,
    *,
    prior: Prior,
    x0: Tensor | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> Tensor:
    """Reconstruct a cube in one call.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        prior: `(cube, sigma) -> cube`.
        x0: first cube `(B, C, H, W)`, in the unit of the result.
        callback: called after every iteration with statistics and cube; True stops the run.
        settings: further arguments of `Solver`, such as `algorithm` and `iterations`.

    Returns:
        The cube `(B, C, H, W)`, in the unit in which A x = y.

    Raises:
        TypeError: measurement and camera are in the wrong order, or an argument has a wrong type.
        ValueError: a number is out of range, or y is not a finite `(B, K, H', W')`.
    """
    check_order("solve", y, system)
    return Solver(prior, **settings).run(y, system, x0=x0, callback=callback).x
