"""What a solver finds out of a measurement before it runs."""

from dataclasses import dataclass

from torch import Tensor

from cassi.solvers.early_stopping import StoppingPoint
from cassi.solvers.linear_system import LinearSystem, damped_start
from cassi.solvers.refinement import no_closer
from cassi.solvers.schedules import AnySchedule
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Preparation:
    """One run of a solver: its measurement in signal levels, its schedules and its noise.

    Attributes:
        y: measurement without bad pixels, in signal levels, `(B, K, H', W')`.
        level: the signal level, `(B, 1, 1, 1)`.
        system: the camera.
        statistics: of the whole measurement, where they are asked for more than once.
        iterations: at most this many.
        sigma: schedule of the prior's strength.
        rho: schedule of ρ.
        is_damped: whether noise raises ρ.
        noise: that the run goes by, relative to the root mean square of y, `(B,)`; None where it
            needs none.
        bound: the same, of the residual that the result has at least; None: no last data step.
        stopping_point: where held-out pixels stop the annealing; None where they do not.
    """

    y: Tensor
    level: Tensor
    system: LinearSystem
    statistics: Statistics | None
    iterations: int
    sigma: AnySchedule
    rho: AnySchedule
    is_damped: bool
    noise: Tensor | None
    bound: Tensor | None
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
