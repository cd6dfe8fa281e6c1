"""DERNN-LNLT: unrolled splitting with one shared stage that estimates Φ, ρ and σ."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.camera_adapters import (
    NetworkCamera,
    ShearedCamera,
    column_offsets,
    mix_measurement,
    on_sheared_cubes,
    sheared_masks,
    unshear_bands,
)
from cassi.models.layers import (
    HALVING_CONV,
    Conv3x3,
    GatedFeedForward,
    PixelNorm,
    PointwiseConv,
    PreNorm,
    ResidualSequence,
    TransposedConv,
    apply_padded,
    check_counts,
    depthwise_bottleneck,
    depthwise_conv,
    init_truncated_normal,
    level_plane,
    named_sequence,
    pointwise_depthwise,
    pooled_mlp,
    u_net,
)
from cassi.models.network import UnrolledNetwork
from cassi.models.registry import register_model
from cassi.solvers import HQS

# Number of parts along each side of an image, for the attention among parts.
PARTS = 8
# Number of resolutions of the denoiser, each half of the one before.
SCALES = 3
# H and W are padded to multiples of this. Then the coarsest scale can be cut into 8×8 parts.
MULTIPLE = PARTS * 2 ** (SCALES - 1)


class PixelAttention(nn.Module):
    """Attention with q, k, v = depthwise(W x), and a learned bias for each pair of positions.

    If `is_local`, the pixels of each 8×8 window attend to each other. Otherwise the image is cut
    into 8×8 equal parts, and the parts attend to each other. A head gets an equal share of the
    values of each part. H and W are multiples of 8.

    Source: Dong et al., "Degradation estimation recurrent neural network with local and non-local
    priors", AAAI 2024, section 3.3.
    """

    def __init__(self, dim: int, heads: int, is_local: bool) -> None:
        super().__init__()
        self.heads, self.is_local = heads, is_local
        tokens = WINDOW * WINDOW if is_local else PARTS * PARTS
        self.pos_emb = nn.Parameter(torch.empty(1, heads, tokens, tokens))
        nn.init.trunc_normal_(self.pos_emb)
        self.qkv, self.qkv_dwconv = PointwiseConv(dim, 3 * dim), depthwise_conv(3 * dim)
        self.project_out = PointwiseConv(dim, dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same shape."""
        split = to_windows if self.is_local else to_parts
        q, k, v = (
            split(part).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in pointwise_depthwise(x, self.qkv, self.qkv_dwconv, 3)
        )
        values = attend(q, k, v, self.pos_emb[0]).transpose(-2, -3).flatten(-2)
        height, width = x.shape[1:3]
        join = from_windows if self.is_local else from_parts
        return self.project_out(join(values, height, width))


def to_parts(x: Tensor) -> Tensor:
    """Cut an image into parts: `(B, H, W, c)` → `(B, 64, H/8·W/8·c)`."""
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, PARTS, height // PARTS, PARTS, width // PARTS, channels)
    return parts.transpose(2, 3).reshape(batch, PARTS * PARTS, -1)


def from_parts(tokens: Tensor, height: int, width: int) -> Tensor:
    """Undo `to_parts`."""
    parts = tokens.reshape(len(tokens), PARTS, PARTS, height // PARTS, width // PARTS, -1)
    return parts.transpose(2, 3).reshape(len(tokens), height, width, -1)


def normed_blocks(dim: int, *rows: tuple[nn.Module, ...]) -> nn.Sequential:
    """Return blocks of layers, one after another; each layer maps x to x + layer(norm(x))."""
    blocks = (
        ResidualSequence(*(PreNorm(PixelNorm(dim), part) for part in parts)) for parts in rows
    )
    return named_sequence(blocks=nn.Sequential(*blocks))


class LocalNonLocalTransformer(nn.Module):
    """A U-Net of three scales; one more input channel holds the noise level.

    Height and width are free: images are mirrored up to multiples of `multiple`, and the result is
    cropped.

    Args:
        bands: number C of bands.
        block: makes the layers of a scale, 0 for the finest. It is called once for the coarsest
            scale, and twice for the others.
        multiple: H and W are padded to multiples of it.

    Source: Dong et al., AAAI 2024, figure 3.
    """

    def __init__(
        self, bands: int, block: Callable[[int], nn.Module], multiple: int = MULTIPLE
    ) -> None:
        super().__init__()
        self.multiple = multiple
        fine_width, middle_width, coarse_width = (bands << scale for scale in range(SCALES))
        self.embedding = Conv3x3(bands + 1, bands)
        self.Encoder = nn.ModuleList((block(0), block(1)))
        self.BottleNeck = block(2)
        self.Decoder = nn.ModuleList((block(1), block(0)))
        self.Downs, self.Ups = (
            nn.ModuleList(named_sequence(**{name: nn.Sequential(make(*pair))}) for pair in pairs)
            for name, make, pairs in (
                ("down", HALVING_CONV, ((fine_width, middle_width), (middle_width, coarse_width))),
                ("up", TransposedConv, ((coarse_width, middle_width), (middle_width, fine_width))),
            )
        )
        self.fusions = nn.ModuleList(
            (PointwiseConv(coarse_width, middle_width), PointwiseConv(middle_width, fine_width))
        )
        self.mapping = Conv3x3(bands, bands)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""

        def restore(z: Tensor) -> Tensor:
            features = self.embedding(torch.cat((level_plane(sigma, z), z), -1))
            encoder = zip(self.Encoder, self.Downs, strict=True)
            decoder = zip(self.Ups, self.fusions, self.Decoder, strict=True)
            return self.mapping(u_net(features, encoder, self.BottleNeck, decoder))

        return apply_padded(restore, x, self.multiple)


class DegradationEstimation(nn.Module):
    """Estimate the sensing matrix, ρ and σ from the cube and the masks.

        Φ = masks + DL(masks, z),   DL a few convolutions

    Source: Dong et al., AAAI 2024, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        channels = 2 * bands
        self.DL = nn.Sequential(
            depthwise_bottleneck(channels, channels, bias=True),
            depthwise_bottleneck(channels, bands, bias=True),
        )
        self.down_sample = nn.Conv2d(bands, channels, 3, stride=2, padding=1)
        self.mlp = pooled_mlp(channels, 2, bias=True).append(nn.Softplus())

    def forward(self, z: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Estimate Φ `(B, C, H, W')`, ρ `(B,)`, σ `(B, 1, 1, 1)`; z and masks are shaped like Φ."""
        change = self.DL(torch.cat((masks.expand(len(z), -1, -1, -1), z), 1))
        features = self.down_sample(change.relu()).mean((2, 3), keepdim=True)
        # ρ must not be zero, because the data step divides by it.
        parameters = self.mlp(features) + 1e-6
        return masks + change, parameters[:, 0, 0, 0], parameters[:, 1:]


class RecurrentSplitting(UnrolledNetwork):
    """Half-quadratic splitting with one set of weights for all stages.

    The iterates z are sheared cubes. For the denoiser they are unsheared. A subclass makes the
    layers by `build`.
    """

    momentum: ClassVar[float] = 0.0
    """The residual of the data step is y − Φẑ, ẑ = z + momentum·Δz. Δz is the last change of z."""

    def build(self, block: Callable[[int], nn.Module], multiple: int = MULTIPLE) -> None:
        """Make the layers; the arguments are those of `LocalNonLocalTransformer`."""
        self.fusion = nn.Conv2d(2 * self.bands, self.bands, 1)
        self.DP = DegradationEstimation(self.bands)
        self.PP = LocalNonLocalTransformer(self.bands, block, multiple)
        init_truncated_normal(self, nn.Conv2d)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        shifts, width = column_offsets(system), system.mask.shape[-1]
        masks, denoise = sheared_masks(y, system), partial(self.compute, self.PP)
        prior = on_sheared_cubes(denoise, shifts, width, y.shape[-1])
        algorithm = HQS()
        previous = mix_measurement(self.fusion, y, masks, system)
        state = algorithm.init(y, ShearedCamera(masks), previous)
        for _ in range(self.stages):
            matrix, rho, sigma = self.DP(state.x, masks)
            sensing, current, shifted_y = ShearedCamera(matrix), state.x, y
            if self.momentum:
                # The data step computes shifted_y − Φz, which is equal to y − Φẑ.
                shifted_y = y - sensing(self.momentum * (current - previous))
            state = algorithm.step(state, shifted_y, sensing, prior, sigma, rho)
            previous = current
        return unshear_bands(state.x, shifts, width)


@register_model("dernn_lnlt_5stg", stages=5)
@register_model("dernn_lnlt_7stg", stages=7)
@register_model("dernn_lnlt_9stg", stages=9)
@register_model("dernn_lnlt_9stg_star", stages=9, blocks=2)
class DERNNLNLT(RecurrentSplitting):
    """Unrolled half-quadratic splitting with one set of weights for all stages.

        v = z + Φᵀ(ΦΦᵀ + ρI)⁻¹(y − Φz),   z ← LNLT(v, σ)

    Every stage estimates Φ, ρ and σ from z. LNLT is a `LocalNonLocalTransformer`.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        blocks: number of blocks of the denoiser at each scale.

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

        def make_block(scale: int) -> nn.Sequential:
            dim, heads = bands << scale, 1 << scale
            return normed_blocks(
                dim,
                *(
                    (
                        PixelAttention(dim, heads, is_local=True),
                        PixelAttention(dim, heads, is_local=False),
                        GatedFeedForward(dim, bias=True),
                    )
                    for _ in range(blocks)
                ),
            )

        self.build(make_block)
