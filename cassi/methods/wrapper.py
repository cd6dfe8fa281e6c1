"""The base class of reconstructors around another reconstructor."""

from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.solvers import LinearSystem, Reconstructor, Solution
from cassi.solvers.base import HasRun, Options


@dataclass(frozen=True)
class ReconstructorWrapper:
    """A reconstructor around an inner method. A subclass overrides some of its properties."""

    method: Reconstructor

    def __post_init__(self) -> None:
        check_method(f"{type(self).__name__} method", self.method)

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return self.method.iterations

    @property
    def halo(self) -> int:
        """Number of lines beside a part of a scene that influence the result of the part."""
        return self.method.halo

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample is independent of the other samples of its batch."""
        return self.method.shares_batch

    @property
    def network(self) -> nn.Module | None:
        """The network that the method runs; None if it runs none."""
        return self.method.network

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        return self.method.run(y, system, **options)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


def check_method(name: str, method: object) -> None:
    """Raise a TypeError unless `method` is a reconstructor."""
    if not isinstance(method, HasRun):
        raise TypeError(f"{name}: expected a reconstructor, got {method!r}")
