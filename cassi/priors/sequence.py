"""Priors made of other priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cassi.checks import whole_number
from cassi.prior_protocols import Keeping, Prior
from cassi.priors.low_rank import LowRank
from cassi.priors.memory import begin, count_call, kept, turn, uncounted
from cassi.priors.tv import TV

Parts = Sequence[Prior] | Mapping[str, Prior]
"""Priors in order: a list, or a mapping whose names only serve configs."""


@dataclass(frozen=True)
class Compose:
    """One prior after another in every call.

        prior(x, σ) = p_n(… p_2(p_1(x, σ), σ) …, σ)

    Each part has its own weight, which turns σ into its strength.

    Args:
        priors: at least one; a list, or a mapping whose names only serve configs.

    Raises:
        ValueError: no prior is given.
        TypeError: a prior is not callable.
    """

    priors: Parts = (TV(), LowRank())

    def __post_init__(self) -> None:
        _parts("Compose", self.priors)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply all to a cube `(B, C, H, W)`."""
        return _Composed(_parts("Compose", self.priors))(x, sigma)

    def begin(self) -> _Composed:
        """Return the prior of one run, made of those of the parts."""
        return _Composed([begin(prior) for prior in _parts("Compose", self.priors)])


class _Composed:
    """One run of Compose."""

    def __init__(self, parts: list[Prior]) -> None:
        self.parts = parts

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        x = self.apply(x, sigma)
        self.count()
        return x

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply all parts; none counts that."""
        for part in self.parts:
            x = uncounted(part, x, sigma)
        return x

    def count(self) -> None:
        """Let the parts count a call."""
        for part in self.parts:
            count_call(part)

    def turn(self, rotation: Tensor) -> None:
        """Pass a change of the spectral basis, x ← Rᵀx, to the parts with a memory."""
        for part in self.parts:
            turn(part, rotation)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """What the parts keep; None where one keeps more than tensors."""
        each = [kept(part) for part in self.parts]
        return None if None in each else [value for some in each for value in some or ()]

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        rest = list(values)
        for part in self.parts:
            if isinstance(part, Keeping) and part.memory:
                count = len(part.memory)
                part.memory, rest = rest[:count], rest[count:]


@dataclass(frozen=True)
class Stages:
    """One prior for the first iterations of a run, another for the next, and so on.

    A fast prior comes first, a slow and strong one last. The state of the algorithm is kept from
    stage to stage. `cassi.solvers.Phases` gives σ a schedule of its own in every stage. Called
    outside of a run, it is its last prior.

    Args:
        priors: at least one; a list, or a mapping whose names only serve configs.
        counts: iterations of each, >= 1; the last prior stays after its own.

    Raises:
        ValueError: no prior is given, another number of counts, or a count below 1.
        TypeError: a prior is not callable.
    """

    priors: Parts = (TV(),)
    counts: Sequence[int] = (1,)

    def __post_init__(self) -> None:
        parts = _parts("Stages", self.priors)
        if len(self.counts) != len(parts):
            raise ValueError(
                f"Stages counts: expected one for each of {len(parts)} priors, "
                f"got {list(self.counts)}"
            )
        for count in self.counts:
            whole_number("Stages counts", count, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the last prior to a cube `(B, C, H, W)`."""
        return _parts("Stages", self.priors)[-1](x, sigma)

    def begin(self) -> _Stage:
        """Return the prior of one run, which counts its calls."""
        parts = [begin(prior) for prior in _parts("Stages", self.priors)]
        return _Stage(
            parts, [part for part, n in zip(parts, self.counts, strict=True) for _ in range(n)]
        )


class _Stage:
    """One run of Stages."""

    def __init__(self, parts: list[Prior], order: list[Prior]) -> None:
        self.parts, self.order, self.calls = parts, order, 0

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        u = self.order[min(self.calls, len(self.order) - 1)](x, sigma)
        self.calls += 1
        return u

    def turn(self, rotation: Tensor) -> None:
        """Pass a change of the spectral basis to the stages that are still to run."""
        ahead = self.order[min(self.calls, len(self.order) - 1) :]
        for part in self.parts:
            if part in ahead:
                turn(part, rotation)


def _parts(name: str, priors: Parts) -> list[Prior]:
    parts = list(priors.values() if isinstance(priors, Mapping) else priors)
    if not parts:
        raise ValueError(f"{name} priors: expected at least one, got none")
    for part in parts:
        if not callable(part):
            raise TypeError(f"{name} priors: expected callables (x, sigma) -> x, got {part!r}")
    return parts
