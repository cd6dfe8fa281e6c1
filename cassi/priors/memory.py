"""The memory of the prior of a run."""

from collections.abc import Sequence

from torch import Tensor

from cassi.prior_protocols import Counting, Keeping, Prior, Remembering, Turning


def begin(prior: Prior) -> Prior:
    """Return the prior of one run."""
    return prior.begin() if isinstance(prior, Remembering) else prior


def kept(prior: Prior) -> Sequence[Tensor] | None:
    """Return what the prior of a run keeps; None where that is more than tensors."""
    return prior.memory if isinstance(prior, Keeping) else None


def turn(prior: Prior, rotation: Tensor) -> None:
    """Let the prior of a run follow a change of the basis, if it does."""
    if isinstance(prior, Turning):
        prior.turn(rotation)


def uncounted(prior: Prior, x: Tensor, sigma: float | Tensor) -> Tensor:
    """Apply the prior of a run; one that counts its calls does not count this one."""
    return prior.apply(x, sigma) if isinstance(prior, Counting) else prior(x, sigma)


def count_call(prior: Prior) -> None:
    """Let the prior of a run count a call, if it does."""
    if isinstance(prior, Counting):
        prior.count()
