"""What a prior may have beside its call: a memory within one run, and a penalty."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

Prior = Callable[[Tensor, Any], Tensor]
"""(cube, sigma) → cube."""


@runtime_checkable
class Remembering(Protocol):
    """Makes the prior of one run, with an empty memory."""

    begin: Callable[[], Prior]


@runtime_checkable
class Keeping(Protocol):
    """Keeps tensors from call to call."""

    memory: Sequence[Tensor] | None


@runtime_checkable
class Turning(Protocol):
    """Changes its memory as components change, x ← Rᵀx."""

    turn: Callable[[Tensor], None]


@runtime_checkable
class Counting(Protocol):
    """Counts its calls, and can be applied without."""

    apply: Callable[[Tensor, float | Tensor], Tensor]
    count: Callable[[], None]


@runtime_checkable
class Proximal(Protocol):
    """Is a proximal map: returns R(x) of each sample, `(B,)`, or None where there is no R."""

    penalty: Callable[[Tensor, float | Tensor], Tensor | None]


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
