"""Blocks that mix priors among channels and among pixels, and what joins them in a U-Net."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.channel_attention import ChannelAttention
from cassi.models.pixelwise import GatedFeedForward, PixelNorm, convolve, mix


class Inception(nn.Module):
    """Four groups of channels: of a pixel, of 3×3, of 5×5 pixels, and of their mean.

    Args:
        dim: channels, a multiple of 4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        quarter, sixth = dim // 4, dim // 6
        self.branch0 = Activated(dim, quarter)
        self.branch1 = nn.Sequential(
            Activated(dim, sixth), Activated(sixth, sixth, 3), Activated(sixth, quarter)
        )
        self.branch2 = nn.Sequential(
            Activated(dim, sixth),
            Activated(sixth, sixth, 3),
            Activated(sixth, quarter),
            Activated(quarter, quarter, 3),
            Activated(quarter, quarter),
        )
        mean = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.branch3 = nn.Sequential(mean, Activated(dim, quarter))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        mean, last = self.branch3
        branches = (self.branch0, self.branch1, self.branch2)
        parts = [cast(Tensor, branch(x)) for branch in branches]
        return torch.cat((*parts, last(convolve(mean, x))), -1)


class Activated(nn.Module):
    """GELU of a convolution: 1×1, or depthwise where it is larger."""

    def __init__(self, inputs: int, outputs: int, size: int = 1) -> None:
        super().__init__()
        groups = 1 if size == 1 else inputs
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, c')`."""
        mixed = mix(self.conv, x) if self.conv.kernel_size == (1, 1) else convolve(self.conv, x)
        return F.gelu(mixed)


class SpatialBranch(nn.Module):
    """Normalize, keeping the mean, and look around each pixel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = PixelNorm(dim, centred=False)
        self.inception = Inception(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        return cast(Tensor, self.inception(self.norm(x)))


class Residual(nn.Module):
    """x + module(x)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Map an image to the same."""
        return x + cast(Tensor, self.module(x))


class MixBlock(nn.Module):
    """A spatial and a spectral branch that weight each other, and a feed-forward network.

    Source: Dong et al., CVPR 2023, section 3.3 and figure 4; names of the weights as in its code.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.spatial_branch = SpatialBranch(dim)
        self.spatial_conv = nn.Conv2d(dim, dim, 1, bias=False)
        self.spatial_interaction = nn.Conv2d(dim, 1, 1, bias=False)
        self.spectral_branch = ChannelAttention(dim, heads, norm=True)
        self.spectral_interaction = nn.Sequential(
            nn.Conv2d(dim, dim // 8, 1, bias=False),
            PixelNorm(dim // 8, centred=False),
            nn.GELU(),
            nn.Conv2d(dim // 8, dim, 1, bias=False),
        )
        self.ffn = Residual(GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        spatial = self.spatial_branch(x)
        spectral = self.spectral_branch(x, mix(self.spatial_interaction, spatial))
        narrow, norm, act, widen = self.spectral_interaction
        weights = mix(cast(nn.Conv2d, narrow), spectral.mean((1, 2), keepdim=True))
        weights = torch.sigmoid(mix(cast(nn.Conv2d, widen), act(norm(weights))))
        spatial = mix(self.spatial_conv, F.gelu(spatial) * weights)
        return cast(Tensor, self.ffn(2 * x + spatial + spectral))


class StageInteraction(nn.Module):
    """Scale and offset of features, made of what the stage before left at this scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.st_inter_enc = nn.Conv2d(dim, dim, 1, bias=False)
        self.st_inter_dec = nn.Conv2d(dim, dim, 1, bias=False)
        self.phi = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
        self.gamma = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)

    def forward(self, x: Tensor, encoded: Tensor, decoded: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        skip = F.gelu(mix(self.st_inter_enc, encoded) + mix(self.st_inter_dec, decoded))
        return torch.addcmul(convolve(self.gamma, skip), torch.sigmoid(convolve(self.phi, skip)), x)


class BlockInteraction(nn.Module):
    """Features of one scale, made of those of all scales."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.GELU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )

    def forward(self, *images: Tensor) -> Tensor:
        """Map images `(B, H, W, c)` of one size to `(B, H, W, c')`."""
        return convolve(self.conv[2], F.gelu(mix(cast(nn.Conv2d, self.conv[0]), *images)))


class Resampling(nn.Module):
    """Scale bilinearly, then a 3×3 convolution."""

    def __init__(self, inputs: int, outputs: int, factor: float, name: str) -> None:
        super().__init__()
        scaling = nn.Upsample(scale_factor=factor, mode="bilinear", align_corners=False)
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.add_module(name, nn.Sequential(scaling, conv))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H', W', c')`."""
        for layers in self.children():
            x = convolve(layers, x)
        return x


def rescale(x: Tensor, factor: float) -> Tensor:
    """Scale images `(B, H, W, c)` bilinearly."""
    images = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=factor, mode="bilinear")
    return images.permute(0, 2, 3, 1)
