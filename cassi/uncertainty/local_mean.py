"""Means over squares of pixels: around every pixel, or of a grid of squares."""

import torch.nn.functional as F
from torch import Tensor


def mean_around_pixels(maps: Tensor, side: int) -> Tensor:
    """Return the mean over the square around every pixel, `(B, C, H, W)`; edges are repeated."""
    if side == 1:
        return maps
    first, last = side // 2, side - 1 - side // 2
    padded = F.pad(maps, (first, last, first, last), mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, (side, 1), 1), (1, side), 1)


def mean_over_squares(maps: Tensor, side: int) -> Tensor:
    """Return means over squares of side × side pixels; squares at the border may be smaller."""
    if side == 1:
        return maps
    return F.avg_pool2d(maps, side, ceil_mode=True, count_include_pad=False)
