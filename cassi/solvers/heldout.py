"""Detector pixels held out: what a reconstruction predicts of pixels that it was not given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cassi.solvers.linear_system import seen

SHARE = 0.05
"""Of the detector pixels: enough to measure by, few enough to be missed by nobody."""


def draw_heldout(shape: Sequence[int], share: float = SHARE, seed: int = 0) -> Tensor:
    """Draw the pixels to hold out, each with the same probability.

    Args:
        shape: of the measurement without its batch, (K, H', W').
        share: probability, in (0, 0.5].
        seed: of the draw; the same everywhere.

    Returns:
        bool, `(1, K, H', W')`, on the CPU.

    Raises:
        ValueError: a share out of range.
    """
    if not 0 < share <= 0.5:
        raise ValueError(f"heldout: expected a share above 0, at most 0.5, got {share}")
    random = torch.Generator().manual_seed(seed)
    return torch.rand((1, *shape), generator=random) < share


def heldout_error(x: Tensor, y: Tensor, system: Any, heldout: Tensor) -> Tensor:
    r"""Return how far a cube is from pixels that it was reconstructed without.

        ‖(y − Ax)_H‖ / ‖y_H‖

    over the pixels H held out, bad pixels apart. Of one method it tells which settings are better:
    what fits noise predicts nothing. Between methods it is no measure of quality.

    Args:
        x: cube `(B, C, H, W)`.
        y: measurement `(B, K, H', W')`.
        system: the camera, with all its pixels.
        heldout: bool, `(1, K, H', W')`.

    Returns:
        `(B,)`; 0 where the pixels held out are dark.
    """
    y, chosen = seen(y, system), heldout.to(y.device)
    rest, size = (
        torch.where(chosen, value, 0).flatten(1).double().norm(dim=1)
        for value in (y - system(x), y)
    )
    return torch.where(size > 0, rest / size.clamp_min(torch.finfo(torch.float64).tiny), 0)
