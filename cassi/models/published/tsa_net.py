"""TSA-Net: a U-Net with attention over rows, columns and bands, one after another."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models._inputs import band_masks, initial_cube
from cassi.models.grid import Camera, Reconstructor
from cassi.models.layers import check_counts, pad_to_multiple
from cassi.models.published.triple_attention import Pair, TripleAttention
from cassi.models.registry import register


def plain_block(inputs: int, outputs: int) -> nn.Sequential:
    """3×3 convolution and ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True))


class Res2Net(nn.Module):
    """Groups of channels, each convolved after the one before was added.

    Source: Gao et al., "Res2Net: a new multi-scale backbone architecture", TPAMI 2021; as in
    TSA-Net the last group passes by and there is no skip.
    """

    def __init__(self, channels: int, width: int, scale: int = 4) -> None:
        super().__init__()
        self.conv_init = nn.Conv2d(channels, width * scale, 1, bias=False)
        self.bn_init = nn.BatchNorm2d(width * scale)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(scale - 1)
        )
        self.bns = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(scale - 1))
        self.conv_end = nn.Conv2d(width * scale, channels, 1, bias=False)
        self.bn_end = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        *groups, last = self.bn_init(self.conv_init(x)).relu_().chunk(len(self.convs) + 1, 1)
        done: list[Tensor] = []
        for group, conv, norm in zip(groups, self.convs, self.bns, strict=True):
            done.append(norm(conv(done[-1] + group if done else group)).relu_())
        return cast(Tensor, self.bn_end(self.conv_end(torch.cat((*done, last), 1))))


class Encoder(nn.Module):
    """Two layers; the second is a Res2Net where the image is small."""

    def __init__(self, inputs: int, outputs: int, deep: bool) -> None:
        super().__init__()
        self.layer1 = plain_block(inputs, outputs)
        self.layer2 = Res2Net(outputs, outputs // 4) if deep else plain_block(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, inputs, H, W)` to `(B, outputs, H, W)`."""
        return cast(Tensor, self.layer2(self.layer1(x)))


class Decoder(nn.Module):
    """Twice the pixels, joined with what the encoder passed by."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.ReLU(inplace=True)
        )
        self.layer2 = Res2Net(2 * outputs, outputs // 2)
        self.layer3 = plain_block(2 * outputs, outputs)

    def forward(self, x: Tensor, passed: Tensor) -> Tensor:
        """Map `(B, inputs, H/2, W/2)` and `(B, outputs, H, W)` to `(B, outputs, H, W)`."""
        return cast(Tensor, self.layer3(self.layer2(torch.cat((self.layer1(x), passed), 1))))


@register("tsa_net")
class TSANet(Reconstructor):
    """The network with triple attention, with the published names of weights.

    It is given the first cube times the mask. Its linear layers span whole rows, columns and
    images: for other sizes than `size` their inputs are interpolated, which wants training anew.

    Args:
        bands: number C of bands.
        size: H, W of the images that it is made for, at least 64 each, multiples of 16.

    Raises:
        ValueError: a size that is no such multiple.

    Source: Meng, Ma, Yuan, "End-to-end low cost compressive spectral imaging with spatial-spectral
    self-attention", ECCV 2020.
    """

    least, multiple = 64, 16
    """Smallest image on which a 5×5 convolution fits twice at a quarter of the size."""

    def __init__(self, bands: int = 28, size: Pair = (256, 256)) -> None:
        super().__init__(bands)
        size = cast(Pair, tuple(size))
        check_counts("TSANet", height=size[0], width=size[1])
        if min(size) < self.least or size[0] % self.multiple or size[1] % self.multiple:
            raise ValueError(
                f"TSANet size: expected multiples of {self.multiple}, at least {self.least}, "
                f"got {size}"
            )
        half, quarter = ((size[0] // n, size[1] // n) for n in (2, 4))
        self.tconv_down1 = Encoder(bands, 64, deep=False)
        self.tconv_down2 = Encoder(64, 128, deep=False)
        self.tconv_down3 = Encoder(128, 256, deep=True)
        self.tconv_down4 = Encoder(256, 512, deep=True)
        self.bottom1 = plain_block(512, 1024)
        self.bottom2 = plain_block(1024, 1024)
        self.tconv_up4 = Decoder(1024, 512)
        self.tconv_up3 = Decoder(512, 256)
        self.transform3 = TripleAttention(256, 256, quarter, (64, 80), level=0)
        self.tconv_up2 = Decoder(256, 128)
        self.transform2 = TripleAttention(128, 128, half, (64, 40), level=1)
        self.tconv_up1 = Decoder(128, 64)
        self.transform1 = TripleAttention(64, bands, size, (48, 30), level=2, near=True)
        self.conv_last = nn.Conv2d(bands, bands, 1)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`, in (0, 1)."""
        height, width = system.mask.shape[-2:]
        x = initial_cube(y, system) * band_masks(y, system)
        small = (0, max(0, self.least - width), 0, max(0, self.least - height))
        x = pad_to_multiple(F.pad(x, small, mode="replicate") if any(small) else x, self.multiple)
        e1 = self.tconv_down1(x)
        e2 = self.tconv_down2(F.max_pool2d(e1, 2))
        e3 = self.tconv_down3(F.max_pool2d(e2, 2))
        e4 = self.tconv_down4(F.max_pool2d(e3, 2))
        bottom = self.bottom2(self.bottom1(F.max_pool2d(e4, 2)))
        d3 = self.transform3(self.tconv_up3(self.tconv_up4(bottom, e4), e3))
        d2 = self.transform2(self.tconv_up2(d3, e2))
        d1 = self.transform1(self.tconv_up1(d2, e1))
        return cast(Tensor, self.conv_last(d1)).sigmoid()[..., :height, :width]
