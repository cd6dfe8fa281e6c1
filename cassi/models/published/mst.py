"""MST: a U-Net whose attention between bands is guided by the mask."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cassi.models._inputs import band_masks, initial_cube, pad_reflect, shift
from cassi.models.grid import Camera, Reconstructor, offsets
from cassi.models.published.spectral_attention import SpectralUNet
from cassi.models.registry import register


@register("mst_s", blocks=(2, 2, 2))
@register("mst_m", blocks=(2, 4, 4))
@register("mst_l", blocks=(4, 7, 5))
class MST(Reconstructor, SpectralUNet):
    """The mask-guided spectral-wise transformer, with the published names of weights.

    Other steps than the published 2, and other directions, shift the masks as the camera does; a
    mask per sample guides its sample.

    Args:
        bands: number C of bands, and channels at full size.
        blocks: how many at each scale, the smallest image last.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "Mask-guided spectral-wise transformer for efficient hyperspectral image
    reconstruction", CVPR 2022.
    """

    def __init__(self, bands: int = 28, blocks: Sequence[int] = (2, 2, 2)) -> None:
        super().__init__(bands)
        self.build(bands, tuple(blocks), guided=True)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        multiple = 2 ** len(self.encoder_layers)
        x = pad_reflect(initial_cube(y, system), multiple)
        masks = shift(pad_reflect(band_masks(y, system), multiple), offsets(system))
        return self.restore(x, masks, system.step)[..., :height, :width]
