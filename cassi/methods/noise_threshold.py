"""One method for clean measurements, another for noisy ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import check_method
from cassi.solvers import LinearSystem, Reconstructor, Solution, Statistics
from cassi.solvers.base import Options
from cassi.solvers.linear_system import seen
from cassi.solvers.statistics import check_noise


@dataclass(frozen=True)
class NoiseThreshold:
    """Choose between two methods by the noise of the measurement.

    Estimated noise below the threshold may be texture. Then the clean method runs, with a noise
    level of zero. Smooth windows show texture as noise; a start that looks at held-out pixels knows
    better, and its noise is taken.

    Args:
        clean: the method for noise below the threshold.
        noisy: the method for noise from the threshold on.
        threshold: noise relative to the root mean square of y, >= 0.
        noise: of the measurement, in the same unit, >= 0; "auto" estimates it.
        start: makes the first cube where none is given; its iterations are not counted.

    Raises:
        TypeError: a method has no `run`.
        ValueError: a number is negative.
    """

    clean: Reconstructor
    noisy: Reconstructor
    threshold: float = 0.03
    noise: float | Literal["auto"] = field(default="auto", kw_only=True)
    start: Reconstructor | None = field(default=None, kw_only=True)
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check the parts."""
        check_method("NoiseThreshold clean", self.clean)
        check_method("NoiseThreshold noisy", self.noisy)
        if self.start is not None:
            check_method("start", self.start)
        not_negative("noise_threshold", self.threshold)
        check_noise(self.noise)

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return max(self.clean.iterations, self.noisy.iterations)

    @property
    def halo(self) -> int:
        """Number of lines around a part of a scene that influence its result."""
        return max(method.halo for method in (self.clean, self.noisy, *self._first))

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample does not depend on its batch, which shares one method."""
        if self.noise == "auto":
            return False
        used = self._chosen(self.noise >= self.threshold), *self._first
        return all(method.shares_batch for method in used)

    @property
    def _first(self) -> list[Reconstructor]:
        return [] if self.start is None else [self.start]

    def _chosen(self, is_noisy: bool) -> Reconstructor:
        return self.noisy if is_noisy else self.clean

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        known = given.get("statistics") or Statistics(lambda: [(seen(y, system), system)])
        if self.start is not None and given.get("x0") is None:
            found = self.start.run(y, system, statistics=known).checked()
            given["x0"] = found.x
            if found.noise is not None:
                known = known.with_noise(found.noise)
        if self.noise == "auto":
            is_noisy = not bool((known.noise < self.threshold).all())
            none = torch.zeros_like(known.noise)
            given["statistics"] = known if is_noisy else known.with_noise(none)
        else:
            is_noisy = self.noise >= self.threshold
        return self._chosen(is_noisy).run(y, system, **given)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x
