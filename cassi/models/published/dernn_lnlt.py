"""DERNN-LNLT: one stage, applied again and again, that estimates what degrades the cube."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.grid import (
    Camera,
    Sensing,
    gather_bands,
    in_place,
    mix_measurement,
    moved_masks,
    offsets,
)
from cassi.models.layers import (
    GatedFeedForward,
    PixelNorm,
    PreNorm,
    Resampling,
    check_counts,
    convolve,
    draw_narrow,
    mix,
    pad_to_multiple,
    pooled_mlp,
    spread_pixels,
    widen,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register
from cassi.solvers import HQS

PARTS = 8
"""Parts of an image along each side, for attention among them."""


SCALES = 3
"""Resolutions of the denoiser, each half of the one before."""
MULTIPLE = PARTS * 2 ** (SCALES - 1)


class PixelAttention(nn.Module):
    """Attention with q, k, v = depthwise(W x), and a table of positions.

    Local: among the pixels of each 8×8 window. Otherwise among 8×8 equal parts of the image, of
    which a head sees some of the rows. H and W are multiples of 8.

    Source: Dong et al., "Degradation estimation recurrent neural network with local and non-local
    priors", AAAI 2024, section 3.3.
    """

    def __init__(self, dim: int, heads: int, local: bool) -> None:
        super().__init__()
        self.heads, self.local = heads, local
        tokens = WINDOW * WINDOW if local else PARTS * PARTS
        self.pos_emb = nn.Parameter(torch.empty(1, heads, tokens, tokens))
        nn.init.trunc_normal_(self.pos_emb)
        self.qkv = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        self.qkv_dwconv = nn.Conv2d(3 * dim, 3 * dim, 3, padding=1, groups=3 * dim, bias=False)
        self.project_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same."""
        cut = to_windows if self.local else to_parts
        q, k, v = (
            cut(part).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in widen(x, self.qkv, self.qkv_dwconv, 3)
        )
        mixed = attend(q, k, v, self.pos_emb[0]).transpose(-2, -3).flatten(-2)
        height, width = x.shape[1:3]
        join = from_windows if self.local else from_parts
        return mix(self.project_out, join(mixed, height, width))


def to_parts(x: Tensor) -> Tensor:
    """Cut an image into parts: `(B, H, W, c)` → `(B, 64, H/8·W/8·c)`."""
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, PARTS, height // PARTS, PARTS, width // PARTS, channels)
    return parts.transpose(2, 3).reshape(batch, PARTS * PARTS, -1)


def from_parts(tokens: Tensor, height: int, width: int) -> Tensor:
    """Undo `to_parts`."""
    parts = tokens.reshape(len(tokens), PARTS, PARTS, height // PARTS, width // PARTS, -1)
    return parts.transpose(2, 3).reshape(len(tokens), height, width, -1)


class LocalNonLocalBlock(nn.Module):
    """Local attention, non-local attention and a feed-forward network, each with a skip."""

    def __init__(self, dim: int, heads: int, count: int) -> None:
        super().__init__()

        def block() -> nn.ModuleList:
            parts = (
                PixelAttention(dim, heads, local=True),
                PixelAttention(dim, heads, local=False),
                GatedFeedForward(dim, bias=True),
            )
            return nn.ModuleList(PreNorm(PixelNorm(dim), part) for part in parts)

        self.blocks = nn.ModuleList(block() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        for parts in self.blocks:
            for part in cast(nn.ModuleList, parts):
                x = x + part(x)
        return x


class LocalNonLocalTransformer(nn.Module):
    """A U-Net of three scales, told the noise level by one more channel.

    Any height and width: reflected to a multiple, and cropped.

    Args:
        bands: number C of bands.
        block: what maps `(B, h, w, c)` to the same at a scale, 0 for the finest; made twice for all
            scales but the coarsest.
        multiple: of which rows and columns are.

    Source: Dong et al., AAAI 2024, figure 3.
    """

    def __init__(
        self, bands: int, block: Callable[[int], nn.Module], multiple: int = MULTIPLE
    ) -> None:
        super().__init__()
        self.multiple = multiple

        def down(dim: int) -> Resampling:
            return Resampling("down", nn.Conv2d(dim, 2 * dim, 4, 2, 1, bias=False))

        def up(dim: int) -> Resampling:
            return Resampling("up", nn.ConvTranspose2d(dim, dim // 2, 2, 2))

        fine, middle, coarse = (bands << scale for scale in range(SCALES))
        self.embedding = nn.Conv2d(bands + 1, bands, 3, padding=1, bias=False)
        self.Encoder = nn.ModuleList((block(0), block(1)))
        self.BottleNeck = block(2)
        self.Decoder = nn.ModuleList((block(1), block(0)))
        self.Downs = nn.ModuleList((down(fine), down(middle)))
        self.Ups = nn.ModuleList((up(coarse), up(middle)))
        self.fusions = nn.ModuleList(
            (nn.Conv2d(coarse, middle, 1, bias=False), nn.Conv2d(middle, fine, 1, bias=False))
        )
        self.mapping = nn.Conv2d(bands, bands, 3, padding=1, bias=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""
        height, width = x.shape[-2:]
        padded = pad_to_multiple(x, self.multiple, "mirror").permute(0, 2, 3, 1)
        plane = sigma.to(x.dtype).expand(-1, *padded.shape[1:3], -1)
        features = convolve(self.embedding, torch.cat((plane, padded), -1))
        kept = []
        for encoder, down in zip(self.Encoder, self.Downs, strict=True):
            features = encoder(features)
            kept.append(features)
            features = down(features)
        features = self.BottleNeck(features)
        for up, fusion, decoder in zip(self.Ups, self.fusions, self.Decoder, strict=True):
            features = decoder(mix(fusion, up(features), kept.pop()))
        cube = (convolve(self.mapping, features) + padded).permute(0, 3, 1, 2)
        return cube[..., :height, :width]


class DegradationEstimation(nn.Module):
    """Estimate the sensing matrix, ρ and σ from the cube and the masks.

        Φ = masks + DL(masks, z)

    Source: Dong et al., AAAI 2024, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        wide = 2 * bands
        self.DL = nn.Sequential(
            spread_pixels(wide, wide, bias=True), spread_pixels(wide, bands, bias=True)
        )
        self.down_sample = nn.Conv2d(bands, wide, 3, stride=2, padding=1)
        self.mlp = pooled_mlp(wide, 2, bias=True).append(nn.Softplus())

    def forward(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Estimate Φ `(B, C, H, W')`, ρ `(B,)`, σ `(B, 1, 1, 1)`; z and masks are shaped like Φ."""
        change = self.DL(torch.cat((masks.expand(len(z), -1, -1, -1), z), 1))
        features = self.down_sample(change.relu()).mean((2, 3), keepdim=True)
        # Not zero: ρ divides.
        both = self.mlp(features) + 1e-6
        return masks + change, both[:, 0, 0, 0], both[:, 1:]


@register("dernn_lnlt_5stg", stages=5)
@register("dernn_lnlt_7stg", stages=7)
@register("dernn_lnlt_9stg", stages=9)
@register("dernn_lnlt_9stg_star", stages=9, blocks=2)
class DERNNLNLT(Unrolled):
    """Unrolled half-quadratic splitting with one set of weights for all stages.

        v = z + Φᵀ(ΦΦᵀ + ρI)⁻¹(y − Φz),   z ← LNLT(v, σ),   Φ, ρ, σ estimated from z

    Between stages the bands lie where they fall on the detector; the denoiser sees them together.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        blocks: of the denoiser, at each scale.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1.

    Source: Dong et al., "Degradation estimation recurrent neural network with local and non-local
    priors for compressive spectral imaging", AAAI 2024; names of the weights as in its code.
    """

    def __init__(
        self, bands: int = 28, stages: int = 5, blocks: int = 1, checkpointing: bool = False
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        check_counts("DERNNLNLT", blocks=blocks)
        self.fusion = nn.Conv2d(2 * bands, bands, 1)
        self.DP = DegradationEstimation(bands)

        def block(scale: int) -> LocalNonLocalBlock:
            return LocalNonLocalBlock(bands << scale, 1 << scale, blocks)

        self.PP = LocalNonLocalTransformer(bands, block)
        draw_narrow(self, nn.Conv2d)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        shifts, width = offsets(system), system.mask.shape[-1]
        masks, denoise = moved_masks(y, system), partial(self.compute, self.PP)
        prior = in_place(denoise, shifts, width, y.shape[-1])
        algorithm = HQS()
        guess = mix_measurement(self.fusion, y, masks, system)
        state = algorithm.init(y, Sensing(masks), guess)
        for _ in range(self.stages):
            matrix, rho, sigma = self.DP(state.x, masks)
            state = algorithm.step(state, y, Sensing(matrix), prior, sigma, rho)
        return gather_bands(state.x, shifts, width)
