"""LADE-DUN: an unrolled network that is told a prior, drawn by diffusion from the measurement."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.grid import (
    Camera,
    Sensing,
    gather_bands,
    moved_masks,
    offsets,
    place_bands,
)
from cassi.models.layers import (
    GatedFeedForward,
    PixelNorm,
    Resampling,
    Residuals,
    check_counts,
    convolve,
    in_order,
    mix,
    pad_to_multiple,
    spread_pixels,
)
from cassi.models.published.rdluf_mixs2 import (
    SharedStages,
    StageTransformer,
)
from cassi.models.registry import register

PATCHES = 4
"""Parts of an image along each side, of which the prior knows one token each."""
TOKENS = PATCHES**2
PRIOR = 256
"""Channels of a token."""
PERIOD = 10
"""The diffusion network is told t / (10·T)."""


def separable(
    inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0
) -> nn.Sequential:
    """Return a depthwise and a 1×1 convolution, without bias."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, size, stride, padding, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
    )


def separable_doubling(inputs: int, outputs: int) -> nn.Sequential:
    """Return a depthwise transposed convolution to twice the size, and a 1×1 convolution."""
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, inputs, 4, 2, 1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
    )


def apply_separable(layers: nn.Module, x: Tensor) -> Tensor:
    """Apply a depthwise and a 1×1 convolution to `(B, H, W, c)`."""
    spread, point = cast(nn.Sequential, layers)
    return mix(point, convolve(spread, x))


class ChannelWeights(nn.Module):
    """x ⊙ h(W₂ GELU(W₁ mean(x))), h piecewise linear from 0 to 1; one weight per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inner = max(dim // 4, 8)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(dim, inner, 1, bias=False),
            nn.GELU(),
            nn.Conv2d(inner, dim, 1, bias=False),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        narrow = F.gelu(mix(self.se[1], x.mean((1, 2), keepdim=True)))
        return x * F.hardsigmoid(mix(self.se[3], narrow))


class InvertedBottleneck(nn.Module):
    """GELU(x + W₃ weights(GELU(3×3 depthwise(GELU(W₁x))))).

    Args:
        inner: channels between the 1×1 convolutions.
        outputs: channels of the result; where they are others than those of x, a 1×1 convolution of
            x takes its place in the sum.

    Source: Howard et al., "Searching for MobileNetV3", ICCV 2019, figure 4.
    """

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.se = ChannelWeights(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        other = inputs != outputs
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False)) if other else None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, c')`."""
        inside = F.gelu(convolve(self.conv2, F.gelu(mix(self.conv1, x))))
        kept = x if self.skip is None else mix(self.skip[0], x)
        return F.gelu(mix(self.conv3, self.se(inside)) + kept)


class TokenMixer(nn.Module):
    """x + mix of tokens, then x + mix of channels, each of the normalized x `(B, n, c)`.

    Source: Tolstikhin et al., "MLP-Mixer", NeurIPS 2021, equation 1.
    """

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        half, wide = tokens // 2, 4 * dim
        self.patch_mixer = nn.Sequential(
            nn.Linear(tokens, half), nn.GELU(), nn.Linear(half, tokens)
        )
        self.channel_mixer = nn.Sequential(nn.Linear(dim, wide), nn.GELU(), nn.Linear(wide, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n, c)` to the same."""
        x = x + self.patch_mixer(self.norm1(x).mT).mT
        return x + cast(Tensor, self.channel_mixer(self.norm2(x)))


class LatentEncoder(nn.Module):
    """Sixteen tokens, one per part of the image, of the bands as the measurement shows them.

    Any height and width: the last row and column are repeated up to a multiple of 4.

    Source: Wu et al., ECCV 2024, section 3.2.
    """

    def __init__(self, bands: int, dim: int = PRIOR // 4) -> None:
        super().__init__()
        self.conv1 = InvertedBottleneck(16 * bands, 4 * bands, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(InvertedBottleneck(dim, 4 * dim, dim)) for _ in range(2)
        )
        self.conv2 = InvertedBottleneck(dim, 4 * dim, dim)
        self.mlp = TokenMixer(TOKENS, dim)
        self.end = nn.Sequential(nn.Linear(dim, PRIOR), nn.GELU())

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, 16, 256)`."""
        x = F.pixel_unshuffle(pad_to_multiple(image, 4), 4).permute(0, 2, 3, 1)
        x = self.conv1(x)
        for block in self.blocks:
            x = block(x) + x
        x = F.adaptive_avg_pool2d(self.conv2(x).permute(0, 3, 1, 2), PATCHES)
        return cast(Tensor, self.end(self.mlp(x.flatten(2).mT)))


class TokenDenoiser(nn.Module):
    """Estimate the tokens without noise, of noisy ones, what the image says and the time."""

    def __init__(self, steps: int, layers: int = 4) -> None:
        super().__init__()
        self.period = PERIOD * steps
        deeper = (
            in_order(resmlp=nn.Sequential(nn.Linear(PRIOR, PRIOR), nn.LeakyReLU(0.1)))
            for _ in range(layers)
        )
        first = (nn.Linear(2 * PRIOR + 1, PRIOR), nn.LeakyReLU(0.1))
        self.resmlp = nn.Sequential(*first, *deeper)

    def forward(self, x: Tensor, condition: Tensor, time: int) -> Tensor:
        """Map noisy tokens `(B, 16, 256)` to tokens."""
        clock = x.new_full((*x.shape[:2], 1), time / self.period)
        return cast(Tensor, self.resmlp(torch.cat((condition, clock, x), -1)))


class LatentDiffusion(nn.Module):
    """Tokens from noise in T steps, without noise in between.

        x ← c₁[t]·D(x, c, t) + c₂[t]·x,   t = T−1 … 0,   c the tokens of the image

    c₁ and c₂ are those of the mean of q(x_{t−1} | x_t, x_0) for β_t = (√.1 … √.99)².

    Source: Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020, equation 7.
    """

    def __init__(self, model: TokenDenoiser, condition: LatentEncoder, steps: int) -> None:
        super().__init__()
        self.model, self.condition = model, condition
        beta = torch.linspace(0.1**0.5, 0.99**0.5, steps, dtype=torch.float64, device="cpu") ** 2
        kept = torch.cumprod(1 - beta, 0)
        before = torch.cat((kept.new_ones(1), kept[:-1]))
        clean = beta * before.sqrt() / (1 - kept)
        noisy = (1 - before) * (1 - beta).sqrt() / (1 - kept)
        self.weights = list(zip(clean.float().tolist(), noisy.float().tolist(), strict=True))

    def forward(self, image: Tensor) -> Tensor:
        """Draw tokens `(B, 16, 256)` for images `(B, C, H, W)`.

        The noise is drawn on the CPU, the same on any device; without a training it is the same for
        all samples, so that none depends on what else is in its batch.
        """
        condition = self.condition(image)
        draws = len(image) if self.training else 1
        noise = torch.randn(draws, TOKENS, PRIOR).expand(len(image), -1, -1)
        x = noise.to(condition)
        for time in reversed(range(len(self.weights))):
            clean, noisy = self.weights[time]
            x = clean * self.model(x, condition, time) + noisy * x
        return x


class SpectralFlow(nn.Module):
    """Attention among channels, at half of the resolution; q, k, v are weighted by a map.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norm = PixelNorm(dim, centred=False)
        self.qk = separable(dim, 4 * dim, 2, 2)
        self.spatial_int_down = nn.Conv2d(1, 1, 2, 2)
        self.qkv_dwconv = nn.Conv2d(4 * dim, 4 * dim, 3, padding=1, groups=2 * dim, bias=False)
        self.qkv_v = nn.Sequential(
            nn.Conv2d(dim, 2 * dim, 1, groups=dim),
            nn.Conv2d(2 * dim, 2 * dim, (3, 5), padding=(1, 2), groups=dim, bias=False),
        )
        self.qkv_v_down = separable(2 * dim, 2 * dim, 2, 2)
        self.project_out = separable_doubling(2 * dim, dim)

    def forward(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, H, W, c)`, with weights `(B, H, W, 1)`, to the same and v `(B, H, W, 2c)`."""
        x = self.norm(x)
        value = convolve(self.qkv_v, x) * weights
        both = convolve(self.qkv_dwconv, apply_separable(self.qk, x))
        both = both * convolve(self.spatial_int_down, weights)
        small = apply_separable(self.qkv_v_down, value)
        q, k, v = (
            part.flatten(1, 2).mT.unflatten(1, (self.heads, -1))  # (B, heads, c, n)
            for part in (*both.chunk(2, -1), small)
        )
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        mixed = ((q @ k.mT) * self.temperature).softmax(-1).to(v.dtype) @ v
        mixed = mixed.flatten(1, 2).mT.reshape(small.shape)
        return apply_separable(self.project_out, mixed), value


class PriorFlow(nn.Module):
    """Attention of pixels, at half of the resolution, to the tokens of the prior.

    `norm_z` and `qkv` are among the published weights and have no influence.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norm_z = PixelNorm(PRIOR, centred=False).requires_grad_(False)
        self.qkv_zl = nn.Linear(PRIOR, 4 * dim)
        self.qkv = separable(2 * dim, 2 * dim, 2, 2).requires_grad_(False)
        self.project_out = separable_doubling(2 * dim, dim)

    def forward(self, q: Tensor, prior: Tensor) -> Tensor:
        """Map queries `(B, h, w, 2c)` and tokens `(B, n, 256)` to `(B, 2h, 2w, c)`."""
        query, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, n, c)
            for part in (q.flatten(1, 2), *self.qkv_zl(prior).chunk(2, -1))
        )
        scores = (query @ F.normalize(k, dim=-1).to(query.dtype).mT) * self.temperature
        mixed = scores.softmax(-1).to(v.dtype) @ v
        return apply_separable(self.project_out, mixed.transpose(1, 2).reshape(q.shape))


class TridentBlock(nn.Module):
    """A spatial, a spectral and a prior's branch, joined, and a feed-forward network.

    Args:
        split: whether spatial and spectral branch see half of the channels each.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int, split: bool) -> None:
        super().__init__()
        self.split = split
        part = dim // 2 if split else dim
        self.spatial_branch = in_order(
            norm=PixelNorm(part, centred=False),
            inception=in_order(mb=InvertedBottleneck(part, 2 * part, part)),
        )
        self.spatial_conv = nn.Conv2d(part, part, 1, bias=False)
        self.spatial_interaction = nn.Conv2d(part, 1, 1, bias=False)
        self.spectral_branch = SpectralFlow(part, heads)
        self.HIM = PriorFlow(part, heads)
        self.spectral_interaction = nn.Sequential(
            nn.Conv2d(part, dim // 8, 1, bias=False),
            PixelNorm(dim // 8, centred=False),
            nn.GELU(),
            nn.Conv2d(dim // 8, part, 1, bias=False),
        )
        self.spec_to_prior_inter = separable(2 * part, 2 * part, 2, 2)
        self.add_ss = nn.Sequential(nn.Conv2d(dim, dim, 1))
        self.add_ssp = nn.Sequential(nn.Conv2d(dim + part, dim, 1))
        self.ffn = Residuals(module=GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor, prior: Tensor) -> Tensor:
        """Map `(B, H, W, c)`, with tokens `(B, n, 256)`, to the same."""
        here, across = x.chunk(2, -1) if self.split else (x, x)
        spatial = self.spatial_branch(here)
        spectral, value = self.spectral_branch(across, mix(self.spatial_interaction, spatial))
        narrow, norm, act, widen = self.spectral_interaction
        weights = mix(narrow, spectral.mean((1, 2), keepdim=True))
        weights = torch.sigmoid(mix(widen, act(norm(weights))))
        told = self.HIM(apply_separable(self.spec_to_prior_inter, value), prior)
        spatial = here + mix(self.spatial_conv, F.gelu(spatial) * weights)
        spectral = across + spectral
        both = (spatial, spectral) if self.split else (spatial + spectral,)
        return cast(Tensor, self.ffn(mix(self.add_ssp[0], mix(self.add_ss[0], *both), told)))


class TridentTransformer(StageTransformer):
    """The U-Net of trident blocks, which are told the prior, scaled by shuffling pixels.

    Source: Wu et al., ECCV 2024, figure 3.
    """

    def __init__(self, bands: int, first: bool = False) -> None:
        # Heads share halves of the channels, pixels are shuffled in fours, eighths weight them.
        dim = max(8, bands + -bands % 4)
        super().__init__(
            *(bands, dim),
            block=lambda i: TridentBlock(dim << i, 1 << i, split=i > 0),
            down=lambda width: Resampling(
                "down", nn.PixelUnshuffle(2), separable(4 * width, 2 * width, 3, 1, 1)
            ),
            up=lambda width: Resampling(
                "up", nn.PixelShuffle(2), separable(width // 4, width // 2, 3, 1, 1)
            ),
            first=first,
        )
        # Of the one token there the weight is 1, whatever asks for it: no gradient either.
        coarsest = cast(TridentBlock, self.BottleNeck)
        coarsest.spec_to_prior_inter.requires_grad_(False)
        coarsest.HIM.temperature.requires_grad_(False)


class LearnedProjection(nn.Module):
    """A step towards the measurement, with a corrected sensing matrix and a learned residual.

        Φ ← Φ + DL(y, Φ),   r = w·(Φx − y, Φx, y),   v = DL_grad(x, Φᵀr)

    Source: Wu et al., ECCV 2024, section 3.1.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.DL = nn.Sequential(spread_pixels(bands + 1, bands), spread_pixels(bands, bands))
        self.minus = nn.Sequential(nn.Conv2d(3, 1, 1))
        self.DL_grad = nn.Sequential(
            separable(2 * bands, bands, 3, 1, 1),
            nn.Sequential(
                nn.Conv2d(bands, bands, 3, padding=1, groups=bands, bias=False),
                nn.GELU(),
                nn.Conv2d(bands, bands, 1, bias=False),
            ),
        )

    def forward(self, x: Tensor, y: Tensor, masks: Tensor, scale: float) -> Tensor:
        """Step: x `(B, C, H, W')` → v, the bands of both where they fall; y `(B, 1, H, W')`."""
        masks = masks.expand(len(y), -1, -1, -1)
        camera = Sensing(self.DL(torch.cat((y, masks), 1)) + masks)
        seen = camera(x) * scale
        residual = self.minus(torch.cat((seen - y, seen, y), 1))
        return cast(Tensor, self.DL_grad(torch.cat((x, camera.adjoint(residual)), 1)))


@register("lade_dun_3stg", stages=3, shared=False)
@register("lade_dun_5stg", stages=5)
@register("lade_dun_7stg", stages=7)
@register("lade_dun_9stg", stages=9)
class LADEDUN(SharedStages):
    """Unrolled learned projections whose denoisers attend to a prior, drawn by diffusion.

        z ~ diffusion from the bands that y shows,   v = P_i(x, y),   x ← TT_i(v, z)

    The prior depends on the random numbers that are drawn, and on the whole image.

    A training optimises diffusion and denoisers together, by the loss of the cube; the published
    one begins with tokens of the true cubes, made by an encoder that is not needed afterwards.

    Args:
        bands: number C of bands.
        stages: number of iterations, at least 2.
        shared: whether all stages but the first and the last are one.
        steps: of the diffusion.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1, or one stage only.

    Source: Wu, Lu, Fu, Yuan, "Latent diffusion prior enhanced deep unfolding for snapshot spectral
    compressive imaging", ECCV 2024; names of the weights as in its code.
    """

    unneeded = (
        *("gt_le.", "diffusion.betas", "diffusion.alphas", "diffusion.posterior_"),
        *("diffusion.sqrt_", "diffusion.log_"),
    )
    """In the authors' files: the encoder of true cubes, and the schedule, which is computed."""

    def __init__(
        self,
        bands: int = 28,
        stages: int = 3,
        shared: bool = True,
        steps: int = 16,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, shared, checkpointing)
        check_counts("LADEDUN", steps=steps)
        self.net_le_dm = LatentEncoder(bands)
        self.net_d = TokenDenoiser(steps)
        self.diffusion = LatentDiffusion(self.net_d, self.net_le_dm, steps)
        self.build_stages(LearnedProjection, TridentTransformer)
        self.down_1 = _fewer_tokens(TOKENS, TOKENS // 4)
        self.down_2 = _fewer_tokens(TOKENS // 4, 1)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        scale, shifts, width = 2 / self.bands, offsets(system), system.mask.shape[-1]
        y = y * scale
        masks = moved_masks(y, system)
        light = masks.sum(1, keepdim=True)
        share = masks / light.masked_fill(light == 0, 1)
        fine = self.diffusion(gather_bands(share * y, shifts, width))
        middle = self.down_1[1](fine.mT).mT
        middle = self.down_1[3](middle)
        coarse = self.down_2[3](self.down_2[1](middle.mT).mT)
        prior = (fine, middle, coarse)

        moved, x, features = y.expand(-1, self.bands, -1, -1), y, None
        for project, denoiser in self.each_stage():
            v = gather_bands(project(moved, y, masks, scale), shifts, width)
            x, features = self.compute(denoiser, v, features, prior)
            moved = place_bands(x, shifts, y.shape[-1] - width)
        return x


def _fewer_tokens(tokens: int, fewer: int) -> nn.Sequential:
    # The places of the published code's rearrangements are kept, for the names of the weights.
    first, last = nn.Linear(tokens, fewer), nn.Linear(PRIOR, PRIOR)
    return nn.Sequential(nn.Identity(), first, nn.Identity(), last)
