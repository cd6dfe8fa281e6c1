"""Access to the memory of a prior within one run, for priors that contain other priors."""

from collections.abc import Sequence

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
    return prior.memory if isinstance(prior, TensorMemoryPrior) else None


def rotate_memory(prior: Prior, rotation: Tensor) -> None:
    """Rotate the bands of a prior's memory as those of a cube x that becomes Rᵀx.

    A memory without bands does not change.
    """
    if isinstance(prior, RotatablePrior):
        prior.turn(rotation)


def apply_uncounted(prior: Prior, x: Tensor, sigma: float | Tensor) -> Tensor:
    """Apply a prior. A prior that counts its calls does not count this call."""
    return prior.apply(x, sigma) if isinstance(prior, CountingPrior) else prior(x, sigma)


def count_call(prior: Prior) -> None:
    """Count a call of a prior, if it counts its calls."""
    if isinstance(prior, CountingPrior):
        prior.count()
