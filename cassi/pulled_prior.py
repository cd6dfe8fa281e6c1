"""A prior around the prior of one run, which pulls spectral components after it.

A camera that knows more of its scene than a measurement pulls them towards that, and so does a
sequence towards the cube that it expects (`cassi.systems.guide`, `cassi.methods.sequence`).
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from cassi.prior_protocols import ComponentPrior


class PulledPrior(ABC):
    """The prior of one run on spectral components, with a pull; see `cassi.solvers.components`.

    Args:
        prior: of the run, on components; what is not defined here is its own.
        kept: weak components are kept down to 1/kept of the energy.
        rank: number of components at the start, at least.
    """

    smooth: Tensor

    def __init__(self, prior: ComponentPrior, kept: float, rank: int) -> None:
        self.prior = prior
        prior.keep(kept, rank)

    @abstractmethod
    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Return components `(B, R, H, W)`, which the prior was applied to, pulled."""

    @property
    def basis(self) -> Any:
        """Of the prior."""
        return self.prior.basis

    def keep(self, share: float, rank: int = 1) -> None:
        """Let the prior keep weak components."""
        self.prior.keep(share, rank)

    def __getattr__(self, name: str) -> Any:
        """Return the prior's attribute: penalty, turn, …."""
        if name == "prior":  # not there yet
            raise AttributeError(name)
        return getattr(self.prior, name)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube, for an algorithm that works on no components: no pull."""
        return self.prior(x, sigma)

    @property
    def memory(self) -> None:
        """None: a pull looks at values on the host, so no call is recorded as a graph."""
        return

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to components, and pull them."""
        self.smooth = self.prior.apply(components, sigma)
        return self.pull(self.smooth, sigma)

    def count(self, result: Tensor, sigma: float | Tensor) -> None:
        """Let the prior note its call; it sees what it returned, and not what was pulled."""
        self.prior.count(self.smooth, sigma)
