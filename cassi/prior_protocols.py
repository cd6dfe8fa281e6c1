"""What a prior may have beside its call: a memory within one run, a penalty, components.

Solvers, cameras and priors know each other's priors by these protocols alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from torch import Tensor

Prior = Callable[[Tensor, Any], Tensor]
"""(cube, sigma) → cube: removes noise of standard deviation sigma from a cube `(B, C, H, W)`."""


@runtime_checkable
class Remembering(Protocol):
    """A prior with a memory within one run: a warm start, a spectral basis, a fitted network."""

    def begin(self) -> Prior:
        """Return the prior of one run, with an empty memory of its own."""


@runtime_checkable
class Keeping(Protocol):
    """Keeps tensors from call to call."""

    memory: Sequence[Tensor] | None
    """None where it keeps more than tensors."""


@runtime_checkable
class Turning(Protocol):
    """Has a memory with bands."""

    def turn(self, rotation: Tensor) -> None:
        """Change the memory before the bands change to Rᵀx, with R `(B, C, C')`."""


@runtime_checkable
class Counting(Protocol):
    """Counts its calls, and can be applied without."""

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return what a call returns, and count none."""

    def count(self) -> None:
        """Count a call."""


class Proximal(Protocol):
    """A prior that is a proximal map: prior(v, σ) = argmin_u ½‖u − v‖² + R(u)."""

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(x) of each sample, `(B,)`; None where these parameters have no R."""


def is_proximal(prior: Prior) -> TypeGuard[Proximal]:
    """Tell whether a prior has a method `penalty`."""
    return hasattr(prior, "penalty")


class Basis(Protocol):
    """Directions E of spectra with a scale S: F = E S⁻¹ makes a cube of components, F c.

    G = E S takes the components of a cube: Gᵀ F = I. The columns of F are orthogonal. In another
    basis F' the components c of a cube F c are Pᵀ c, P = Fᵀ G'.
    """

    synthesis: Tensor
    """F, `(B, C, R)`."""
    analysis: Tensor
    """G, `(B, C, R)`."""
    lengths: Tensor
    """Of the columns of F, `(B, R)`."""
    tensors: tuple[Tensor, ...]
    """These and what else the next basis is found from."""


class ComponentPrior(Protocol):
    """A prior, in one run, whose cubes are F c of few components c; see `cassi.priors.Subspace`."""

    basis: Basis
    """That of the last `find`."""

    @property
    def is_due(self) -> bool:
        """Whether the basis is to be found anew before the next call."""

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube."""

    def keep(self, share: float, rank: int = 1) -> None:
        """Give up components below 1/share of the energy, and start with at least so many."""

    def means(self, x: Tensor) -> Tensor:
        """Return what the basis is found from, `(B, C, h, w)`, linear in the cube."""

    def start(self, x: Tensor) -> bool:
        """Find the first basis, of a cube; False where it is not finite."""

    def follow(self, means: Tensor, basis: Basis, *last: Tensor) -> Basis:
        """Return the next basis from the `means` of a cube; the prior keeps nothing of it."""

    def take(self, basis: Basis) -> None:
        """Go on with a basis that `follow` found."""

    @property
    def last(self) -> Sequence[Tensor]:
        """What `follow` needs besides, from the call before."""

    def narrow(self) -> int | None:
        """Leave out components that are 0; return how many stay, None for all."""

    def turn(self, rotation: Tensor) -> None:
        """Let the memory of its prior follow a change of the basis to Pᵀ c; see `Basis`."""

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """What its prior keeps from call to call; None where that is more than tensors."""

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        """Take the place of what is kept."""

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`: of itself only its memory changes."""

    def count(self, components: Tensor, sigma: float | Tensor) -> None:
        """Note that the prior was applied, and what it returned."""

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(x) of the cubes of components; see `Proximal`."""


def has_components(prior: Prior) -> TypeGuard[ComponentPrior]:
    """Tell whether a prior, in one run, is one on components."""
    return hasattr(prior, "follow")
