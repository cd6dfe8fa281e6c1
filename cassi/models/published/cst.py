"""CST: a U-Net that attends only where an estimate of sparsity says that it is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models._inputs import band_masks, initial_cube, pad_reflect
from cassi.models.grid import Camera, Reconstructor
from cassi.models.layers import check_counts
from cassi.models.published.hash_attention import HashBlocks
from cassi.models.registry import register


class Pyramid(nn.Module):
    """Convolutions of different reach and the mean of the image, joined.

    Source: Chen et al., "Rethinking atrous convolution for semantic image segmentation", 2017.
    """

    def __init__(self, channels: int, reaches: Sequence[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=reach, dilation=reach, bias=False),
                nn.ReLU(inplace=True),
            )
            for reach in reaches
        )
        self.convs.append(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(channels, channels, 1, bias=False),
                nn.ReLU(inplace=True),
            )
        )
        self.project = nn.Sequential(
            nn.Conv2d(len(self.convs) * channels, channels, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        parts = [conv(x).expand(-1, -1, *x.shape[-2:]) for conv in self.convs]
        return cast(Tensor, self.project(torch.cat(parts, 1)))


class SparsityEstimator(nn.Module):
    """A small U-Net that gives features, and where asked the need of attention as one channel more.

    Args:
        dim: channels of the cube and at full size; doubled at each halving.
        sparse: whether the need is wanted.
    """

    def __init__(self, dim: int, sparse: bool) -> None:
        super().__init__()
        self.in_proj = nn.Conv2d(dim, dim, 1, bias=False)
        self.encoder_layers = nn.ModuleList()
        for wide in (dim, 2 * dim):
            self.encoder_layers.append(
                nn.ModuleList(
                    (
                        nn.Conv2d(wide, 2 * wide, 1, bias=False),
                        nn.Conv2d(2 * wide, 2 * wide, 3, 2, 1, bias=False, groups=2 * wide),
                        nn.Conv2d(2 * wide, 2 * wide, 1, bias=False),
                    )
                )
            )
        self.bottleneck = Pyramid(4 * dim, (3, 6))
        self.decoder_layers = nn.ModuleList()
        for wide in (2 * dim, dim):
            self.decoder_layers.append(
                nn.ModuleList(
                    (
                        nn.ConvTranspose2d(2 * wide, wide, 2, 2),
                        nn.Conv2d(wide, 2 * wide, 1, bias=False),
                        nn.Conv2d(2 * wide, 2 * wide, 3, 1, 1, bias=False, groups=2 * wide),
                        nn.Conv2d(2 * wide, wide, 1, bias=False),
                    )
                )
            )
        self.out_conv2 = nn.Conv2d(dim, dim + sparse, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)`, multiples of 4, to `(B, C, H, W)` or `(B, C + 1, H, W)`."""
        x, passed = F.leaky_relu(self.in_proj(x), 0.1), []
        for layers in self.encoder_layers:
            passed.append(x)
            x = _chain(cast(nn.ModuleList, layers), x)
        x = self.bottleneck(x) + x
        for layers in self.decoder_layers:
            double, *rest = cast(nn.ModuleList, layers)
            x = _chain(rest, double(x)) + passed.pop()
        return cast(Tensor, self.out_conv2(x))


def _chain(layers: Sequence[nn.Module] | nn.ModuleList, x: Tensor) -> Tensor:
    first, second, third = layers
    x = F.leaky_relu(second(F.leaky_relu(first(x), 0.1)), 0.1)
    return cast(Tensor, third(x))


@register("cst_s", blocks=(1, 1, 2))
@register("cst_m", blocks=(2, 2, 2))
@register("cst_l", blocks=(2, 4, 6), estimators=2)
@register("cst_l_plus", blocks=(2, 4, 6), estimators=2, sparse=False)
class CST(Reconstructor):
    """The coarse-to-fine sparse transformer, with the published names of weights.

    Its attention draws random numbers at every call: `torch.manual_seed` makes results repeat.

    Args:
        bands: number C of bands, and channels at full size.
        blocks: how many at each scale, the smallest image last.
        estimators: networks in a row that make the features.
        sparse: whether only half of the windows attend.
        window: side of a window, pixels, even.

    Raises:
        ValueError: a count below 1, or an odd window.

    Source: Lin et al., "Coarse-to-fine sparse transformer for hyperspectral image reconstruction",
    ECCV 2022.
    """

    def __init__(
        self,
        bands: int = 28,
        blocks: Sequence[int] = (1, 1, 2),
        estimators: int = 1,
        sparse: bool = True,
        window: int = 16,
    ) -> None:
        super().__init__(bands)
        levels = len(blocks) - 1
        check_counts("CST", levels=levels, estimators=estimators, window=window)
        if window % 2:
            raise ValueError(f"CST window: expected an even number, got {window}")
        self.sparse, self.multiple = sparse, window << levels

        def attend(level: int) -> HashBlocks:
            return HashBlocks(bands << level, 1 << level, blocks[level], window, sparse)

        self.fution = nn.Conv2d(2 * bands, bands, 1, bias=False)
        estimate = [
            SparsityEstimator(bands, sparse and last)
            for last in [False] * (estimators - 1) + [True]
        ]
        self.fe = estimate[0] if estimators == 1 else nn.Sequential(*estimate)
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList(
                (
                    attend(level),
                    nn.Conv2d(bands << level, bands << level + 1, 4, 2, 1, bias=False),
                )
            )
            for level in range(levels)
        )
        self.bottleneck = attend(levels)
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList(
                (nn.ConvTranspose2d(bands << level + 1, bands << level, 2, 2), attend(level))
            )
            for level in reversed(range(levels))
        )
        self.out_proj = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        masks = band_masks(y, system).expand(y.shape[0], -1, -1, -1)
        x = pad_reflect(torch.cat((initial_cube(y, system), masks), 1), self.multiple)
        x = self.fution(x)
        features, need = self.fe(x), None
        if self.sparse:
            features, need = features[:, :-1], features[:, -1:]
        passed: list[tuple[Tensor, Tensor | None]] = []
        for layers in self.encoder_layers:
            attend, halve = cast(nn.ModuleList, layers)
            features = attend(features, need)
            passed.append((features, need))
            features = halve(features)
            need = None if need is None else F.avg_pool2d(need, 2)
        features = self.bottleneck(features, need)
        for layers in self.decoder_layers:
            double, attend = cast(nn.ModuleList, layers)
            skip, need = passed.pop()
            features = attend(double(features) + skip, need)
        return cast(Tensor, self.out_proj(features) + x)[..., :height, :width]
