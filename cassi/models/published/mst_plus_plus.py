"""MST++: U-Nets of spectral attention, one after another."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from cassi.models._inputs import band_masks, initial_cube, pad_reflect
from cassi.models.grid import Camera, Reconstructor
from cassi.models.layers import check_counts
from cassi.models.mixing import initialize_linear
from cassi.models.published.spectral_attention import SpectralUNet
from cassi.models.registry import register


class Stage(SpectralUNet):
    """One U-Net with one block at each scale, and no mask."""

    def __init__(self, dim: int, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.build(dim, blocks, guided=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        return self.restore(x)


@register("mst_plus_plus")
class MSTPlusPlus(Reconstructor):
    """MST++ for snapshots, with the published names of weights.

    The mask enters once: it and the measurement are fused by a 1×1 convolution. One skip goes from
    behind the first convolution to the output.

    Args:
        bands: number C of bands, and channels at full size.
        stages: U-Nets in a row.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "MST++: multi-stage spectral-wise transformer for efficient spectral
    reconstruction", CVPR workshops 2022; for snapshots in the authors' toolbox.
    """

    def __init__(self, bands: int = 28, stages: int = 3) -> None:
        super().__init__(bands)
        check_counts("MSTPlusPlus", stages=stages)
        self.conv_in = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.body = nn.Sequential(*(Stage(bands, (1, 1, 1)) for _ in range(stages)))
        self.conv_out = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.apply(initialize_linear)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        masks = band_masks(y, system).expand(y.shape[0], -1, -1, -1)
        x = self.fution(torch.cat((initial_cube(y, system), masks), 1))
        x = self.conv_in(pad_reflect(x, 8))
        return cast(Tensor, self.conv_out(self.body(x)) + x)[..., :height, :width]
