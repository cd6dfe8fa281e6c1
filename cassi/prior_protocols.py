"""Protocols of priors: a prior can be called, and may also have a memory, a penalty or components.

Solvers, cameras and priors use a prior through these protocols only. So these parts of the package
do not import each other.
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


class TensorMemoryPrior(Protocol):
    """A prior that keeps tensors from call to call."""

    memory: Sequence[Tensor] | None
    """The tensors; None if the prior also keeps other values, which a CUDA graph cannot record."""


class RotatablePrior(Protocol):
    """A prior whose memory has the bands of the cube; if the cube is rotated, so is the memory."""

    def turn(self, rotation: Tensor) -> None:
        """Rotate the bands of the memory by Rᵀ, R `(B, C, C')`; the caller rotates the cube."""


class CountingPrior(Protocol):
    """A prior that counts its calls, and can be applied without counting."""

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return what a call returns, without counting it."""

    def count(self) -> None:
        """Count a call."""


class Proximal(Protocol):
    """A prior that is a proximal map: prior(v, σ) = argmin_u ½‖u − v‖² + R(u)."""

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(x) of each sample, `(B,)`; None if the prior has no R with its parameters."""


def is_proximal(prior: Prior) -> TypeGuard[Proximal]:
    """Tell whether a prior has a method `penalty`."""
    return hasattr(prior, "penalty")


class Basis(Protocol):
    """A spectral basis: directions E of spectra, with a scale S for each component.

    F = E S⁻¹ turns components c into a cube F c. G = E S computes the components Gᵀx of a cube x,
    so Gᵀ F = I. The columns of F are orthogonal. The components of a cube F c in another basis F'
    are Pᵀ c, with P = Fᵀ G'.
    """

    synthesis: Tensor
    """F, `(B, C, R)`."""
    analysis: Tensor
    """G, `(B, C, R)`."""
    lengths: Tensor
    """Lengths of the columns of F, `(B, R)`."""
    tensors: tuple[Tensor, ...]
    """Synthesis, analysis, lengths, and the other tensors that `ComponentPrior.follow` needs."""


class ComponentPrior(Protocol):
    """The prior of one run, on cubes F c with few components c; see `cassi.priors.Subspace`."""

    basis: Basis
    """The present basis."""

    @property
    def is_due(self) -> bool:
        """Whether the next call needs a new basis."""

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube."""

    def lower_energy_limit(self, divisor: float, min_rank: int = 1) -> None:
        """Divide the energy limit for dropping components; start with `min_rank` or more."""

    def means(self, x: Tensor) -> Tensor:
        """Return the block means of a cube, `(B, C, h, w)`: the basis is computed from them.

        The means are linear in the cube.
        """

    def start(self, x: Tensor) -> bool:
        """Compute the first basis from a cube; return False if the cube is not finite."""

    def follow(self, means: Tensor, basis: Basis, *last: Tensor) -> Basis:
        """Return the next basis from the `means` of a cube, without changing the prior."""

    def take(self, basis: Basis) -> None:
        """From now on, use a basis that `follow` returned."""

    @property
    def last(self) -> Sequence[Tensor]:
        """Tensors of the previous call; they are the arguments `last` of `follow`."""

    def drop_zero_components(self) -> int | None:
        """Drop components that are 0; return how many remain, or None if all do."""

    def turn(self, rotation: Tensor) -> None:
        """Rotate the memory of the inner prior by Pᵀ, as the components are; see `Basis`."""

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """Tensors that the inner prior keeps from call to call; see `TensorMemoryPrior.memory`."""

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        """Replace the tensors that the inner prior keeps."""

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`; only the prior's memory changes."""

    def count(self, components: Tensor, sigma: float | Tensor) -> None:
        """Count a call of the prior, which returned these components."""

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return the penalty R(x) of the cubes x with these components; see `Proximal`."""


def has_components(prior: Prior) -> TypeGuard[ComponentPrior]:
    """Tell whether the prior of a run works on spectral components."""
    return hasattr(prior, "follow")
