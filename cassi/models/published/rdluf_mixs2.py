"""RDLUF-MixS²: an unrolled network that learns its own sensing matrix."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import ChannelAttention
from cassi.models.camera_adapters import (
    NetworkCamera,
    ShearedCamera,
    column_offsets,
    roll_bands,
    sheared_masks,
)
from cassi.models.layers import (
    ChannelsFirst,
    Conv3x3,
    GatedFeedForward,
    PixelNorm,
    PointwiseConv,
    ResidualSequence,
    apply_channels_first,
    depthwise_bottleneck,
    depthwise_conv,
    named_sequence,
    pad_to_multiple,
)
from cassi.models.network import UnrolledNetwork
from cassi.models.registry import register_model


class Inception(nn.Module):
    """Join four branches, each of which returns a quarter of the channels.

    Three branches are 1×1 convolutions with zero, one or two 3×3 depthwise convolutions between
    them. The fourth is a 3×3 mean and a 1×1 convolution.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        quarter, sixth = dim // 4, dim // 6
        self.branch0 = conv_gelu(dim, quarter)
        self.branch1 = nn.Sequential(
            conv_gelu(dim, sixth), conv_gelu(sixth, sixth, 3), conv_gelu(sixth, quarter)
        )
        self.branch2 = nn.Sequential(
            conv_gelu(dim, sixth),
            conv_gelu(sixth, sixth, 3),
            conv_gelu(sixth, quarter),
            conv_gelu(quarter, quarter, 3),
            conv_gelu(quarter, quarter),
        )
        mean = ChannelsFirst(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False))
        self.branch3 = nn.Sequential(mean, conv_gelu(dim, quarter))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        branches = (self.branch0, self.branch1, self.branch2, self.branch3)
        return torch.cat([branch(x) for branch in branches], -1)


def conv_gelu(inputs: int, outputs: int, size: int = 1) -> nn.Sequential:
    """Return a convolution and GELU; a kernel larger than 1×1 is depthwise."""
    conv = PointwiseConv(inputs, outputs) if size == 1 else depthwise_conv(inputs, size)
    return named_sequence(conv=conv, act=nn.GELU())


def channel_weights(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return layers that map the means of channels `(B, 1, 1, c)` to channel weights in [0, 1]."""
    hidden_layers = (PointwiseConv(inputs, width), PixelNorm(width, subtract_mean=False), nn.GELU())
    return nn.Sequential(*hidden_layers, PointwiseConv(width, outputs), nn.Sigmoid())


class MixBlock(nn.Module):
    """A spatial and a spectral branch that weight each other, and a feed-forward network.

    Source: Dong et al., CVPR 2023, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.spatial_branch = named_sequence(
            norm=PixelNorm(dim, subtract_mean=False), inception=Inception(dim)
        )
        self.spatial_conv, self.spatial_interaction = PointwiseConv(dim, dim), PointwiseConv(dim, 1)
        self.spectral_branch = ChannelAttention(dim, heads, norm=True)
        self.spectral_interaction = channel_weights(dim, dim // 8, dim)
        self.ffn = ResidualSequence(module=GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        spatial = self.spatial_branch(x)
        spectral = self.spectral_branch(x, self.spatial_interaction(spatial))
        weights = self.spectral_interaction(spectral.mean((1, 2), keepdim=True))
        spatial = self.spatial_conv(F.gelu(spatial) * weights)
        # 2x, because each branch has its own skip connection.
        return self.ffn(2 * x + spatial + spectral)


class StageInteraction(nn.Module):
    """Multiply features by a factor and add an offset.

    Both are computed from encoder and decoder features of the stage before, at the same resolution.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.st_inter_enc, self.st_inter_dec = PointwiseConv(dim, dim), PointwiseConv(dim, dim)
        self.phi, self.gamma = depthwise_conv(dim), depthwise_conv(dim)

    def forward(self, x: Tensor, encoder_features: Tensor, decoder_features: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        skip = F.gelu(self.st_inter_enc(encoder_features) + self.st_inter_dec(decoder_features))
        return torch.addcmul(self.gamma(skip), torch.sigmoid(self.phi(skip)), x)


class BlockInteraction(nn.Module):
    """Fuse the features of all scales into features of one scale."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        pointwise = PointwiseConv(inputs, outputs)
        self.conv = nn.Sequential(pointwise, nn.GELU(), Conv3x3(outputs, outputs))

    def forward(self, *images: Tensor) -> Tensor:
        """Map images `(B, H, W, c)` of one size to `(B, H, W, c')`."""
        return self.conv[1:](self.conv[0](*images))


def named_rescaling(name: str, inputs: int, outputs: int, factor: float) -> nn.Sequential:
    """Return a bilinear resize and a 3×3 convolution, under a name in the state dict."""
    resizing = ChannelsFirst(nn.Upsample(scale_factor=factor, mode="bilinear", align_corners=False))
    return named_sequence(**{name: nn.Sequential(resizing, Conv3x3(inputs, outputs))})


def resize(x: Tensor, factor: float) -> Tensor:
    """Resize images `(B, H, W, c)` bilinearly."""
    return apply_channels_first(partial(F.interpolate, scale_factor=factor, mode="bilinear"), x)


# Number of resolutions of a denoiser, each half of the one before.
SCALES = 3
# H and W are padded to multiples of this.
MULTIPLE = 2**SCALES


# Features that a stage passes to the next: (encoder, decoder) of each scale, the finest first.
Features = tuple[tuple[Tensor, Tensor], ...]


class StageTransformer(nn.Module):
    """A U-Net of three scales that also gets the features of the stage before.

    Height and width are free: images are mirrored to a multiple of 8, and the result is cropped.

    Args:
        bands: number C of bands.
        dim: channels of the finest scale; each coarser one has twice as many.
        block: makes the layers of a scale, 0 for the finest.
        down: makes the layers to the next coarser scale, from the channels of a scale.
        up: makes the layers to the next finer scale, from the channels of a scale.
        first: whether it is the first stage, which gets no features.

    Source: Dong et al., CVPR 2023, figure 3.
    """

    def __init__(
        self,
        bands: int,
        dim: int,
        block: Callable[[int], nn.Module],
        down: Callable[[int], nn.Module],
        up: Callable[[int], nn.Module],
        first: bool,
    ) -> None:
        super().__init__()
        self.embedding = PointwiseConv(bands, dim)
        self.Encoder = nn.ModuleList(block(i) for i in (0, 1))
        self.BottleNeck = block(2)
        self.Decoder = nn.ModuleList(block(i) for i in (1, 0))
        # The features of the three scales have dim + 2·dim + 4·dim channels.
        self.BlockInteractions = nn.ModuleList(BlockInteraction(7 * dim, dim << i) for i in (0, 1))
        self.Downs = nn.ModuleList(down(dim << i) for i in (0, 1))
        self.Ups = nn.ModuleList(up(dim << i) for i in (2, 1))
        self.fusions = nn.ModuleList(Conv3x3(dim << i + 1, dim << i) for i in (1, 0))
        self.stage_interactions = nn.ModuleList(StageInteraction(dim << i) for i in (0, 1, 2, 1, 0))
        if first:
            # The first stage does not use these layers. They are frozen, because parameters that
            # require a gradient and get none would stop distributed training.
            self.stage_interactions.requires_grad_(False)
        self.mapping = PointwiseConv(dim, bands)

    def forward(
        self, x: Tensor, previous: Features | None, scale_inputs: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)`; return the cube and the features of this stage.

        Args:
            x: the cube.
            previous: features of the stage before; None in the first stage.
            scale_inputs: one more argument for the blocks of each scale, the finest first.
        """
        height, width = x.shape[-2:]
        images = pad_to_multiple(x, MULTIPLE, "mirror").permute(0, 2, 3, 1).contiguous()
        block_inputs = [scale_inputs[i : i + 1] for i in range(SCALES)]
        fine_features = self.embedding(images)
        fine_features = self._interact(
            0, self.Encoder[0](fine_features, *block_inputs[0]), previous
        )
        middle_features = self._interact(
            1, self.Encoder[1](self.Downs[0](fine_features), *block_inputs[1]), previous
        )
        coarse_features = self._interact(
            2, self.BottleNeck(self.Downs[1](middle_features), *block_inputs[2]), previous
        )
        upsampled_coarse = resize(coarse_features, 2)
        joined_features = (
            self.BlockInteractions[0](
                fine_features, resize(middle_features, 2), resize(upsampled_coarse, 2)
            ),
            self.BlockInteractions[1](
                resize(fine_features, 0.5), middle_features, upsampled_coarse
            ),
        )
        middle_features = self.fusions[0](self.Ups[0](coarse_features), joined_features[1])
        middle_features = self._interact(
            3, self.Decoder[0](middle_features, *block_inputs[1]), previous
        )
        fine_features = self.fusions[1](self.Ups[1](middle_features), joined_features[0])
        fine_features = self._interact(
            4, self.Decoder[1](fine_features, *block_inputs[0]), previous
        )
        cube = (self.mapping(fine_features) + images).permute(0, 3, 1, 2)
        features = (
            (joined_features[0], fine_features),
            (joined_features[1], middle_features),
            (coarse_features, coarse_features),
        )
        return cube[..., :height, :width], features

    def _interact(self, position: int, x: Tensor, previous: Features | None) -> Tensor:
        if previous is None:
            return x
        scale = (0, 1, 2, 1, 0)[position]
        return self.stage_interactions[position](x, *previous[scale])


class MixTransformer(StageTransformer):
    """A U-Net of mixing blocks; bilinear resizing changes the resolution.

    Source: Dong et al., CVPR 2023, figure 3.
    """

    def __init__(self, bands: int, first: bool = False) -> None:
        # `Inception` has dim // 4 and dim // 6 channels, and the channel weights have dim // 8. So
        # dim must be a multiple of 4. With at least 16 channels, all of these have at least 2.
        dim = max(16, bands + -bands % 4)
        super().__init__(
            bands,
            dim,
            block=lambda i: MixBlock(dim << i, 1 << i),
            down=lambda width: named_rescaling("down", width, 2 * width, 0.5),
            up=lambda width: named_rescaling("up", width, width // 2, 2),
            first=first,
        )


class LearnedMatrix(nn.Module):
    """A learned correction of the sensing matrix, masks + DL(y, masks)."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.DL = nn.Sequential(
            depthwise_bottleneck(bands + 1, bands), depthwise_bottleneck(bands, bands)
        )

    def matrix(self, y: Tensor, masks: Tensor) -> Tensor:
        """Return Φ `(B, C, H, W')` for y `(B, 1, H, W')` and sheared masks `(1|B, C, H, W')`."""
        return self.DL(torch.cat((y, masks.expand(len(y), -1, -1, -1)), 1)) + masks


class LearnedDescent(LearnedMatrix):
    """A gradient step with a learned matrix: v = x + r·Φᵀ(y − Φx).

    Source: Dong et al., CVPR 2023, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.r = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor, y: Tensor, matrix: Tensor, scale: float) -> Tensor:
        """Map a sheared cube x `(B, C, H, W')` to v, shaped like x."""
        camera = ShearedCamera(matrix)
        return x + (scale * self.r) * camera.adjoint(y - camera(x))


class SharedStages(UnrolledNetwork):
    """Base class of networks whose stages, except the first and the last, may share weights.

    Each stage has a data step and a denoiser. A subclass makes them by `build_stages`.
    """

    def __init__(self, bands: int, stages: int, is_shared: bool, checkpointing: bool) -> None:
        super().__init__(bands, stages, checkpointing)
        if stages < 2:
            raise ValueError(f"{type(self).__name__} stages: expected at least 2, got {stages}")
        self.is_shared = is_shared

    def build_stages(
        self, make_step: Callable[[int], nn.Module], make_denoiser: Callable[..., nn.Module]
    ) -> None:
        """Make the stages, in the order and with the names of the published code."""
        bands, inner_stages = self.bands, range(self.stages - 2)
        self.head_GD, self.head_PM = make_step(bands), make_denoiser(bands, first=True)
        self.body_GD: nn.Module
        self.body_PM: nn.Module
        if self.is_shared:
            self.body_GD, self.body_PM = make_step(bands), make_denoiser(bands)
        else:
            self.body_GD = nn.ModuleList(make_step(bands) for _ in inner_stages)
            self.body_PM = nn.ModuleList(make_denoiser(bands) for _ in inner_stages)
        self.tail_GD, self.tail_PM = make_step(bands), make_denoiser(bands)

    def list_stages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the data step and the denoiser of every stage."""
        if self.is_shared:
            body = [(self.body_GD, self.body_PM)] * (self.stages - 2)
        else:
            lists = cast("tuple[nn.ModuleList, nn.ModuleList]", (self.body_GD, self.body_PM))
            body = list(zip(*lists, strict=True))
        return [(self.head_GD, self.head_PM), *body, (self.tail_GD, self.tail_PM)]


@register_model("rdluf_mixs2_3stg", stages=3, shared=False)
@register_model("rdluf_mixs2_5stg", stages=5)
@register_model("rdluf_mixs2_7stg", stages=7)
@register_model("rdluf_mixs2_9stg", stages=9)
class RDLUFMixS2(SharedStages):
    """Unrolled gradient descent whose sensing matrix and denoisers are learned.

        v = x + 2/C·r_i Φ_iᵀ(y − Φ_i x),   x ← PM_i(v)

    PM_i is a `MixTransformer`. Φ_i is as wide as the detector, and unlike the mask it transmits
    everywhere. So x has as many columns as the detector. Its bands are rolled to their detector
    columns, and back for the denoiser.

    Args:
        bands: number C of bands.
        stages: number of iterations, at least 2.
        shared: whether all stages but the first and the last have the same weights.
        checkpointing: see `UnrolledNetwork`.

    Raises:
        ValueError: a count below 1, or one stage only.

    Source: Dong et al., "Residual degradation learning unfolding framework with mixing priors
    across spectral and spatial for compressive spectral imaging", CVPR 2023; names of the weights
    as in its code.
    """

    def __init__(
        self, bands: int = 28, stages: int = 5, shared: bool = True, checkpointing: bool = False
    ) -> None:
        super().__init__(bands, stages, shared, checkpointing)
        self.build_stages(LearnedDescent, MixTransformer)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        scale, shifts = 2 / self.bands, column_offsets(system)
        masks = sheared_masks(y, system)
        features: list[Features] = []
        sheared_cube = (y * scale).expand(-1, self.bands, -1, -1)
        x, last_descent, matrix = sheared_cube, None, masks
        for data_step, denoiser in self.list_stages():
            descent = cast(LearnedDescent, data_step)
            # Φ does not depend on x, so stages that share their weights have the same Φ.
            if descent is not last_descent:
                last_descent, matrix = descent, descent.matrix(y * scale, masks)
            sheared_cube = descent(sheared_cube, y, matrix, scale)
            unsheared_cube = roll_bands(sheared_cube, [-shift for shift in shifts])
            x = self.chain(denoiser, features)(unsheared_cube, 0.0)
            sheared_cube = roll_bands(x, shifts)
        return x[..., : system.mask.shape[-1]]
