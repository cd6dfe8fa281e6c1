"""Priors that apply other priors: all in every call, or one after another in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cassi.checks import whole_number
from cassi.prior_protocols import Prior
from cassi.priors.low_rank import LowRank
from cassi.priors.memory import (
    apply_uncounted,
    begin,
    count_call,
    get_memory,
    keeps_tensors,
    rotate_memory,
)
from cassi.priors.tv import TV

Priors = Sequence[Prior] | Mapping[str, Prior]
"""Priors in order: a list, or a mapping whose names serve configs only."""


@dataclass(frozen=True)
class Compose:
    """A prior that applies several priors one after another in every call.

        prior(x, σ) = p_n(… p_2(p_1(x, σ), σ) …, σ)

    Each prior has its own weight, which is a factor of σ.

    Args:
        priors: at least one prior, in a list or in a mapping. The names serve configs only.

    Raises:
        ValueError: no prior is given.
        TypeError: a prior is not callable.
    """

    priors: Priors = (TV(), LowRank())

    def __post_init__(self) -> None:
        _as_list("Compose", self.priors)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply all priors to a cube `(B, C, H, W)`."""
        return _ComposedRun(_as_list("Compose", self.priors))(x, sigma)

    def begin(self) -> _ComposedRun:
        """Return the prior of one run, which begins a run of each of its priors."""
        return _ComposedRun([begin(prior) for prior in _as_list("Compose", self.priors)])


class _ComposedRun:
    """The prior of one run of Compose."""

    def __init__(self, priors: list[Prior]) -> None:
        self.priors = priors

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        x = self.apply(x, sigma)
        self.count()
        return x

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply all priors. None of them counts the call."""
        for prior in self.priors:
            x = apply_uncounted(prior, x, sigma)
        return x

    def count(self) -> None:
        """Count a call in all priors."""
        for prior in self.priors:
            count_call(prior)

    def turn(self, rotation: Tensor) -> None:
        """Pass a change of the spectral basis, x ← Rᵀx, to the priors with a memory."""
        for prior in self.priors:
            rotate_memory(prior, rotation)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """The memories of all priors in one list; None if a memory is more than tensors."""
        memories = [get_memory(prior) for prior in self.priors]
        if None in memories:
            return None
        return [tensor for memory in memories for tensor in memory or ()]

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        # Each prior takes as many tensors as it has now.
        tensors = list(values)
        for prior in self.priors:
            if keeps_tensors(prior) and prior.memory:
                count = len(prior.memory)
                prior.memory, tensors = tensors[:count], tensors[count:]


@dataclass(frozen=True)
class Stages:
    """A prior that applies one prior in the first iterations of a run, then the next, and so on.

    A fast prior comes first; a slow and strong prior comes last. The algorithm keeps its state from
    stage to stage. `cassi.solvers.Phases` gives σ its own schedule in every stage. A call outside
    of a run applies the last prior.

    Args:
        priors: at least one prior, in a list or in a mapping. The names serve configs only.
        counts: number of iterations of each prior, >= 1. After all counts the last prior stays.

    Raises:
        ValueError: no prior is given, another number of counts, or a count below 1.
        TypeError: a prior is not callable.
    """

    priors: Priors = (TV(),)
    counts: Sequence[int] = (1,)

    def __post_init__(self) -> None:
        priors = _as_list("Stages", self.priors)
        if len(self.counts) != len(priors):
            raise ValueError(
                f"Stages counts: expected one for each of {len(priors)} priors, "
                f"got {list(self.counts)}"
            )
        for count in self.counts:
            whole_number("Stages counts", count, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the last prior to a cube `(B, C, H, W)`."""
        return _as_list("Stages", self.priors)[-1](x, sigma)

    def begin(self) -> _StagesRun:
        """Return the prior of one run, which counts its calls."""
        priors = [begin(prior) for prior in _as_list("Stages", self.priors)]
        order = [prior for prior, n in zip(priors, self.counts, strict=True) for _ in range(n)]
        return _StagesRun(priors, order)


class _StagesRun:
    """The prior of one run of Stages: `order` has the prior of each call."""

    def __init__(self, priors: list[Prior], order: list[Prior]) -> None:
        self.priors, self.order, self.calls = priors, order, 0

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        u = self.order[min(self.calls, len(self.order) - 1)](x, sigma)
        self.calls += 1
        return u

    def turn(self, rotation: Tensor) -> None:
        """Pass a change of the spectral basis to the priors of this and of later stages."""
        remaining = self.order[min(self.calls, len(self.order) - 1) :]
        for prior in self.priors:
            if prior in remaining:
                rotate_memory(prior, rotation)


def _as_list(name: str, priors: Priors) -> list[Prior]:
    result = list(priors.values() if isinstance(priors, Mapping) else priors)
    if not result:
        raise ValueError(f"{name} priors: expected at least one, got none")
    for prior in result:
        if not callable(prior):
            raise TypeError(f"{name} priors: expected callables (x, sigma) -> x, got {prior!r}")
    return result
