"""Little noise is taken for texture."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.checks import not_negative
from cassi.methods.wrapper import Wrapper
from cassi.solvers import LinearSystem, Solution, Statistics
from cassi.solvers.base import Options
from cassi.solvers.linear_system import seen


@dataclass(frozen=True)
class NoiseThreshold(Wrapper):
    """Take estimated noise below a threshold for texture: the method is told that there is none.

    Smooth windows show texture as noise; a start that looks at held-out pixels knows better: see
    `cassi.methods.Started`. A method with a noise of its own goes by that.

    Args:
        method: runs with what is left of the noise.
        threshold: noise relative to the root mean square of y, >= 0.

    Raises:
        TypeError: the method has no `run`.
        ValueError: the threshold is negative.
    """

    threshold: float = 0.012

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("noise_threshold", self.threshold)

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        known = options.get("statistics") or Statistics(lambda: [(seen(y, system), system)])
        real = torch.where(known.noise < self.threshold, 0, known.noise)
        options["statistics"] = known.with_noise(real)
        return self.method.run(y, system, **options)
