"""The protocols of iterative reconstruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.solvers.linear_system import LinearSystem
from cassi.solvers.statistics import Statistics

Prior = Callable[[Tensor, float], Tensor]
"""(cube, sigma) → cube: removes disturbance of standard deviation sigma from the cube."""


class Remembering(Protocol):
    """A prior that learns from call to call within one run: a warm start, a fitted network."""

    def begin(self) -> Prior:
        """Return the prior of one run, with an empty memory of its own.

        Where that remembers something per band, it may have a method `turn(R)`, which is called
        before its bands change to Rᵀx, R `(B, C, C')`; see `cassi.priors.Subspace`.
        """
        ...


class Proximal(Protocol):
    """A prior that is a proximal map: prior(v, σ) = argmin_u ½‖u − v‖² + R(u)."""

    def penalty(self, x: Tensor, sigma: Any) -> Tensor | None:
        """Return R(x) of each sample, `(B,)`; None where these parameters have no R."""
        ...


def begin(prior: Prior) -> Prior:
    """Return the prior for one run: what `prior.begin()` gives where there is one, else itself.

    It has the `penalty` of the prior, if that has one.
    """
    run: Any = prior.begin() if hasattr(prior, "begin") else prior
    if hasattr(prior, "penalty") and not hasattr(run, "penalty"):
        run.penalty = prior.penalty  # a function made for this run alone
    return run


@dataclass(frozen=True)
class State:
    """Where an algorithm stands: the current cube, and what a subclass adds to it.

    `residual` is y − Ax when the algorithm has computed it anyway.
    """

    x: Tensor
    residual: Tensor | None = field(default=None, kw_only=True)

    def norm(self) -> Tensor:
        """Return ‖x‖, a scalar."""
        return norm(self.x)

    def distance(self, other: Any) -> Tensor:
        """Return ‖x − x'‖ from another state, a scalar."""
        return norm(self.x - other.x)


def norm(value: Tensor) -> Tensor:
    """Return ‖value‖, a scalar, in float32 at least."""
    return (value.float() if value.dtype.itemsize < 4 else value).norm()


class Algorithm(Protocol):
    """Two pure functions; an algorithm owns no loop, no tensors and no schedule.

    With a class attribute `damped = True` it says that its ρ is the damping of a data step, to be
    raised for noisy measurements.
    """

    @property
    def rho(self) -> float:
        """The ρ of the data step where no schedule gives another."""
        ...

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> Any:
        """Return the first state, of the first cube x0; y may be a part of a measurement."""
        ...

    def step(
        self, state: Any, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Any
    ) -> Any:
        """Return the next state."""
        ...


@dataclass(frozen=True)
class Iteration:
    """Statistics of one iteration."""

    index: int
    """Counts from 1."""
    residual: float
    """‖y − Ax‖/‖y‖"""
    change: float
    """‖x − x_previous‖/‖x‖"""
    seconds: float
    """Since the start, without the time spent in callbacks and on the objective."""
    sigma: float
    objective: float | None = None
    """What algorithm and prior minimise, where it was asked for and there is such a thing."""


Callback = Callable[[Iteration, Any], bool | None]
"""Called with the statistics and the cube after every iteration; returning True stops the loop.

Where it has a method `wants(iteration)` that returns False, the cube, which takes time to make, may
be None."""


def wants_cube(callback: Callback, iteration: Iteration) -> bool:
    """Return whether a callback looks at the cube of this iteration."""
    wants = getattr(callback, "wants", None)
    return wants is None or bool(wants(iteration))


@dataclass(frozen=True)
class Solution:
    """A reconstructed cube and how the loop came to it."""

    x: Tensor
    history: list[Iteration]
    reason: str
    """Why the loop ended: `iterations`, `tolerance`, `callback` or `diverged`."""
    noise: Tensor | None = None
    """That the method went by, relative to the root mean square of y, `(B,)`, where it needed to
    know: what plain windows show, or what pixels held out say of it."""
    stopped: Any = None
    """Where held-out pixels stopped the run, a `cassi.solvers.early_stopping.StoppingPoint`."""

    def checked(self) -> Solution:
        """Return the solution itself; ValueError where not even one iteration was finite."""
        if not self.history:
            raise ValueError(
                "the solver diverged at its first iteration; check scale, rho and sigma"
            )
        return self


class Options(TypedDict, total=False):
    """What `Reconstructor.run` takes by name; all of it may be left out.

    Attributes:
        x0: first cube `(B, C, H, W)`, in the units of the result.
        callback: called after every iteration with statistics and cube; True stops.
        objective: record the objective, where there is one; of a solver in units of the squared
            signal level.
        statistics: of the whole measurement, where y is a part of one.
    """

    x0: Tensor | None
    callback: Callback | None
    objective: bool
    statistics: Statistics | None


def take(
    given: Options, owner: str = ""
) -> tuple[Tensor | None, Callback | None, bool, Statistics | None]:
    """Return first cube, callback, objective and statistics.

    Args:
        given: what a method was given by name.
        owner: of a method that takes no first cube.

    Raises:
        TypeError: a name is not one of `Options`.
        ValueError: there is a first cube where the method takes none.
    """
    if unknown := given.keys() - Options.__optional_keys__:
        known = ", ".join(sorted(Options.__optional_keys__))
        raise TypeError(f"run: expected {known}, got {', '.join(sorted(unknown))}")
    x0 = given.get("x0")
    if owner and x0 is not None:
        raise ValueError(f"x0: expected None, a {owner} takes no first cube")
    return x0, given.get("callback"), given.get("objective", False), given.get("statistics")


class Reconstructor(Protocol):
    """What recovers a cube from a measurement: a solver, a network, a function of the user's."""

    @property
    def iterations(self) -> int:
        """At most so many times `run` calls the callback."""
        ...

    @property
    def halo(self) -> int:
        """Lines around a part of a scene that have an influence on it."""
        ...

    @property
    def shares_batch(self) -> bool:
        """Whether a sample comes out the same whatever else is in its batch."""
        ...

    @property
    def network(self) -> nn.Module | None:
        """The network, where it is one."""
        ...

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y `(B, K, H, W')`, a measurement of the camera, and report how it went."""
        ...
