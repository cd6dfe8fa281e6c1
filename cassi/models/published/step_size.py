"""How far a data step goes, at each pixel of each band."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from cassi.models.pixelwise import convolve, mix
from cassi.solvers.base import Prior

REDUCTION = 8
"""Channels of a step size, per channel that weights them."""


class StepSize(nn.Module):
    """The step of a data step, one number per band and pixel, from the cube and the masks.

    Source: Li et al., ICCV 2023, figure 3; names of the weights as in its code.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.attention = _StepWeights(bands)

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        """Estimate: cube and masks `(1|B, C, H, W')`, their bands where they fall, → the like."""
        return cast(Tensor, self.attention(x, masks))


class _StepWeights(nn.Module):
    def __init__(self, bands: int) -> None:
        super().__init__()
        # Fewer units than the published 3 may all be silent, from the first step of training on.
        few = bands // REDUCTION if bands >= 3 * REDUCTION else 8
        self.conv1 = nn.Conv2d(bands, bands, 3, padding=1)
        self.conv2 = nn.Conv2d(bands, bands, 1)
        self.conv3 = nn.Conv2d(2 * bands, bands, 1)
        self.ca = nn.Module()
        self.ca.conv_du = nn.Sequential(
            nn.Conv2d(bands, few, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(few, bands, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        of_masks = convolve(self.conv1, masks.permute(0, 2, 3, 1))
        both = mix(self.conv3, mix(self.conv2, x.permute(0, 2, 3, 1)), of_masks)
        both = both.permute(0, 3, 1, 2)
        weights: Tensor = self.ca.get_submodule("conv_du")(both.mean((2, 3), keepdim=True))
        return both * weights


def partway(x: Tensor, sizes: Tensor, prior: Prior) -> Prior:
    """Return the prior of a data step that goes part of the way.

    Args:
        x: where the step begins, `(B, C, H, W')`.
        sizes: parts of the way, `(B, C, H, W)` with W ≤ W'; the rest is not moved by the step.
        prior: what follows.
    """

    def apply(v: Tensor, sigma: Any) -> Tensor:
        width = sizes.shape[-1]
        seen = torch.lerp(x[..., :width], v[..., :width], sizes.to(v.dtype))
        return prior(torch.cat((seen, v[..., width:]), -1), sigma)

    return apply
