"""The solver: a reconstructor made of an algorithm, a prior and their schedules."""

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative, whole_number
from cassi.prior_protocols import Prior
from cassi.solvers.base import (
    Algorithm,
    Callback,
    CallbackWrapper,
    Options,
    Solution,
    unpack_options,
)
from cassi.solvers.early_stopping import (
    HeldOutMonitor,
    StoppingPoint,
    find_stopping_point,
    truncate,
)
from cassi.solvers.gap import GAP
from cassi.solvers.linear_system import (
    CameraSystem,
    LinearSystem,
    check_order,
    is_camera,
    solve_from_zero,
    zero_bad_pixels,
)
from cassi.solvers.loop import iterate
from cassi.solvers.refinement import limit_to_noise
from cassi.solvers.schedules import AnySchedule, Geometric, NoiseDependent, Schedule, as_schedule
from cassi.solvers.statistics import (
    MIN_NOISE,
    Statistics,
    check_noise,
    damped_schedule,
    relative_noise,
    root_mean_square,
    signal_level,
)

ALGORITHM, SIGMA = GAP(), Geometric(0.4, 0.1)
HALO = 40
"""Number of lines beside a part of a scene that influence the result of the part.

docs/development/experiments/blocks.md compares numbers of lines."""
N_LAST = 20
"""Number of iterations at the last strength, after the annealing was stopped early."""


@dataclass(frozen=True, eq=False)
class _Preparation:
    """The inputs of one run of a solver: y in signal levels, schedules and noise."""

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
    """Noise level of the schedules, relative to the root mean square of y, `(B,)`."""
    min_misfit: Tensor | None
    """Least ‖y − Ax‖/‖y‖ after the last data step, `(B,)`; None if there is no last data step."""
    stopping_point: StoppingPoint | None

    def make_first_cube(self, x0: Tensor | None) -> Tensor | None:
        """Return the first cube in signal levels, `(B, C, H, W)`; None for the `pinv` of y."""
        if x0 is not None:
            return x0 / self.level
        if not self.is_damped:
            return None
        # The pseudo-inverse would amplify the noise behind dark pixels of the mask.
        return solve_from_zero(self.y, self.system, self.rho(0, self.iterations))

    def make_result(self, x: Tensor) -> Tensor:
        """Return a cube in the unit of the measurement, after the last data step, if any."""
        if self.min_misfit is not None:
            rho = self.rho(self.iterations - 1, self.iterations)
            fitted_x = self.system.data_step(x, self.y, rho)
            x = limit_to_noise(x, fitted_x, self.y, self.system, self.min_misfit)
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
        rho: ρ of the data step, a number or schedule; None takes the ρ of the algorithm.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.
        noise: noise level relative to the root mean square of y, >= 0; "auto" estimates it. ρ
            rises with the noise.
        consistent: end with a data step, which fits y no closer than the noise.
        heldout: share in [0, 0.5] of the detector pixels that are held out to stop the annealing
            early, if `noise="auto"` finds noise; see `cassi.solvers.early_stopping`. 0 never stops
            early.

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
        """Whether the result of a sample is independent of the other samples of its batch.

        A tolerance or held-out pixels stop all samples at the same iteration. The result is then
        not independent.
        """
        return self.tol == 0 and not (self.heldout > 0 and self.noise == "auto")

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; return the cube and the history. The cube has the unit in which A x = y.

        Args:
            y: measurement `(B, K, H', W')` of the camera.
            system: the camera.
            options: see `Options`.

        Raises:
            TypeError: y is not a tensor, or an option is unknown.
            ValueError: y is not a finite `(B, K, H', W')`.
        """
        x0, callback, objective, statistics = unpack_options(options)
        start = time.perf_counter()
        preparation = self._prepare(zero_bad_pixels(y, system), system, statistics)
        wrapped_callback = None
        if callback is not None:
            wrapped_callback = CallbackWrapper(callback, lambda x: x * preparation.level)
        solution = iterate(
            self.algorithm,
            preparation.y,
            system,
            self.prior,
            iterations=preparation.iterations,
            sigma=preparation.sigma,
            rho=preparation.rho,
            # A function makes the cube, because an argument stays in memory for the whole run.
            x0=lambda: preparation.make_first_cube(x0),
            tol=self.tol,
            callback=wrapped_callback,
            objective=objective,
            statistics=preparation.statistics,
            began=start,
        )
        x = preparation.make_result(solution.x)
        return Solution(
            x, solution.history, solution.reason, preparation.noise, preparation.stopping_point
        )

    def _prepare(
        self, good_y: Tensor, system: LinearSystem, statistics: Statistics | None
    ) -> _Preparation:
        """Estimate level and noise, find the stopping point, and adapt the schedules to them."""
        algorithm, may_stop = self.algorithm, self.heldout > 0 and self.noise == "auto"
        if statistics is None and may_stop and is_camera(system):
            # The run that finds the stopping point uses the same statistics.
            statistics = Statistics(lambda: [(good_y, system)])
        level = signal_level(good_y, system, statistics, dark=algorithm.fits_exactly)
        y, noise, min_misfit, point = good_y / level, None, None, None
        sigma: AnySchedule = as_schedule(self.sigma)
        base_rho = as_schedule(algorithm.rho if self.rho is None else self.rho)
        rho: AnySchedule = base_rho
        count = self.iterations
        adapts_sigma = isinstance(sigma, NoiseDependent)
        # An estimate costs time. A run whose parameters do not depend on noise needs none.
        if algorithm.is_damped or adapts_sigma or self.consistent or self.heldout:
            noise = min_misfit = relative_noise(y, system, self.noise, statistics)
        if noise is not None and statistics is not None and may_stop and is_camera(system):
            point = self._find_stopping_point(noise, statistics)
        if noise is not None and point is not None:
            count = min(count, point.count + N_LAST)
            noise = noise * point.factor
            # The held-out error is an upper bound of the noise, so the result may fit y down to
            # this error.
            min_misfit = torch.minimum(noise, point.error / root_mean_square(good_y))
        if noise is not None and algorithm.is_damped:
            rho = damped_schedule(base_rho, noise, y, system, statistics)
        if noise is not None and isinstance(sigma, NoiseDependent):
            sigma = sigma.for_noise(noise, y, rho(count - 1, count))
        if point is not None:
            sigma = truncate(sigma, self.iterations, point.count)
        return _Preparation(
            y=y,
            level=level,
            system=system,
            statistics=statistics,
            iterations=count,
            sigma=sigma,
            rho=rho,
            is_damped=rho is not base_rho,
            noise=noise,
            min_misfit=min_misfit if self.consistent else None,
            stopping_point=point,
        )

    def _find_stopping_point(self, noise: Tensor, statistics: Statistics) -> StoppingPoint | None:
        """Return where held-out pixels stop the annealing; None if there is no noise.

        The statistics keep the result, so that all blocks of a scene stop at the same point.
        """
        if not bool((noise > MIN_NOISE).any()):
            return None

        def find() -> StoppingPoint:
            y, system = statistics.brightest()
            camera = cast(CameraSystem, system)  # a camera's parts are cameras
            means = noise.mean(), statistics.size.mean().to(noise)
            noise_ratio, y_rms = torch.stack(means).tolist()  # one copy to the host for both

            def run(
                y: Tensor, camera: CameraSystem, monitor: HeldOutMonitor, factor: float
            ) -> None:
                # With factor 1 every sample keeps the noise of the statistics.
                trial = replace(
                    self,
                    iterations=monitor.last,
                    noise="auto" if factor == 1 else factor * noise_ratio,
                    heldout=0,
                    consistent=False,
                )
                trial.run(y, camera, callback=monitor, statistics=statistics)

            heldout, count = self.heldout, self.iterations
            return find_stopping_point(y, camera, heldout, count, noise_ratio * y_rms, run)

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
