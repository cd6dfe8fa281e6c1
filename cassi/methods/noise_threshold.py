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
    better: see `cassi.methods.Started`.

    Args:
        clean: the method for noise below the threshold.
        noisy: the method for noise from the threshold on.
        threshold: noise relative to the root mean square of y, >= 0.
        noise: of the measurement, in the same unit, >= 0; "auto" estimates it.

    Raises:
        TypeError: a method has no `run`.
        ValueError: a number is negative.
    """

    clean: Reconstructor
    noisy: Reconstructor
    threshold: float = 0.03
    noise: float | Literal["auto"] = field(default="auto", kw_only=True)
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check the parts."""
        check_method("NoiseThreshold clean", self.clean)
        check_method("NoiseThreshold noisy", self.noisy)
        not_negative("noise_threshold", self.threshold)
        check_noise(self.noise)

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return max(self.clean.iterations, self.noisy.iterations)

    @property
    def halo(self) -> int:
        """Number of lines around a part of a scene that influence its result."""
        return max(self.clean.halo, self.noisy.halo)

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample does not depend on its batch, which shares one method."""
        if self.noise == "auto":
            return False
        return self._chosen(self.noise >= self.threshold).shares_batch

    def _chosen(self, is_noisy: bool) -> Reconstructor:
        return self.noisy if is_noisy else self.clean

    def run(self, y: Tensor, system: LinearSystem, **given: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        if self.noise == "auto":
            known = given.get("statistics") or Statistics(lambda: [(seen(y, system), system)])
            is_noisy = not bool((known.noise < self.threshold).all())
            none = torch.zeros_like(known.noise)
            given["statistics"] = known if is_noisy else known.with_noise(none)
        else:
            is_noisy = self.noise >= self.threshold
        return self._chosen(is_noisy).run(y, system, **given)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x
