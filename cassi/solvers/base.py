"""The protocols of iterative reconstruction: algorithms, callbacks, solutions, reconstructors."""

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
    TypeGuard,
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

    The result keeps the method `penalty` of the prior, if there is one. A camera that has a guide
    of the scene wraps the prior (`around_prior`).
    """
    run = prior.begin() if isinstance(prior, Remembering) else prior
    if is_proximal(prior) and not is_proximal(run):
        run.penalty = prior.penalty  # type: ignore[attr-defined]  # an object of this run alone
    return system.around_prior(run) if system is not None and is_camera(system) else run


@dataclass(frozen=True)
class State:
    """State of an algorithm: the current cube x `(B, C, H, W)`. Subclasses add fields.

    `residual` is y − Ax `(B, K, H', W')` if the algorithm computes it anyway, else None.
    """

    x: Tensor
    residual: Tensor | None = field(default=None, kw_only=True)

    def misfit(self, y: Tensor, system: LinearSystem) -> Length:
        """Return ‖y − Ax‖."""
        return Length(norm(y - system(self.x) if self.residual is None else self.residual))

    def norm(self) -> Length:
        """Return ‖x‖."""
        return Length(norm(self.x))

    def distance(self, previous: State) -> Length:
        """Return ‖x − x'‖ from the previous state."""
        return Length(norm(self.x - previous.x))


class Length(NamedTuple):
    """A Euclidean length in parts: √(Σ (norms·scales)² + Σ squares).

    The parts stay on the device until `read`, and the host adds them up. One `read` takes many
    lengths, because the host waits for the device at each read.
    """

    norms: Tensor
    """Euclidean norms of parts, of any shape."""
    scales: Tensor | None = None
    """Factors of the norms, of the same shape; None is 1."""
    squares: Tensor | None = None
    """Squared norms of further parts. A square that rounding makes negative counts as 0."""

    @staticmethod
    def read(lengths: Sequence[Length]) -> list[float]:
        """Return the lengths as numbers; the host waits once."""
        if not lengths:
            return []
        # Lengths may share a tensor, such as the scales of one basis. Each tensor is copied once.
        tensors = {id(t): t for length in lengths for t in length if t is not None}
        numbers = iter(torch.cat([tensor.flatten() for tensor in tensors.values()]).tolist())
        values_of = {
            key: list(itertools.islice(numbers, tensor.numel())) for key, tensor in tensors.items()
        }

        def add_up(norms: Tensor, scales: Tensor | None, squares: Tensor | None) -> float:
            values = values_of[id(norms)]
            if scales is not None:
                values = list(map(operator.mul, values, values_of[id(scales)]))
            square_values = [] if squares is None else values_of[id(squares)]
            return math.hypot(*values, *(math.sqrt(max(0.0, square)) for square in square_values))

        return [add_up(*length) for length in lengths]


def norm(value: Tensor) -> Tensor:
    """Return ‖value‖, a scalar, in float32 at least: float16 overflows above 65504."""
    return (value.float() if value.dtype.itemsize < 4 else value).norm()


@runtime_checkable
class Algorithm(Protocol[S]):
    """An iteration as two pure functions, `init` and `step`.

    An algorithm owns no loop, no tensors and no schedule. `cassi.solvers.GAP` and the other
    algorithms are subclasses.
    """

    is_damped: ClassVar[bool] = False
    """Whether ρ is the damping of a data step. Solvers raise ρ for noisy measurements."""
    fits_exactly: ClassVar[bool] = False
    """Whether the last cube fits y exactly. If so, it contains the noise of dark pixels divided by
    their small transmission, and the signal level must count these pixels."""

    @property
    def rho(self) -> float:
        """The ρ >= 0 of the data step; a schedule of the solver replaces it."""

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> S:
        """Return the first state, with the first cube x0 `(B, C, H, W)`.

        `statistics` are estimates from the whole measurement, if y is a part of it.
        """

    def step(
        self, state: S, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Rho
    ) -> S:
        """Return the next state; sigma is the prior's strength, rho the ρ of the data step."""

    def objective(
        self, state: S, y: Tensor, system: LinearSystem, penalty: Tensor, rho: Rho
    ) -> Tensor | None:
        """Return the objective that the algorithm minimises, `(B,)`; None if there is none.

        `penalty` is the R(x) of the prior, `(B,)`; see
        `cassi.solvers.objective.evaluate_objective`.
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
    """Seconds since the start, without the time of callbacks and of the objective."""
    sigma: float
    """Strength of the prior."""
    objective: float | None = None
    """The value that algorithm and prior minimise. None if not recorded or not defined."""


Callback = Callable[[Iteration, Any], bool | None]
"""Called after every iteration with its statistics and its cube; returning True stops the loop."""


class Selective(Protocol):
    """A callback that needs the cubes of some iterations only, because each cube takes time."""

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the callback needs the cube. If not, it may get None."""


def is_sampled(index: int, interval: int, last: int) -> bool:
    """Return whether an iteration is the first, a multiple of the interval, or the last."""
    return index in (1, last) or index % interval == 0


def wants_cube(callback: Callback, iteration: Iteration) -> bool:
    """Return whether a callback needs the cube of this iteration."""
    return not _is_selective(callback) or bool(callback.wants(iteration))


def _is_selective(callback: Callback) -> TypeGuard[Selective]:
    return hasattr(callback, "wants")


class CallbackWrapper:
    """A callback that converts cubes and iterations, and passes them on to an inner callback.

    Args:
        callback: the inner callback, or None.
        cube: converts a cube.
        iteration: converts the statistics of an iteration.
        is_over: returns True to end the run. The inner callback may end it too.
    """

    def __init__(
        self,
        callback: Callback | None,
        cube: Callable[[Tensor], Tensor] = lambda x: x,
        iteration: Callable[[Iteration], Iteration] = lambda iteration: iteration,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.callback, self.cube, self.iteration, self.is_over = callback, cube, iteration, is_over

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the inner callback needs the cube."""
        return self.callback is not None and wants_cube(self.callback, self.iteration(iteration))

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Call the inner callback; True ends the run."""
        if self.callback is None:
            return self.is_over()
        cube = None if x is None else self.cube(x)
        return bool(self.callback(self.iteration(iteration), cube)) or self.is_over()


class GridSolution(NamedTuple):
    """A cube on a spectral grid, whose bands are even along the dispersion."""

    x: Tensor
    """`(B, G, H, W)`"""
    grid: Any
    """A `cassi.systems.grid.SpectralGrid`."""


@dataclass(frozen=True)
class Solution:
    """A reconstructed cube `(B, C, H, W)`, and statistics of the run."""

    x: Tensor
    history: list[Iteration]
    reason: str
    """Why the loop ended: `iterations`, `tolerance`, `callback` or `diverged`."""
    noise: Tensor | None = None
    """Noise level that the method used, relative to the root mean square of y, `(B,)`.

    The level comes from smooth windows or from held-out pixels. None if the method needs none."""
    stopped: Any = None
    """A `cassi.solvers.early_stopping.StoppingPoint`; None if no held-out pixels were used."""
    along: GridSolution | None = None
    """The cube on the spectral grid from which x was interpolated; None if there is no grid."""

    def measured(self, system: LinearSystem) -> Tensor:
        """Return A x, the camera's measurement of the cube, `(B, K, H', W')`."""
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
    """The cube after some passes of a run, or the first cube of the run.

    Attributes:
        passes: number of finished passes; 0 for the first cube.
        x: the cube, `(B, C, H, W)`.
        history: statistics of all iterations of these passes.
        noise: noise level that the method used, `(B,)`; see `Solution`.
    """

    passes: int
    x: Tensor
    history: list[Iteration]
    noise: Tensor | None = None


class Checkpoint(Protocol):
    """Stores the first cube and the result of the last pass, for a run that resumes."""

    def read(self, name: str) -> Pass | None:
        """Return the result that is stored as `start` or `pass`; None if there is none."""

    def write(self, name: str, result: Pass) -> None:
        """Store a result under a name. It replaces an earlier result."""


class Options(TypedDict, total=False):
    """The keyword arguments of `Reconstructor.run`. All are optional.

    Attributes:
        x0: first cube `(B, C, H, W)`, in the units of the result.
        callback: called after every iteration with statistics and cube; True stops.
        objective: n > 0 records the objective in the first, every n-th and the last iteration; 0
            never records it. The unit of a solver's objective is the squared signal level.
        statistics: estimates from the whole measurement, if y is a part of it.
        checkpoint: stores the results of passes, and returns the results of an earlier run. A
            method without passes ignores it.
    """

    x0: Tensor | None
    callback: Callback | None
    objective: int
    statistics: Statistics | None
    checkpoint: Checkpoint | None


def unpack_options(
    options: Options, owner: str = ""
) -> tuple[Tensor | None, Callback | None, int, Statistics | None]:
    """Return first cube, callback, objective and statistics of `Options`.

    `owner` is the name of a method that takes no first cube, for the error message.

    Raises:
        TypeError: an option is unknown.
        ValueError: a first cube for a method that takes none.
    """
    if unknown := options.keys() - Options.__optional_keys__:
        expected = ", ".join(sorted(Options.__optional_keys__))
        raise TypeError(f"run: expected {expected}, got {', '.join(sorted(unknown))}")
    x0 = options.get("x0")
    if owner and x0 is not None:
        raise ValueError(f"x0: expected None, a {owner} takes no first cube")
    return x0, options.get("callback"), options.get("objective", 0), options.get("statistics")


@runtime_checkable
class HasRun(Protocol):
    """Any object with a method `run`. Checks accept such an object as a reconstructor."""

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y `(B, K, H', W')`, a measurement of the camera; return cube and history."""


class Reconstructor(HasRun, Protocol):
    """Recovers a cube from a measurement: a solver, a network, or a function of the user."""

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""

    @property
    def halo(self) -> int:
        """Number of lines beside a part of a scene that influence the result of the part."""

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample is independent of the other samples of its batch."""

    @property
    def network(self) -> nn.Module | None:
        """The network that the method runs; None if it runs none."""
