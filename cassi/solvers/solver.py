"""An algorithm, a prior and their schedules bound together: a reconstructor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cassi.checks import not_negative, whole_number
from cassi.solvers.base import Algorithm, Callback, Prior, Solution
from cassi.solvers.gap import GAP
from cassi.solvers.linear_system import LinearSystem, check_order, damped_inverse
from cassi.solvers.loop import iterate
from cassi.solvers.schedules import Geometric, Schedule, as_schedule
from cassi.solvers.statistics import Statistics, check_noise, damped_schedule, signal_level

ALGORITHM, SIGMA = GAP(), Geometric(0.4, 0.1)


@dataclass(frozen=True)
class Solver:
    """Everything about an iterative reconstruction except camera and measurement.

    Args:
        prior: `(cube, sigma) -> cube`.
        algorithm: `GAP`, `ADMM`, ….
        iterations: at most this many.
        sigma: strength of the prior, a number or a schedule, relative to the `signal_level`.
        rho: ρ of the data step, a number or schedule; the algorithm's own if None.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.
        noise: relative to the root mean square of y; ρ rises with it. "auto" estimates it.
        consistent: end with a data step, for data consistency.

    Raises:
        ValueError: fewer than one iteration, a negative tolerance or noise.
    """

    prior: Prior
    algorithm: Algorithm = ALGORITHM
    iterations: int = 100
    sigma: float | Schedule = SIGMA
    rho: float | Schedule | None = None
    tol: float = 0.0
    noise: float | Literal["auto"] = "auto"
    consistent: bool = False
    halo: ClassVar[int] = 40
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check the parts and the numbers."""
        if not callable(self.prior):
            raise TypeError(f"prior: expected a callable, got {self.prior!r}")
        if not (hasattr(self.algorithm, "init") and hasattr(self.algorithm, "step")):
            raise TypeError(f"algorithm: expected GAP, ADMM, …, got {self.algorithm!r}")
        whole_number("iterations", self.iterations, 1)
        not_negative("tol", self.tol)
        check_noise(self.noise)

    @property
    def shares_batch(self) -> bool:
        """Whether a sample comes out the same whatever else is in its batch: no tolerance stops."""
        return self.tol == 0

    @torch.no_grad()
    def run(
        self,
        y: Tensor,
        system: LinearSystem,
        *,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        objective: bool = False,
        statistics: Statistics | None = None,
    ) -> Solution:
        """Reconstruct y and report how it went; the cube is in the unit in which A x = y.

        Args:
            y: measurement `(B, K, H, W')` of the camera; ValueError if it is unfit.
            system: the camera.
            x0: first cube `(B, C, H, W)`, in the units of the result.
            callback: called after every iteration with statistics and cube; True stops.
            objective: record the objective, in units of the squared signal level.
            statistics: of the whole measurement, where y is a part of one.
        """
        level = signal_level(y, system, statistics)
        rho = given = as_schedule(self.algorithm.rho if self.rho is None else self.rho)
        if getattr(self.algorithm, "damped", False):
            rho = damped_schedule(given, self.noise, y / level, system, statistics)

        def start() -> Tensor | None:
            if x0 is None and rho is not given:  # pinv blows up noise that dark pixels let through
                return damped_inverse(y / level, system, rho(0, self.iterations))
            return None if x0 is None else x0 / level

        solution = iterate(
            self.algorithm,
            y / level,
            system,
            self.prior,
            iterations=self.iterations,
            sigma=as_schedule(self.sigma),
            rho=rho,
            x0=start,
            tol=self.tol,
            callback=callback and (lambda iteration, x: callback(iteration, x * level)),
            objective=objective,
            statistics=statistics,
        )
        x = solution.x
        if self.consistent:
            x = system.data_step(x, y / level, rho(self.iterations - 1, self.iterations))
        return Solution(x * level, solution.history, solution.reason)

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
    """Reconstruct a cube `(B, C, H, W)` in one call; further arguments as for `Solver`."""
    check_order("solve", y, system)
    return Solver(prior, **settings).run(y, system, x0=x0, callback=callback).x
