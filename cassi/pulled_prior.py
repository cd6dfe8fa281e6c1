"""The base class of priors that pull spectral components towards other data on the scene.

With a guide, components are pulled towards the guide's picture (`cassi.systems.guide`). In a
sequence of snapshots, they are pulled towards the predicted cube (`cassi.methods.sequence`).
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from cassi.prior_protocols import ComponentPrior


class PulledPrior(ABC):
    """A wrapper around a component prior: it moves the prior's result towards other data.

    `cassi.solvers.components` runs it. Attributes that are not defined here are those of the prior.

    Args:
        prior: the prior of one run.
        energy_divisor: number > 1. The prior's energy limit, below which components are dropped, is
            divided by it: a pull makes weak components reliable.
        min_rank: least number of components at the start.
    """

    prior_result: Tensor
    """The last result of the prior, before the pull."""

    def __init__(self, prior: ComponentPrior, energy_divisor: float, min_rank: int) -> None:
        self.prior = prior
        prior.lower_energy_limit(energy_divisor, min_rank)

    @abstractmethod
    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Return the prior's components `(B, R, H, W)` after the pull."""

    @property
    def basis(self) -> Any:
        """The prior's present basis."""
        return self.prior.basis

    def lower_energy_limit(self, divisor: float, min_rank: int = 1) -> None:
        """Set which components the prior drops; see `ComponentPrior.lower_energy_limit`."""
        self.prior.lower_energy_limit(divisor, min_rank)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the prior, such as `penalty_of` or `turn`."""
        # While an object is unpickled, `prior` is not set yet. Without this test, the last line
        # would call this method for `prior` again, without end.
        if name == "prior":
            raise AttributeError(name)
        return getattr(self.prior, name)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube, without a pull: algorithms without components call this."""
        return self.prior(x, sigma)

    @property
    def memory(self) -> None:
        """None: a pull reads values on the host, so no CUDA graph can record a call."""
        return

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to components, and pull them."""
        self.prior_result = self.prior.apply(components, sigma)
        return self.pull(self.prior_result, sigma)

    def count(self, result: Tensor, sigma: float | Tensor) -> None:
        """Let the prior count its call, with the components that it returned before the pull."""
        self.prior.count(self.prior_result, sigma)
