"""What a reconstructor around another one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cassi.solvers import LinearSystem, Reconstructor, Solution


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

    def run(self, y: Tensor, system: LinearSystem, **given: Any) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        return self.method.run(y, system, **given)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


def check_method(name: str, method: Any) -> None:
    """Raise a TypeError unless it is a reconstructor."""
    if not hasattr(method, "run"):
        raise TypeError(f"{name}: expected a reconstructor, got {method!r}")
