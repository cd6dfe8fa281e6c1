"""LADE-DUN: an unrolled network whose denoisers attend to tokens sampled by a diffusion model."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import (
    NetworkCamera,
    ShearedCamera,
    column_offsets,
    shear_bands,
    sheared_masks,
    unshear_bands,
)
from cassi.models.layers import (
    ChannelsFirst,
    Conv,
    GatedFeedForward,
    PixelNorm,
    PointwiseConv,
    ResidualSequence,
    TransposedConv,
    apply_channels_first,
    check_counts,
    depthwise_conv,
    named_sequence,
    pad_to_multiple,
)
from cassi.models.published.rdluf_mixs2 import (
    LearnedMatrix,
    SharedStages,
    StageTransformer,
    channel_weights,
)
from cassi.models.registry import register_model

# Cells of an image along each side; the latent prior has one token per cell.
CELLS_PER_SIDE = 4
TOKENS = CELLS_PER_SIDE**2
# Channels of a token.
TOKEN_CHANNELS = 256
# The diffusion network of T steps gets the time t as t / (10·T).
TIME_FACTOR = 10


def separable(
    inputs: int, outputs: int, size: int = 2, stride: int = 2, pointwise: type[Conv] = PointwiseConv
) -> nn.Sequential:
    """Return a depthwise and a 1×1 convolution, without bias."""
    depthwise = Conv(inputs, inputs, size, stride, groups=inputs)
    return nn.Sequential(depthwise, pointwise(inputs, outputs))


def separable_upsampling(inputs: int, outputs: int) -> nn.Sequential:
    """Return a depthwise transposed convolution to twice the size, and a 1×1 convolution."""
    return nn.Sequential(
        TransposedConv(inputs, inputs, 4, inputs, bias=False), PointwiseConv(inputs, outputs)
    )


class ChannelWeights(nn.Module):
    """x ⊙ h(W₂ GELU(W₁ mean(x))), a weight per channel; h is piecewise linear from 0 to 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        width = max(dim // 4, 8)
        layers = (
            PointwiseConv(dim, width),
            nn.GELU(),
            PointwiseConv(width, dim),
            nn.Hardsigmoid(),
        )
        # The identity is in the place where the published code takes the mean. It keeps the numbers
        # of the layers, which are in the names of the weights.
        self.se = nn.Sequential(nn.Identity(), *layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        return x * self.se(x.mean((1, 2), keepdim=True))


class InvertedBottleneck(nn.Module):
    """GELU(x + W₃ weights(GELU(3×3 depthwise(GELU(W₁x))))).

    If the output has another number of channels than x, a 1×1 convolution of x is added, not x.

    Source: Howard et al., "Searching for MobileNetV3", ICCV 2019, figure 4.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = PointwiseConv(inputs, width), depthwise_conv(width)
        self.se = ChannelWeights(width)
        self.conv3 = PointwiseConv(width, outputs)
        needs_projection = inputs != outputs
        self.skip = nn.Sequential(*([PointwiseConv(inputs, outputs)] if needs_projection else []))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, c')`."""
        features = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return F.gelu(self.conv3(self.se(features)) + self.skip(x))


class TokenMixer(nn.Module):
    """x + MLP over the tokens, then x + MLP over the channels; both MLPs get the normalized x.

    Source: Tolstikhin et al., "MLP-Mixer", NeurIPS 2021, equation 1.
    """

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        hidden_tokens, hidden_channels = tokens // 2, 4 * dim
        self.patch_mixer, self.channel_mixer = (
            nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.Linear(width, size))
            for size, width in ((tokens, hidden_tokens), (dim, hidden_channels))
        )
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n, c)` to the same shape."""
        x = x + self.patch_mixer(self.norm1(x).mT).mT
        return x + self.channel_mixer(self.norm2(x))


class LatentEncoder(nn.Module):
    """Encode the initial cube into 16 tokens, one per cell of a 4×4 grid.

    Height and width are free: the last row and column are repeated up to a multiple of 4.

    Source: Wu et al., ECCV 2024, section 3.2.
    """

    def __init__(self, bands: int, dim: int = TOKEN_CHANNELS // 4) -> None:
        super().__init__()
        self.conv1 = InvertedBottleneck(16 * bands, 4 * bands, dim)
        bottlenecks = (InvertedBottleneck(dim, 4 * dim, dim) for _ in range(2))
        self.blocks = ResidualSequence(*(nn.Sequential(bottleneck) for bottleneck in bottlenecks))
        self.conv2 = InvertedBottleneck(dim, 4 * dim, dim)
        self.mlp = TokenMixer(TOKENS, dim)
        self.end = nn.Sequential(nn.Linear(dim, TOKEN_CHANNELS), nn.GELU())

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, 16, 256)`."""
        x = F.pixel_unshuffle(pad_to_multiple(image, 4), 4).permute(0, 2, 3, 1)
        x = self.conv2(self.blocks(self.conv1(x)))
        x = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), CELLS_PER_SIDE)
        return self.end(self.mlp(x.flatten(2).mT))


class TokenDenoiser(nn.Module):
    """Predict clean tokens from noisy tokens, the condition and the time step."""

    def __init__(self, steps: int, layers: int = 4) -> None:
        super().__init__()
        self.period = TIME_FACTOR * steps
        residual_layers = (
            named_sequence(
                resmlp=nn.Sequential(nn.Linear(TOKEN_CHANNELS, TOKEN_CHANNELS), nn.LeakyReLU(0.1))
            )
            for _ in range(layers)
        )
        first_layers = (nn.Linear(2 * TOKEN_CHANNELS + 1, TOKEN_CHANNELS), nn.LeakyReLU(0.1))
        self.resmlp = nn.Sequential(*first_layers, *residual_layers)

    def forward(self, x: Tensor, condition: Tensor, time: int) -> Tensor:
        """Map noisy tokens and conditions, `(B, 16, 256)` each, to clean tokens."""
        time_channel = x.new_full((*x.shape[:2], 1), time / self.period)
        return self.resmlp(torch.cat((condition, time_channel, x), -1))


class LatentDiffusion(nn.Module):
    """Sample tokens in T deterministic reverse steps, starting from noise.

        x ← c₁[t]·D(x, c, t) + c₂[t]·x,   t = T−1 … 0

    D is the `TokenDenoiser`, and c the tokens of the image. c₁ and c₂ are the coefficients of x_0
    and x_t in the mean of q(x_{t−1} | x_t, x_0). √β_t rises linearly from √0.1 to √0.99.

    Source: Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020, equation 7.
    """

    def __init__(self, model: TokenDenoiser, condition: LatentEncoder, steps: int) -> None:
        super().__init__()
        self.model, self.condition = model, condition
        beta = torch.linspace(0.1**0.5, 0.99**0.5, steps, dtype=torch.float64, device="cpu") ** 2
        signal_power = torch.cumprod(1 - beta, 0)
        previous_power = torch.cat((signal_power.new_ones(1), signal_power[:-1]))
        clean_weights = beta * previous_power.sqrt() / (1 - signal_power)
        noisy_weights = (1 - previous_power) * (1 - beta).sqrt() / (1 - signal_power)
        self.weights = list(
            zip(clean_weights.float().tolist(), noisy_weights.float().tolist(), strict=True)
        )

    def forward(self, image: Tensor) -> Tensor:
        """Draw tokens `(B, 16, 256)` for images `(B, C, H, W)`.

        The noise is drawn on the CPU. So a seed gives the same noise on all devices. In evaluation
        mode all samples share one draw. So a result does not depend on the rest of its batch.
        """
        condition = self.condition(image)
        draws = len(image) if self.training else 1
        noise = torch.randn(draws, TOKENS, TOKEN_CHANNELS).expand(len(image), -1, -1)
        x = noise.to(condition)
        for time in reversed(range(len(self.weights))):
            clean_weight, noisy_weight = self.weights[time]
            x = clean_weight * self.model(x, condition, time) + noisy_weight * x
        return x


class SpectralFlow(nn.Module):
    """Attention among channels at half of the resolution; q, k, v are multiplied by a weight map.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norm = PixelNorm(dim, subtract_mean=False)
        self.qk = separable(dim, 4 * dim)
        self.spatial_int_down = Conv(1, 1, 2, 2, bias=True)
        self.qkv_dwconv = Conv(4 * dim, 4 * dim, 3, groups=2 * dim)
        self.qkv_v = nn.Sequential(
            nn.Conv2d(dim, 2 * dim, 1, groups=dim),
            nn.Conv2d(2 * dim, 2 * dim, (3, 5), padding=(1, 2), groups=dim, bias=False),
        )
        self.qkv_v_down = separable(2 * dim, 2 * dim)
        self.project_out = separable_upsampling(2 * dim, dim)

    def forward(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result `(B, H, W, c)` and v `(B, H, W, 2c)`; weights are `(B, H, W, 1)`."""
        x = self.norm(x)
        value = apply_channels_first(self.qkv_v, x) * weights
        qk = self.qkv_dwconv(self.qk(x)) * self.spatial_int_down(weights)
        downsampled_value = self.qkv_v_down(value)
        q, k, v = (
            part.flatten(1, 2).mT.unflatten(1, (self.heads, -1))  # (B, heads, c, n)
            for part in (*qk.chunk(2, -1), downsampled_value)
        )
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        values = ((q @ k.mT) * self.temperature).softmax(-1).to(v.dtype) @ v
        return self.project_out(values.flatten(1, 2).mT.reshape(downsampled_value.shape)), value


class PriorFlow(nn.Module):
    """Attention of the pixels, at half of the resolution, to the latent tokens.

    The layers `norm_z` and `qkv` are not used. They are in the published weights.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norm_z = PixelNorm(TOKEN_CHANNELS, subtract_mean=False).requires_grad_(False)
        self.qkv_zl = nn.Linear(TOKEN_CHANNELS, 4 * dim)
        self.qkv = separable(2 * dim, 2 * dim).requires_grad_(False)
        self.project_out = separable_upsampling(2 * dim, dim)

    def forward(self, q: Tensor, tokens: Tensor) -> Tensor:
        """Map queries `(B, h, w, 2c)` and tokens `(B, n, 256)` to `(B, 2h, 2w, c)`."""
        query, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, n, c)
            for part in (q.flatten(1, 2), *self.qkv_zl(tokens).chunk(2, -1))
        )
        scores = (query @ F.normalize(k, dim=-1).to(query.dtype).mT) * self.temperature
        values = scores.softmax(-1).to(v.dtype) @ v
        return self.project_out(values.transpose(1, 2).reshape(q.shape))


class TridentBlock(nn.Module):
    """Joins a spatial, a spectral and a prior branch, then applies a feed-forward network.

    If `split`, the spatial and the spectral branch get half of the channels each.

    Source: Wu et al., ECCV 2024, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int, split: bool) -> None:
        super().__init__()
        self.split = split
        branch_dim = dim // 2 if split else dim
        self.spatial_branch = named_sequence(
            norm=PixelNorm(branch_dim, subtract_mean=False),
            inception=named_sequence(mb=InvertedBottleneck(branch_dim, 2 * branch_dim, branch_dim)),
        )
        self.spatial_conv, self.spatial_interaction = (
            PointwiseConv(branch_dim, branch_dim),
            PointwiseConv(branch_dim, 1),
        )
        self.spectral_branch = SpectralFlow(branch_dim, heads)
        self.HIM = PriorFlow(branch_dim, heads)
        self.spectral_interaction = channel_weights(branch_dim, dim // 8, branch_dim)
        self.spec_to_prior_inter = separable(2 * branch_dim, 2 * branch_dim)
        self.add_ss = nn.Sequential(PointwiseConv(dim, dim, bias=True))
        self.add_ssp = nn.Sequential(PointwiseConv(dim + branch_dim, dim, bias=True))
        self.ffn = ResidualSequence(module=GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape; the latent tokens are `(B, n, 256)`."""
        spatial_input, spectral_input = x.chunk(2, -1) if self.split else (x, x)
        spatial = self.spatial_branch(spatial_input)
        spectral, value = self.spectral_branch(spectral_input, self.spatial_interaction(spatial))
        weights = self.spectral_interaction(spectral.mean((1, 2), keepdim=True))
        prior_features = self.HIM(self.spec_to_prior_inter(value), tokens)
        spatial = spatial_input + self.spatial_conv(F.gelu(spatial) * weights)
        spectral = spectral_input + spectral
        branches = (spatial, spectral) if self.split else (spatial + spectral,)
        return self.ffn(self.add_ssp[0](self.add_ss[0](*branches), prior_features))


def shuffle_and_convolve(shuffle: nn.Module, inputs: int, outputs: int) -> nn.Sequential:
    """Return a pixel shuffle or unshuffle, followed by a separable convolution."""
    return nn.Sequential(ChannelsFirst(shuffle), separable(inputs, outputs, 3, 1, Conv))


class TridentTransformer(StageTransformer):
    """A U-Net of blocks that get the latent tokens; pixel shuffles change the resolution.

    Source: Wu et al., ECCV 2024, figure 3.
    """

    def __init__(self, bands: int, first: bool = False) -> None:
        # Blocks halve the number of channels, pixel shuffles divide it by 4, and channel weights
        # divide it by 8, rounded down. So the number must be a multiple of 4 and at least 8.
        dim = max(8, bands + -bands % 4)
        super().__init__(
            bands,
            dim,
            block=lambda i: TridentBlock(dim << i, 1 << i, split=i > 0),
            down=lambda width: named_sequence(
                down=shuffle_and_convolve(nn.PixelUnshuffle(2), 4 * width, 2 * width)
            ),
            up=lambda width: named_sequence(
                up=shuffle_and_convolve(nn.PixelShuffle(2), width // 4, width // 2)
            ),
            first=first,
        )
        # The coarsest scale has a single token. Its softmax is 1 for any query, so these parameters
        # get no gradient. They are frozen, because parameters without a gradient would stop
        # distributed training.
        coarsest = cast(TridentBlock, self.BottleNeck)
        coarsest.spec_to_prior_inter.requires_grad_(False)
        coarsest.HIM.temperature.requires_grad_(False)


class LearnedProjection(LearnedMatrix):
    """A step towards the measurement, with a corrected sensing matrix and a learned residual.

        Φ' = Φ + DL(y, Φ),   r = w·(Φ'x − y, Φ'x, y),   v = DL_grad(x, Φ'ᵀr)

    DL and DL_grad are a few convolutions. w is a 1×1 convolution of the three images.

    Source: Wu et al., ECCV 2024, section 3.1.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.minus = nn.Sequential(nn.Conv2d(3, 1, 1))

        def make_depthwise(dim: int) -> nn.Conv2d:
            return nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)

        self.DL_grad = nn.Sequential(
            nn.Sequential(make_depthwise(2 * bands), nn.Conv2d(2 * bands, bands, 1, bias=False)),
            nn.Sequential(make_depthwise(bands), nn.GELU(), nn.Conv2d(bands, bands, 1, bias=False)),
        )

    def forward(self, x: Tensor, y: Tensor, masks: Tensor, scale: float) -> Tensor:
        """Map a sheared cube x `(B, C, H, W')` to v, shaped like x; y is `(B, 1, H, W')`."""
        camera = ShearedCamera(self.matrix(y, masks))
        simulation = camera(x) * scale
        residual = self.minus(torch.cat((simulation - y, simulation, y), 1))
        return self.DL_grad(torch.cat((x, camera.adjoint(residual)), 1))


@register_model("lade_dun_3stg", stages=3, shared=False)
@register_model("lade_dun_5stg", stages=5)
@register_model("lade_dun_7stg", stages=7)
@register_model("lade_dun_9stg", stages=9)
class LADEDUN(SharedStages):
    """Unrolled learned projections; the denoisers attend to latent tokens drawn by diffusion.

        z ~ diffusion given the windows of y,   v = P_i(x, y),   x ← TT_i(v, z)

    P_i is a `LearnedProjection` and TT_i a `TridentTransformer`. The tokens z depend on the random
    numbers that are drawn, and on the whole image.

    Training in this package optimizes diffusion and denoisers together, by the loss of the cube.
    The published training first uses tokens that a further encoder computes from the true cubes. A
    reconstruction does not need this encoder.

    Args:
        bands: number C of bands.
        stages: number of iterations, at least 2.
        shared: whether all stages but the first and the last have the same weights.
        steps: number of diffusion steps.
        checkpointing: see `UnrolledNetwork`.

    Raises:
        ValueError: a count below 1, or one stage only.

    Source: Wu, Lu, Fu, Yuan, "Latent diffusion prior enhanced deep unfolding for snapshot spectral
    compressive imaging", ECCV 2024; names of the weights as in its code.
    """

    unneeded = (
        "gt_le.",
        "diffusion.betas",
        "diffusion.alphas",
        "diffusion.posterior_",
        "diffusion.sqrt_",
        "diffusion.log_",
    )
    """Prefixes of tensors in the authors' files that are not loaded. They belong to the encoder of
    true cubes, and to the noise schedule. `LatentDiffusion` computes the schedule itself."""

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
        self.down_1 = _reduce_tokens(TOKENS, TOKENS // 4)
        self.down_2 = _reduce_tokens(TOKENS // 4, 1)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        scale, shifts, width = 2 / self.bands, column_offsets(system), system.mask.shape[-1]
        y = y * scale
        masks = sheared_masks(y, system)
        mask_sum = masks.sum(1, keepdim=True)
        # y is divided among the bands in proportion to their masks. All fractions are zero where
        # all masks are zero.
        band_fraction = masks / mask_sum.masked_fill(mask_sum == 0, 1)
        fine_tokens = self.diffusion(unshear_bands(band_fraction * y, shifts, width))
        middle_tokens = self.down_1[1](fine_tokens.mT).mT
        middle_tokens = self.down_1[3](middle_tokens)
        coarse_tokens = self.down_2[3](self.down_2[1](middle_tokens.mT).mT)
        tokens = (fine_tokens, middle_tokens, coarse_tokens)

        sheared_cube, x, features = y.expand(-1, self.bands, -1, -1), y, None
        for projection, denoiser in self.list_stages():
            v = unshear_bands(projection(sheared_cube, y, masks, scale), shifts, width)
            x, features = self.compute(denoiser, v, features, tokens)
            sheared_cube = shear_bands(x, shifts, y.shape[-1] - width)
        return x


def _reduce_tokens(n_inputs: int, n_outputs: int) -> nn.Sequential:
    # The identities are in the place where the published code rearranges axes. They keep the
    # numbers of the layers, which are in the names of the weights.
    token_layer = nn.Linear(n_inputs, n_outputs)
    channel_layer = nn.Linear(TOKEN_CHANNELS, TOKEN_CHANNELS)
    return nn.Sequential(nn.Identity(), token_layer, nn.Identity(), channel_layer)
