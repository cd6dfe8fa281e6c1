"""The weighted mean of a first cube and of the result that a method reaches from it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import ReconstructorWrapper
from cassi.solvers import LinearSystem, Solution
from cassi.solvers.base import Options


@dataclass(frozen=True)
class Blended(ReconstructorWrapper):
    """Keep a share of the first cube in the result.

        x = (1 − b) method(y, x₀) + b x₀

    The errors of two methods are partly independent, so their mean has a smaller error. If both
    cubes are consistent with y, their mean is too. Without a first cube the result is the method's.

    Args:
        method: starts from the first cube x₀ `(B, C, H, W)`.
        share: b, in [0, 1).

    Raises:
        TypeError: the method has no `run`.
        ValueError: the share is out of range.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share < 1:
            raise ValueError(f"blend: expected a share from 0 to below 1, got {self.share}")

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        solution, x0 = self.method.run(y, system, **options), options.get("x0")
        if x0 is None:
            return solution
        return replace(solution, x=torch.lerp(solution.x, x0, self.share))
