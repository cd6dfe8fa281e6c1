"""What a reconstructor around another one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.solvers import Callback, Iteration, LinearSystem, Reconstructor, Solution
from cassi.solvers.base import Options, wants_cube


@dataclass(frozen=True)
class Wrapper:
    """A reconstructor around another: what it does not change is the other's.

    Args:
        method: the reconstructor inside.

    Raises:
        TypeError: the method has no `run`.
    """

    method: Reconstructor

    def __post_init__(self) -> None:
        """Check the part."""
        check_method(f"{type(self).__name__} method", self.method)

    @property
    def iterations(self) -> int:
        """At most so many times `run` calls the callback."""
        return self.method.iterations

    @property
    def halo(self) -> int:
        """Lines around a part of a scene that have an influence on it."""
        return self.method.halo

    @property
    def shares_batch(self) -> bool:
        """Whether a sample comes out the same whatever else is in its batch."""
        return self.method.shares_batch

    @property
    def network(self) -> nn.Module | None:
        """The network, where it is one."""
        return self.method.network

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        return self.method.run(y, system, **given)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


def check_method(name: str, method: Any) -> None:
    """Raise a TypeError unless it is a reconstructor."""
    if not hasattr(method, "run"):
        raise TypeError(f"{name}: expected a reconstructor, got {method!r}")


@dataclass(frozen=True)
class StopWhen:
    """A callback that also ends the run where a condition holds.

    Args:
        callback: of the caller; or None.
        is_over: tells from an iteration's statistics whether the run ends.
    """

    callback: Callback | None
    is_over: Callable[[Iteration], bool]

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the caller's callback needs the cube."""
        return self.callback is not None and wants_cube(self.callback, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Hand the iteration on; True ends the run."""
        stopped = self.callback is not None and bool(self.callback(iteration, x))
        return stopped or self.is_over(iteration)
