"""The grid of the detector, on which every band lies where it falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.models._inputs import band_masks
from cassi.models.grid import Camera, offsets
from cassi.models.wide import place_bands


def moved_masks(y: Tensor, system: Camera) -> Tensor:
    """Return the mask of each band where it falls, zeros around it: `(1|B, C, H, W')`."""
    return place_bands(band_masks(y, system), offsets(system), y.shape[-1] - system.mask.shape[-1])


class Sensing:
    """A camera whose bands already lie where they fall, and whose mask is any matrix Φ.

        A x = Σ_c Φ_c ⊙ x_c

    Args:
        matrix: `(B, C, H, W')`.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return ops.forward(x, self.matrix, 0)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return ops.adjoint(y, self.matrix, self.matrix.shape[2], 0)

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return self.data_step(torch.zeros_like(self.matrix[:, 0]), y)

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²."""
        return ops.data_step(v, y, self.matrix, 0, rho)


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
