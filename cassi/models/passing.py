"""Stages that hand features on to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cassi.models.network import Unrolled
from cassi.solvers.base import Prior


class Passing(Unrolled):
    """Unrolled iterations whose denoisers `net(x, features) -> x, features` are chained.

    The arguments are those of `Unrolled`.
    """

    def chain(self, denoiser: Callable[..., Any], features: list[Any]) -> Prior:
        """Return a denoiser as the prior of one stage.

        Args:
            denoiser: the stage's network.
            features: what the stage before left, empty before the first; replaced.
        """

        def apply(x: Tensor, sigma: Any) -> Tensor:
            given = features[0] if features else None
            if self.checkpointing and torch.is_grad_enabled():
                result = checkpoint(denoiser, x, given, use_reentrant=False)
            else:
                result = denoiser(x, given)
            features[:] = [result[1]]
            cube: Tensor = result[0]
            return cube

        return apply
