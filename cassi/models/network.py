"""What networks made of unrolled iterations share."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cassi.models.grid import Reconstructor
from cassi.models.layers import check_counts
from cassi.solvers.base import Prior


class Unrolled(Reconstructor):
    """A fixed number of iterations of an `Algorithm`, each with a denoiser of its own.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        checkpointing: keep only the cubes between the stages for the gradient and compute what is
            within a stage again: less memory, about a third more time.

    Raises:
        ValueError: a count below 1.
    """

    def __init__(self, bands: int, stages: int, checkpointing: bool = False) -> None:
        super().__init__(bands)
        check_counts(type(self).__name__, stages=stages)
        self.stages, self.checkpointing = stages, checkpointing

    def prior(self, denoiser: nn.Module) -> Prior:
        """Return a denoiser `net(x, sigma)` as the prior of one stage."""

        def apply(x: Tensor, sigma: Any) -> Tensor:
            if self.checkpointing and torch.is_grad_enabled():
                return cast(Tensor, checkpoint(denoiser, x, sigma, use_reentrant=False))
            return cast(Tensor, denoiser(x, sigma))

        return apply
