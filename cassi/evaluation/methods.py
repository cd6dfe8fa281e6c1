"""Reconstructors under names: solvers and networks, called the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from cassi.solvers import Solver

Callback = Callable[[Any, Tensor], "bool | None"]
"""As of `cassi.solvers`: given statistics and cube after an iteration; True stops."""


class Run(Protocol):
    """A solver or network: measurement and camera in, cube out."""

    def __call__(self, y: Tensor, system: Any, callback: Callback | None = None) -> Tensor:
        """Reconstruct `(B, C, H, W)`; the callback is called after every iteration, if any."""
        ...


@dataclass(frozen=True)
class Method:
    """A reconstructor under a name.

    Attributes:
        name: unique in a table.
        run: reconstructs.
        identity: all that its results depend on, for telling whether a record still holds.
        network: the network, if it is one: its parameters and operations are counted.
        iterations: of a solver.
    """

    name: str
    run: Run
    identity: Mapping[str, Any] = field(default_factory=dict)
    network: nn.Module | None = None
    iterations: int = 1

    @property
    def parameters(self) -> int | None:
        """Number of weights of the network."""
        if self.network is None:
            return None
        return sum(parameter.numel() for parameter in self.network.parameters())


class SolverRun:
    """A solver as evaluation calls it."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __call__(self, y: Tensor, system: Any, callback: Callback | None = None) -> Tensor:
        """Reconstruct `(B, C, H, W)`."""
        return self.solver.run(y, system, callback=callback).x


class NetworkRun:
    """A network as evaluation calls it."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval()

    def __call__(self, y: Tensor, system: Any, callback: Callback | None = None) -> Tensor:
        """Reconstruct `(B, C, H, W)`; there are no iterations to call back after."""
        cube: Tensor = self.network(y, system)
        return cube.float()
