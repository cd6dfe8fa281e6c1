"""What the prior of a run may have beside its call: a memory, calls that it counts, a penalty.

- `begin()` returns the prior of one run, with an empty memory.
- `memory` are the tensors that it keeps from call to call; None where it keeps more than tensors.
- `turn(R)` changes its memory as components change, x ← Rᵀx.
- `apply(x, sigma)` is a call that is not counted, `count()` counts one.
- `penalty(x, sigma)` is R(x) of each sample, `(B,)`, of a proximal map; None where there is no R.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Prior = Callable[[Tensor, Any], Tensor]
"""(cube, sigma) → cube."""


def begin(prior: Any) -> Prior:
    """Return the prior of one run."""
    run: Prior = prior.begin() if hasattr(prior, "begin") else prior
    return run


def kept(prior: Prior) -> Sequence[Tensor] | None:
    """Return what the prior of a run keeps; None where that is more than tensors."""
    return getattr(prior, "memory", None)


def turn(prior: Any, rotation: Tensor) -> None:
    """Let the prior of a run follow a change of the basis, if it does."""
    if hasattr(prior, "turn"):
        prior.turn(rotation)


def counts(prior: Prior) -> bool:
    """Tell whether the prior of a run counts its calls; a module of torch has an `apply` too."""
    return hasattr(prior, "count") and hasattr(prior, "apply")


def uncounted(prior: Any, x: Tensor, sigma: float | Tensor) -> Tensor:
    """Apply the prior of a run; one that counts its calls does not count this one."""
    u: Tensor = prior.apply(x, sigma) if counts(prior) else prior(x, sigma)
    return u


def count_call(prior: Any) -> None:
    """Let the prior of a run count a call, if it does."""
    if counts(prior):
        prior.count()
