"""Protocols of priors: beside its call a prior may have a memory, a penalty or components.

Solvers, cameras and priors use each other's priors through these protocols only, so none of them
imports another.
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
    """A prior that keeps tensors from call to call."""

    memory: Sequence[Tensor] | None
    """The tensors; None if it keeps other things as well, so that no CUDA graph can record it."""


@runtime_checkable
class Turning(Protocol):
    """A prior whose memory has bands, which a change of basis turns."""

    def turn(self, rotation: Tensor) -> None:
        """Change the memory as the bands are about to change, to Rᵀx, with R `(B, C, C')`."""


@runtime_checkable
class Counting(Protocol):
    """A prior that counts its calls, and can be applied without counting."""

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return what a call returns, without counting it."""

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
    """A spectral basis: directions E of spectra, with a scale S for each component.

    F = E S⁻¹ makes a cube F c of components c. G = E S takes the components Gᵀx of a cube, so
    Gᵀ F = I. The columns of F are orthogonal. The components of a cube F c in another basis F' are
    Pᵀ c, P = Fᵀ G'.
    """

    synthesis: Tensor
    """F, `(B, C, R)`."""
    analysis: Tensor
    """G, `(B, C, R)`."""
    lengths: Tensor
    """Lengths of the columns of F, `(B, R)`."""
    tensors: tuple[Tensor, ...]
    """The three above, and the other tensors that the next basis is computed from."""


class ComponentPrior(Protocol):
    """The prior of one run, on cubes F c with few components c; see `cassi.priors.Subspace`."""

    basis: Basis
    """The present basis."""

    @property
    def is_due(self) -> bool:
        """Whether the next call needs a new basis."""

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube."""

    def keep(self, share: float, rank: int = 1) -> None:
        """Drop components below 1/share of the energy, and start with at least `rank` of them."""

    def means(self, x: Tensor) -> Tensor:
        """Return the block means of a cube, which the basis is computed from, `(B, C, h, w)`.

        They are linear in the cube.
        """

    def start(self, x: Tensor) -> bool:
        """Compute the first basis from a cube; return False if the cube is not finite."""

    def follow(self, means: Tensor, basis: Basis, *last: Tensor) -> Basis:
        """Return the next basis from the `means` of a cube, without changing the prior."""

    def take(self, basis: Basis) -> None:
        """Use a basis that `follow` returned from now on."""

    @property
    def last(self) -> Sequence[Tensor]:
        """The tensors of the call before, which `follow` needs as well."""

    def drop_zero_components(self) -> int | None:
        """Drop components that are 0; return how many remain, or None if all do."""

    def turn(self, rotation: Tensor) -> None:
        """Turn the memory of the inner prior as the components become Pᵀ c; see `Basis`."""

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """Tensors that the inner prior keeps from call to call; None if it keeps other things."""

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        """Replace the tensors that the inner prior keeps."""

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`. Only its memory changes."""

    def count(self, components: Tensor, sigma: float | Tensor) -> None:
        """Count a call that returned these components."""

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(x) of the cubes of components; see `Proximal`."""


def has_components(prior: Prior) -> TypeGuard[ComponentPrior]:
    """Tell whether the prior of a run works on spectral components."""
    return hasattr(prior, "follow")
