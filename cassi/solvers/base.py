"""The protocols of iterative reconstruction."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.prior_protocols import Prior, Remembering, is_proximal
from cassi.prior_protocols import Proximal as Proximal  # a public name of `cassi.solvers`
from cassi.solvers.linear_system import LinearSystem, Rho, is_camera
from cassi.solvers.statistics import Statistics

S = TypeVar("S")


def begin(prior: Prior, system: LinearSystem | None = None) -> Prior:
    """Return the prior for one run: `prior.begin()`, or the prior itself if it has no `begin`.

    The result keeps the method `penalty` of the prior, if there is one. A camera that knows more of
    the scene than its measurement puts what it knows around the prior.
    """
    run = prior.begin() if isinstance(prior, Remembering) else prior
    if is_proximal(prior) and not is_proximal(run):
        run.penalty = prior.penalty  # type: ignore[attr-defined]  # made for this run alone
    return system.around_prior(run) if system is not None and is_camera(system) else run


@dataclass(frozen=True)
class State:
    """State of an algorithm: the current cube x `(B, C, H, W)`. Subclasses add fields.

    `residual` is y − Ax `(B, K, H', W')` where the algorithm computes it anyway, else None.
    """

    x: Tensor
    residual: Tensor | None = field(default=None, kw_only=True)

    def misfit(self, y: Tensor, system: LinearSystem) -> Length:
        """Return ‖y − Ax‖."""
        return Length(norm(y - system(self.x) if self.residual is None else self.residual))

    def norm(self) -> Length:
        """Return ‖x‖."""
        return Length(norm(self.x))

    def distance(self, other: State) -> Length:
        """Return ‖x − x'‖ from another state."""
        return Length(norm(self.x - other.x))


class Length(NamedTuple):
    """A length √(Σ (norms·scales)² + Σ squares), of which the host makes a number of its parts."""

    norms: Tensor
    scales: Tensor | None = None
    """Shaped like the norms; None is 1."""
    squares: Tensor | None = None
    """What rounding takes below 0 is 0."""

    @staticmethod
    def read(lengths: Sequence[Length]) -> list[float]:
        """Return the numbers; the host waits once."""
        if not lengths:
            return []
        parts = {id(t): t for length in lengths for t in length if t is not None}
        rest = iter(torch.cat([part.flatten() for part in parts.values()]).tolist())
        told = {key: list(itertools.islice(rest, part.numel())) for key, part in parts.items()}

        def number(norms: Tensor, scales: Tensor | None, squares: Tensor | None) -> float:
            values = told[id(norms)]
            if scales is not None:
                values = list(map(operator.mul, values, told[id(scales)]))
            beside = [] if squares is None else told[id(squares)]
            return math.hypot(*values, *(math.sqrt(max(0.0, square)) for square in beside))

        return [number(*length) for length in lengths]


def norm(value: Tensor) -> Tensor:
    """Return ‖value‖, a scalar, in float32 at least."""
    return (value.float() if value.dtype.itemsize < 4 else value).norm()


@runtime_checkable
class Algorithm(Protocol[S]):
    """Two pure functions; an algorithm owns no loop, no tensors and no schedule.

    Algorithms are subclasses, as `cassi.solvers.GAP`.
    """

    damped: ClassVar[bool] = False
    """Whether ρ is the damping of a data step: solvers raise it for noisy measurements."""
    divides: ClassVar[bool] = False
    """Whether it fits y exactly in the end: noise of dark pixels, divided by their light, comes
    back."""

    @property
    def rho(self) -> float:
        """The ρ >= 0 of the data step where no schedule gives another."""

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> S:
        """Return the first state, with the first cube x0 `(B, C, H, W)`.

        `statistics` are those of the whole measurement, where y is a part of it.
        """

    def step(
        self, state: S, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> S:
        """Return the next state; sigma is the prior's strength, rho the ρ of the data step."""

    def objective(
        self, state: S, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor | None:
        """Return what it minimises with a prior of this R(x), `(B,)`; None where that is nothing.

        See `cassi.solvers.objective.evaluate_objective`.
        """
        return None


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
    """Since the start, without the time of callbacks and of the objective."""
    sigma: float
    objective: float | None = None
    """The value that algorithm and prior minimise, where it was asked for and is defined."""


Callback = Callable[[Iteration, Any], bool | None]
"""Called after every iteration with its statistics and its cube; returning True stops the loop."""


@runtime_checkable
class Selective(Protocol):
    """A callback that needs the cube of some iterations only: to make it takes time."""

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the cube is needed; it may be None where not."""


def is_sampled(index: int, every: int, last: int) -> bool:
    """Return whether an iteration is the first, one of every so many, or the last."""
    return index in (1, last) or index % every == 0


def wants_cube(callback: Callback, iteration: Iteration) -> bool:
    """Return whether a callback needs the cube of this iteration."""
    return not isinstance(callback, Selective) or bool(callback.wants(iteration))


class Relay:
    """A callback that another one is called through, with cubes and iterations as it wants them.

    Args:
        callback: the other one, or None.
        cube: what it is given for a cube.
        iteration: what it is given for an iteration.
        is_over: ends the run where the other one does not.
    """

    def __init__(
        self,
        callback: Callback | None,
        cube: Callable[[Tensor], Tensor] = lambda x: x,
        iteration: Callable[[Iteration], Iteration] = lambda each: each,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.callback, self.cube, self.iteration, self.is_over = callback, cube, iteration, is_over

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the other callback needs the cube."""
        return self.callback is not None and wants_cube(self.callback, self.iteration(iteration))

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Call the other callback; True ends the run."""
        if self.callback is None:
            return self.is_over()
        cube = None if x is None else self.cube(x)
        return bool(self.callback(self.iteration(iteration), cube)) or self.is_over()


class Along(NamedTuple):
    """A cube on even bands along the dispersion."""

    x: Tensor
    """`(B, G, H, W)`"""
    grid: Any
    """A `cassi.systems.grid.Grid`."""


@dataclass(frozen=True)
class Solution:
    """A reconstructed cube `(B, C, H, W)`, and statistics of the run."""

    x: Tensor
    history: list[Iteration]
    reason: str
    """Why the loop ended: `iterations`, `tolerance`, `callback` or `diverged`."""
    noise: Tensor | None = None
    """Noise level that the method used, relative to the root mean square of y, `(B,)`.

    It comes from smooth windows or from held-out pixels. None where the method needs no level."""
    stopped: Any = None
    """A `cassi.solvers.early_stopping.StoppingPoint`, where held-out pixels stopped the run."""
    along: Along | None = None
    """The cube along the dispersion that x was read from; None where x was computed itself."""

    def measured(self, system: LinearSystem) -> Tensor:
        """Return what the camera measures of the cube, `(B, K, H', W')`."""
        if self.along is None:
            return system(self.x)
        return self.along.grid.camera(system)(self.along.x)

    def checked(self) -> Solution:
        """Return the solution itself; raise ValueError if no iteration was finite."""
        if not self.history:
            raise ValueError(
                "the solver diverged: the first iteration gave NaN or infinity; set a larger rho "
                "first, then check the scale of y and sigma"
            )
        return self


@dataclass(frozen=True)
class Pass:
    """The result of the finished passes of a run, or of the method that made its first cube.

    Attributes:
        passes: number of finished passes.
        x: their result, `(B, C, H, W)`.
        history: statistics of all their iterations.
        noise: noise level that the method used, `(B,)`; see `Solution`.
    """

    passes: int
    x: Tensor
    history: list[Iteration]
    noise: Tensor | None = None


class Checkpoint(Protocol):
    """Keeps the first cube and the result of the last pass, for a run that resumes."""

    def read(self, name: str) -> Pass | None:
        """Return what was kept under a name, `start` or `pass`; None if there is nothing."""

    def write(self, name: str, done: Pass) -> None:
        """Keep a result in place of the last one of this name."""


class Options(TypedDict, total=False):
    """What `Reconstructor.run` takes by name; all of it may be left out.

    Attributes:
        x0: first cube `(B, C, H, W)`, in the units of the result.
        callback: called after every iteration with statistics and cube; True stops.
        objective: record the objective of the first iteration, of every so many and of the last,
            where there is one; of a solver in units of the squared signal level. 0 is of none.
        statistics: of the whole measurement, where y is a part of one.
        checkpoint: keeps the results of passes, and has those of an earlier run; a method without
            passes leaves it alone.
    """

    x0: Tensor | None
    callback: Callback | None
    objective: int
    statistics: Statistics | None
    checkpoint: Checkpoint | None


def take(
    given: Options, owner: str = ""
) -> tuple[Tensor | None, Callback | None, int, Statistics | None]:
    """Return first cube, callback, objective and statistics.

    A method that takes no first cube names itself as the `owner`.
    """
    if unknown := given.keys() - Options.__optional_keys__:
        known = ", ".join(sorted(Options.__optional_keys__))
        raise TypeError(f"run: expected {known}, got {', '.join(sorted(unknown))}")
    x0 = given.get("x0")
    if owner and x0 is not None:
        raise ValueError(f"x0: expected None, a {owner} takes no first cube")
    return x0, given.get("callback"), given.get("objective", 0), given.get("statistics")


@runtime_checkable
class Runs(Protocol):
    """What is taken for a reconstructor."""

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y `(B, K, H, W')`, a measurement of the camera, and report how it went."""


class Reconstructor(Runs, Protocol):
    """Recovers a cube from a measurement: a solver, a network, or a function of the user."""

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""

    @property
    def halo(self) -> int:
        """Number of lines around a part of a scene that influence its result."""

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample does not depend on the rest of its batch."""

    @property
    def network(self) -> nn.Module | None:
        """The network that it runs, if any."""
