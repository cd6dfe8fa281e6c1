"""Access to the memory of a prior within one run, for priors that contain other priors."""

from collections.abc import Sequence
from typing import TypeGuard

from torch import Tensor

from cassi.prior_protocols import (
    CountingPrior,
    Prior,
    Remembering,
    RotatablePrior,
    TensorMemoryPrior,
)


def begin(prior: Prior) -> Prior:
    """Return the prior of one run: `prior.begin()`, or the prior itself if it has no `begin`."""
    return prior.begin() if isinstance(prior, Remembering) else prior


def get_memory(prior: Prior) -> Sequence[Tensor] | None:
    """Return the memory of a prior; None if the memory is more than tensors."""
    memory: Sequence[Tensor] | None = getattr(prior, "memory", None)
    return memory


def keeps_tensors(prior: Prior) -> TypeGuard[TensorMemoryPrior]:
    """Tell whether a prior has a memory of tensors only."""
    return get_memory(prior) is not None


def rotate_memory(prior: Prior, rotation: Tensor) -> None:
    """Rotate the bands of a prior's memory as those of a cube x that becomes Rᵀx.

    A memory without bands does not change.
    """
    if _is_rotatable(prior):
        prior.turn(rotation)


def apply_uncounted(prior: Prior, x: Tensor, sigma: float | Tensor) -> Tensor:
    """Apply a prior. A prior that counts its calls does not count this call."""
    return prior.apply(x, sigma) if _counts(prior) else prior(x, sigma)


def count_call(prior: Prior) -> None:
    """Count a call of a prior, if it counts its calls."""
    if _counts(prior):
        prior.count()


# `isinstance` of a protocol looks up all of its members, and an iteration asks ten times.
def _is_rotatable(prior: Prior) -> TypeGuard[RotatablePrior]:
    return hasattr(prior, "turn")


def _counts(prior: Prior) -> TypeGuard[CountingPrior]:
    return hasattr(prior, "count") and hasattr(prior, "apply")
