"""SAUNet: unrolled ADMM whose denoisers attend by convolutions."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.grid import Camera, Wide, mix_measurement, moved_masks, offsets, roll_bands
from cassi.models.layers import (
    PreNorm,
    check_counts,
    convolve,
    draw_narrow,
    in_order,
    mix,
    normalize,
    pad_to_multiple,
)
from cassi.models.network import Unrolled
from cassi.models.published.dauhst import ParameterNet
from cassi.models.registry import register

SCALES = 3
"""Resolutions of a denoiser, each half of the one before."""
MULTIPLE = 16
"""Of rows and columns, as the published weights were trained."""


def channel_norm(dim: int) -> nn.LayerNorm:
    """Return the norm of the channels of each pixel, about their mean."""
    return nn.LayerNorm(dim, eps=1e-6)


class ConvolutionalModulation(nn.Module):
    """P(A(x) ⊙ V x), where A is a 1×1 convolution, GELU and a wide depthwise convolution.

    Args:
        kernel: pixels along each side of the depthwise convolution, odd.

    Source: Wang et al., arXiv 2023, section 3.3.
    """

    def __init__(self, dim: int, kernel: int = 7) -> None:
        super().__init__()
        self.norm = channel_norm(dim)
        spread = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.a = nn.Sequential(nn.Conv2d(dim, dim, 1), nn.GELU(), spread)
        self.v = nn.Conv2d(dim, dim, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        x = normalize(self.norm, x)
        weights = convolve(self.a[2], F.gelu(mix(self.a[0], x)))
        return mix(self.proj, weights * mix(self.v, x))


class SpreadFeedForward(nn.Module):
    """1×1, 3×3 depthwise and 1×1 convolution, with GELU after the first two.

    Args:
        factor: channels inside, in units of `dim`.
    """

    def __init__(self, dim: int, factor: int = 4) -> None:
        super().__init__()
        inner = factor * dim
        self.fc = nn.Sequential(nn.Conv2d(dim, inner, 1, bias=False))
        self.dwconv = nn.Sequential(nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False))
        self.ffn = nn.Conv2d(inner, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        inside = F.gelu(convolve(self.dwconv, F.gelu(mix(self.fc[0], x))))
        return mix(self.ffn, inside)


class ConvolutionalAttentionBlock(nn.Module):
    """x + modulation(x), then x + feed_forward(norm(x)), on images `(B, H, W, c)`.

    Args:
        drop: probability that a sample of a training passes by a branch.
    """

    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.attn = ConvolutionalModulation(dim)
        self.dwffn = PreNorm(channel_norm(dim), SpreadFeedForward(dim))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        x = x + self._pass(self.attn(x))
        return x + self._pass(self.dwffn(x))

    def _pass(self, branch: Tensor) -> Tensor:
        if not (self.training and self.drop):
            return branch
        kept = torch.rand(len(branch), 1, 1, 1, device=branch.device) >= self.drop
        return branch * kept.to(branch.dtype) / (1 - self.drop)


def blocks(dim: int, count: int, drop: float) -> nn.Sequential:
    """Return blocks one after another; the last is passed by with probability `drop`."""
    each = [drop] if count == 1 else [drop * i / (count - 1) for i in range(count)]
    row = (ConvolutionalAttentionBlock(dim, probability) for probability in each)
    return in_order(blocks=nn.Sequential(*row))


class ConvolutionalTransformer(nn.Module):
    """A U-Net of convolutional attention, told the noise level by one more channel.

    Any height and width: reflected to a multiple of 16, and cropped.

    Args:
        drop: probability that a branch is passed by in a training.
        drop_bottom: the same, of the last block at the lowest resolution.

    Source: Wang et al., arXiv 2023, figure 3.
    """

    def __init__(self, bands: int, drop: float, drop_bottom: float) -> None:
        super().__init__()
        widths = [bands << scale for scale in range(SCALES)]
        self.embedding = nn.Sequential(nn.Conv2d(bands + 1, bands, 3, padding=1, bias=False))
        self.encoder_layers = nn.ModuleList()
        for width in widths[:-1]:
            down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False)
            self.encoder_layers.append(nn.ModuleList([blocks(width, 1, drop), down]))
        self.bottleneck = blocks(widths[-1], 3, drop_bottom)
        self.decoder_layers = nn.ModuleList()
        for width in reversed(widths[:-1]):
            up = nn.ConvTranspose2d(2 * width, width, 2, 2)
            fuse = nn.Conv2d(2 * width, width, 1, bias=False)
            self.decoder_layers.append(nn.ModuleList([up, fuse, blocks(width, 1, drop)]))
        self.mapping = nn.Sequential(nn.Conv2d(bands, bands, 3, padding=1, bias=False))
        draw_narrow(self, nn.Linear)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""
        height, width = x.shape[-2:]
        padded = pad_to_multiple(x, MULTIPLE, "mirror").permute(0, 2, 3, 1)
        plane = sigma.to(x.dtype).expand(-1, *padded.shape[1:3], -1)
        features = convolve(self.embedding, torch.cat((padded, plane), -1))
        kept = []
        for row, down in (cast(nn.ModuleList, group) for group in self.encoder_layers):
            features = row(features)
            kept.append(features)
            features = convolve(down, features)
        features = self.bottleneck(features)
        for up, fuse, row in (cast(nn.ModuleList, group) for group in self.decoder_layers):
            features = row(mix(fuse, convolve(up, features), kept.pop()))
        cube = (convolve(self.mapping, features) + padded).permute(0, 3, 1, 2)
        return cube[..., :height, :width]


@register("saunet_1stg", stages=1)
@register("saunet_2stg", stages=2)
@register("saunet_3stg", stages=3)
@register("saunet_5stg", stages=5)
@register("saunet_9stg", stages=9)
@register("saunet_13stg", stages=13)
class SAUNet(Unrolled):
    """Unrolled ADMM with a learned step γ_i of the multiplier.

        v = (x − u) + Aᵀ(AAᵀ + α_i I)⁻¹(y − A(x − u)),   x ← CMFormer_i(v + u, β_i)
        u ← u + γ_i (v − x)

    α and β of every stage are estimated from y and the mask.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        drop: probability that a sample of a training passes by a branch of a denoiser.
        drop_bottom: the same at the lowest resolution, reached at its last block. Published for 1,
            2, 3, 5, 9, 13 stages: drop 0, .1, .1, .1, 0, .1, drop_bottom 0, .1, .2, .2, .3, .2.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1, or a probability outside of [0, 1).

    Source: Wang, Wang, Liu, Zheng, Wang, "A simple adaptive unfolding network for hyperspectral
    image reconstruction", arXiv 2023; names of the weights as in its code.
    """

    def __init__(
        self,
        bands: int = 28,
        stages: int = 1,
        drop: float = 0.0,
        drop_bottom: float = 0.0,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        check_counts("SAUNet", stages=stages)
        for name, probability in (("drop", drop), ("drop_bottom", drop_bottom)):
            if not 0 <= probability < 1:
                raise ValueError(
                    f"SAUNet {name}: expected a probability in [0, 1), got {probability}"
                )
        self.para_estimator = ParameterNet(bands, stages)
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.gamma = nn.ParameterList(torch.zeros(()) for _ in range(stages - 1))
        self.denoisers = nn.ModuleList(
            ConvolutionalTransformer(bands, drop, drop_bottom) for _ in range(stages)
        )

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        wide = Wide(system)
        guess = mix_measurement(self.fution, y, moved_masks(y, system), system, 2 / self.bands)
        alpha, beta = self.para_estimator(guess)
        x = roll_bands(guess, [-shift for shift in offsets(system)])
        dual: Any = 0.0
        for i, denoiser in enumerate(self.denoisers):
            v = wide.data_step(x - dual, y, alpha[:, i, 0, 0])
            x = partial(self.compute, denoiser)(v + dual, beta[:, i : i + 1])
            if i < self.stages - 1:
                dual = dual + self.gamma[i] * (v - x)
        return x[..., : wide.width]
