"""LADE-DUN: an unrolled network that is told a prior, drawn by diffusion from the measurement."""

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
    Conv,
    Double,
    GatedFeedForward,
    OnImages,
    PixelNorm,
    Point,
    Residuals,
    check_counts,
    in_order,
    on_images,
    pad_to_multiple,
    spread,
)
from cassi.models.published.rdluf_mixs2 import (
    LearnedMatrix,
    SharedStages,
    StageTransformer,
    channel_weights,
)
from cassi.models.registry import register_model

PATCHES = 4
"""Parts of an image along each side, of which the prior knows one token each."""
TOKENS = PATCHES**2
PRIOR = 256
"""Channels of a token."""
PERIOD = 10
"""The diffusion network is told t / (10·T)."""


def separable(
    inputs: int, outputs: int, size: int = 2, stride: int = 2, point: type[Conv] = Point
) -> nn.Sequential:
    """Return a depthwise and a 1×1 convolution, without bias."""
    depthwise = Conv(inputs, inputs, size, stride, groups=inputs)
    return nn.Sequential(depthwise, point(inputs, outputs))


def separable_double(inputs: int, outputs: int) -> nn.Sequential:
    """Return a depthwise transposed convolution to twice the size, and a 1×1 convolution."""
    return nn.Sequential(Double(inputs, inputs, 4, inputs, bias=False), Point(inputs, outputs))


class ChannelWeights(nn.Module):
    """x ⊙ h(W₂ GELU(W₁ mean(x))), h piecewise linear from 0 to 1; one weight per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inner = max(dim // 4, 8)
        layers = (Point(dim, inner), nn.GELU(), Point(inner, dim), nn.Hardsigmoid())
        # The place of the mean is kept, for the names of the weights.
        self.se = nn.Sequential(nn.Identity(), *layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        return x * self.se(x.mean((1, 2), keepdim=True))


class InvertedBottleneck(nn.Module):
    """GELU(x + W₃ weights(GELU(3×3 depthwise(GELU(W₁x))))).

    Where the result has other channels than x, a 1×1 convolution of x takes its place in the sum.

    Source: Howard et al., "Searching for MobileNetV3", ICCV 2019, figure 4.
    """

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = Point(inputs, inner), spread(inner)
        self.se = ChannelWeights(inner)
        self.conv3 = Point(inner, outputs)
        other = inputs != outputs
        self.skip = nn.Sequential(*([Point(inputs, outputs)] if other else []))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, c')`."""
        inside = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return F.gelu(self.conv3(self.se(inside)) + self.skip(x))


class TokenMixer(nn.Module):
    """x + mix of tokens, then x + mix of channels, each of the normalized x `(B, n, c)`.

    Source: Tolstikhin et al., "MLP-Mixer", NeurIPS 2021, equation 1.
    """

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        half, wide = tokens // 2, 4 * dim
        self.patch_mixer, self.channel_mixer = (
            nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))
            for size, inner in ((tokens, half), (dim, wide))
        )
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n, c)` to the same."""
        x = x + self.patch_mixer(self.norm1(x).mT).mT
        return x + self.channel_mixer(self.norm2(x))


class LatentEncoder(nn.Module):
    """Sixteen tokens, one per part of the image, of the bands as the measurement shows them.

    Any height and width: the last row and column are repeated up to a multiple of 4.

    Source: Wu et al., ECCV 2024, section 3.2.
    """

    def __init__(self, bands: int, dim: int = PRIOR // 4) -> None:
        super().__init__()
        self.conv1 = InvertedBottleneck(16 * bands, 4 * bands, dim)
        bottlenecks = (InvertedBottleneck(dim, 4 * dim, dim) for _ in range(2))
        self.blocks = Residuals(*(nn.Sequential(each) for each in bottlenecks))
        self.conv2 = InvertedBottleneck(dim, 4 * dim, dim)
        self.mlp = TokenMixer(TOKENS, dim)
        self.end = nn.Sequential(nn.Linear(dim, PRIOR), nn.GELU())

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, 16, 256)`."""
        x = F.pixel_unshuffle(pad_to_multiple(image, 4), 4).permute(0, 2, 3, 1)
        x = self.conv2(self.blocks(self.conv1(x)))
        x = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), PATCHES)
        return self.end(self.mlp(x.flatten(2).mT))


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
        return self.resmlp(torch.cat((condition, clock, x), -1))


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
        self.qk = separable(dim, 4 * dim)
        self.spatial_int_down = Conv(1, 1, 2, 2, bias=True)
        self.qkv_dwconv = Conv(4 * dim, 4 * dim, 3, groups=2 * dim)
        self.qkv_v = nn.Sequential(
            nn.Conv2d(dim, 2 * dim, 1, groups=dim),
            nn.Conv2d(2 * dim, 2 * dim, (3, 5), padding=(1, 2), groups=dim, bias=False),
        )
        self.qkv_v_down = separable(2 * dim, 2 * dim)
        self.project_out = separable_double(2 * dim, dim)

    def forward(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, H, W, c)`, with weights `(B, H, W, 1)`, to the same and v `(B, H, W, 2c)`."""
        x = self.norm(x)
        value = on_images(self.qkv_v, x) * weights
        both = self.qkv_dwconv(self.qk(x)) * self.spatial_int_down(weights)
        small = self.qkv_v_down(value)
        q, k, v = (
            part.flatten(1, 2).mT.unflatten(1, (self.heads, -1))  # (B, heads, c, n)
            for part in (*both.chunk(2, -1), small)
        )
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        mixed = ((q @ k.mT) * self.temperature).softmax(-1).to(v.dtype) @ v
        return self.project_out(mixed.flatten(1, 2).mT.reshape(small.shape)), value


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
        self.qkv = separable(2 * dim, 2 * dim).requires_grad_(False)
        self.project_out = separable_double(2 * dim, dim)

    def forward(self, q: Tensor, prior: Tensor) -> Tensor:
        """Map queries `(B, h, w, 2c)` and tokens `(B, n, 256)` to `(B, 2h, 2w, c)`."""
        query, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, n, c)
            for part in (q.flatten(1, 2), *self.qkv_zl(prior).chunk(2, -1))
        )
        scores = (query @ F.normalize(k, dim=-1).to(query.dtype).mT) * self.temperature
        mixed = scores.softmax(-1).to(v.dtype) @ v
        return self.project_out(mixed.transpose(1, 2).reshape(q.shape))


class TridentBlock(nn.Module):
    """A spatial, a spectral and a prior's branch, joined, and a feed-forward network.

    Where it is `split` spatial and spectral branch see half of the channels each.

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
        self.spatial_conv, self.spatial_interaction = Point(part, part), Point(part, 1)
        self.spectral_branch = SpectralFlow(part, heads)
        self.HIM = PriorFlow(part, heads)
        self.spectral_interaction = channel_weights(part, dim // 8, part)
        self.spec_to_prior_inter = separable(2 * part, 2 * part)
        self.add_ss = nn.Sequential(Point(dim, dim, bias=True))
        self.add_ssp = nn.Sequential(Point(dim + part, dim, bias=True))
        self.ffn = Residuals(module=GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor, prior: Tensor) -> Tensor:
        """Map `(B, H, W, c)`, with tokens `(B, n, 256)`, to the same."""
        here, across = x.chunk(2, -1) if self.split else (x, x)
        spatial = self.spatial_branch(here)
        spectral, value = self.spectral_branch(across, self.spatial_interaction(spatial))
        weights = self.spectral_interaction(spectral.mean((1, 2), keepdim=True))
        told = self.HIM(self.spec_to_prior_inter(value), prior)
        spatial = here + self.spatial_conv(F.gelu(spatial) * weights)
        spectral = across + spectral
        both = (spatial, spectral) if self.split else (spatial + spectral,)
        return self.ffn(self.add_ssp[0](self.add_ss[0](*both), told))


def shuffled(shuffle: nn.Module, inputs: int, outputs: int) -> nn.Sequential:
    """Return pixels put into channels, or back, and a separable convolution."""
    return nn.Sequential(OnImages(shuffle), separable(inputs, outputs, 3, 1, Conv))


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
            down=lambda width: in_order(down=shuffled(nn.PixelUnshuffle(2), 4 * width, 2 * width)),
            up=lambda width: in_order(up=shuffled(nn.PixelShuffle(2), width // 4, width // 2)),
            first=first,
        )
        # Of the one token there the weight is 1, whatever asks for it: no gradient either.
        coarsest = cast(TridentBlock, self.BottleNeck)
        coarsest.spec_to_prior_inter.requires_grad_(False)
        coarsest.HIM.temperature.requires_grad_(False)


class LearnedProjection(LearnedMatrix):
    """A step towards the measurement, with a corrected sensing matrix and a learned residual.

        Φ ← Φ + DL(y, Φ),   r = w·(Φx − y, Φx, y),   v = DL_grad(x, Φᵀr)

    Source: Wu et al., ECCV 2024, section 3.1.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.minus = nn.Sequential(nn.Conv2d(3, 1, 1))

        def around(dim: int) -> nn.Conv2d:
            return nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)

        self.DL_grad = nn.Sequential(
            nn.Sequential(around(2 * bands), nn.Conv2d(2 * bands, bands, 1, bias=False)),
            nn.Sequential(around(bands), nn.GELU(), nn.Conv2d(bands, bands, 1, bias=False)),
        )

    def forward(self, x: Tensor, y: Tensor, masks: Tensor, scale: float) -> Tensor:
        """Step: x `(B, C, H, W')` → v, the bands of both where they fall; y `(B, 1, H, W')`."""
        camera = Sensing(self.matrix(y, masks))
        seen = camera(x) * scale
        residual = self.minus(torch.cat((seen - y, seen, y), 1))
        return self.DL_grad(torch.cat((x, camera.adjoint(residual)), 1))


@register_model("lade_dun_3stg", stages=3, shared=False)
@register_model("lade_dun_5stg", stages=5)
@register_model("lade_dun_7stg", stages=7)
@register_model("lade_dun_9stg", stages=9)
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
