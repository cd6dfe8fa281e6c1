"""What published networks are given of a snapshot and its camera, and how they pad it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.models.grid import Camera, camera_mask, windows


def initial_cube(y: Tensor, system: Camera) -> Tensor:
    """Return the windows of y at the scale of one band, 2/C · y: `(B, 1, H, W')` → `(B, C, H, W)`.

    Masks of simulations pass about half of the light, so that Σ m·x is about C/2 bands. The cube
    is laid out with its bands innermost.

    Source: Cai et al., "Mask-guided spectral-wise transformer", CVPR 2022, equation 4.
    """
    return windows(y * 2 / system.bands, system).contiguous(memory_format=torch.channels_last)


def band_masks(y: Tensor, system: Camera) -> Tensor:
    """Return the mask of each band, in the dtype of y: `(1|B, C, H, W)`."""
    mask = camera_mask(system).to(y.dtype)
    return mask.expand(-1, system.bands, -1, -1)


def shift(masks: Tensor, offsets: list[int]) -> Tensor:
    """Move each band to the right, zeros around it: `(B, C, H, W)` → `(B, C, H, W')`.

    Args:
        masks: one image per band.
        offsets: a column >= 0 for each band, pixels; W' is W and the largest of them.
    """
    extra = max(offsets)
    moved = [
        F.pad(masks[:, c : c + 1], (offset, extra - offset)) for c, offset in enumerate(offsets)
    ]
    return torch.cat(moved, 1).contiguous(memory_format=torch.channels_last)


def pad_reflect(x: Tensor, multiple: int) -> Tensor:
    """Mirror the image below and to the right until H and W are multiples of a number.

    An image smaller than what is missing has its last row or column repeated instead.
    """
    height, width = x.shape[-2:]
    below, right = -height % multiple, -width % multiple
    if not (below or right):
        return x
    mode = "reflect" if below < height and right < width else "replicate"
    return F.pad(x, (0, right, 0, below), mode=mode)
