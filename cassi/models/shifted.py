"""The grid of the detector, on which every band lies where it falls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models._inputs import band_masks
from cassi.models.base import Camera, offsets
from cassi.models.wide import place_bands


def moved_masks(y: Tensor, system: Camera) -> Tensor:
    """Return the mask of each band where it falls, zeros around it: `(1|B, C, H, W')`."""
    return place_bands(band_masks(y, system), offsets(system), y.shape[-1] - system.mask.shape[-1])


def gather_bands(x: Tensor, shifts: Sequence[int], width: int) -> Tensor:
    """Cut each band out where it falls: `(B, C, H, W')` → `(B, C, H, width)`."""
    bands = [
        band[..., shift : shift + width] for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def mix_measurement(
    layer: nn.Conv2d, y: Tensor, masks: Tensor, system: Camera, scale: float = 1.0
) -> Tensor:
    """Mix the measurement and the masks into a first cube, its bands where they fall.

    A 1×1 convolution of 2C channels: scale·y where band c falls, and the mask there. Of the first C
    channels it needs no image: y is the same in all of them, so what is left is one weight per band
    and column.

    Args:
        layer: of 2C to C channels.
        y: `(B, 1, H, W')`.
        masks: as `moved_masks` gives them.
        system: the camera.
        scale: of y.

    Returns:
        `(B, C, H, W')`.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer", NeurIPS 2022.
    """
    width = system.mask.shape[-1]
    ones = y.new_ones(1, system.bands, 1, width)
    reached = place_bands(ones, offsets(system), y.shape[-1] - width)
    of_y, of_mask = layer.weight.chunk(2, 1)
    per_column = F.conv2d(reached, of_y) * scale
    guess = F.linear(masks.permute(0, 2, 3, 1), of_mask.flatten(1), layer.bias)
    return guess.permute(0, 3, 1, 2) + per_column * y
