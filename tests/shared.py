"""What tests of several folders make their inputs of."""

from __future__ import annotations

import torch
from torch import Tensor


def rand(
    *shape: int, seed: int = 0, low: float = 0.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw from [low, low + 1), the same numbers for the same seed and sum of the sides."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) + low).to(dtype)
