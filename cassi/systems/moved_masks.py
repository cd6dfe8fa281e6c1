"""A mask that is not quite where it is taken to be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def move_mask(mask: Tensor, shift: Sequence[float], rotation: float) -> Tensor:
    """Turn a mask about its middle, then shift it.

    Args:
        mask: `(K, 1|C, H, W)`.
        shift: pixels (down, right).
        rotation: degrees, counterclockwise as displayed with row 0 on top.

    Returns:
        The moved mask, of the same shape, interpolated bilinearly, continued by its border.
    """
    height, width = mask.shape[-2:]
    angle = math.radians(rotation)
    cos, sin = math.cos(angle), math.sin(angle)
    # In float64: a grid in [-1, 1] of float32 would blur by 1e-5 of a pixel times the size.
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2 - shift[0]
    columns = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2 - shift[1]
    # Where each pixel comes from: the inverse turn, rows counted downwards.
    source_columns = cos * columns - sin * rows
    source_rows = sin * columns + cos * rows
    grid = torch.stack([source_columns * 2 / width, source_rows * 2 / height], -1)
    moved = F.grid_sample(
        mask.double(),
        grid.to(mask.device).expand(len(mask), -1, -1, -1),
        padding_mode="border",
        align_corners=False,
    )
    return moved.to(mask.dtype)
