"""A threshold below which estimated noise is taken for texture."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import ReconstructorWrapper
from cassi.solvers import LinearSystem, Solution, Statistics
from cassi.solvers.base import Options
from cassi.solvers.linear_system import zero_bad_pixels


@dataclass(frozen=True)
class NoiseThreshold(ReconstructorWrapper):
    """Take estimated noise below a threshold for texture: the method runs with a noise of 0.

    Texture in smooth windows looks like noise. Inside a `cassi.methods.Started` the noise level
    comes from the start, which may have a better estimate from held-out pixels. A method whose own
    setting of `noise` is a number ignores the threshold.

    Args:
        method: gets the estimated noise, or 0 if the estimate is below the threshold.
        threshold: noise level relative to the root mean square of y, >= 0.

    Raises:
        TypeError: the method has no `run`.
        ValueError: the threshold is negative.
    """

    # Frames without noise have estimates up to 1.15 %, frames with 40 dB of noise have 1.2 %
    # (docs/development/experiments/self-supervised.md).
    threshold: float = 0.012

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("noise_threshold", self.threshold)

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        statistics = options.get("statistics") or Statistics(
            lambda: [(zero_bad_pixels(y, system), system)]
        )
        noise = torch.where(statistics.noise < self.threshold, 0, statistics.noise)
        options["statistics"] = statistics.with_noise(noise)
        return self.method.run(y, system, **options)
