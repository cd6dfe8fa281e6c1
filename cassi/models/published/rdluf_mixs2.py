"""RDLUF-MixS²: an unrolled network that learns its own sensing matrix."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import ChannelAttention
from cassi.models.grid import Camera, Sensing, moved_masks, offsets, roll_bands
from cassi.models.layers import (
    CONV3,
    GatedFeedForward,
    OnImages,
    PixelNorm,
    Point,
    Residuals,
    in_order,
    on_images,
    pad_to_multiple,
    spread,
    spread_pixels,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register_model


class Inception(nn.Module):
    """Four groups of channels: of a pixel, of 3×3, of 5×5 pixels, and of their mean."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        quarter, sixth = dim // 4, dim // 6
        self.branch0 = activated(dim, quarter)
        self.branch1 = nn.Sequential(
            activated(dim, sixth), activated(sixth, sixth, 3), activated(sixth, quarter)
        )
        self.branch2 = nn.Sequential(
            activated(dim, sixth),
            activated(sixth, sixth, 3),
            activated(sixth, quarter),
            activated(quarter, quarter, 3),
            activated(quarter, quarter),
        )
        mean = OnImages(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False))
        self.branch3 = nn.Sequential(mean, activated(dim, quarter))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        branches = (self.branch0, self.branch1, self.branch2, self.branch3)
        return torch.cat([branch(x) for branch in branches], -1)


def activated(inputs: int, outputs: int, size: int = 1) -> nn.Sequential:
    """Return a convolution and GELU: 1×1, or depthwise where it is larger."""
    conv = Point(inputs, outputs) if size == 1 else spread(inputs, size)
    return in_order(conv=conv, act=nn.GELU())


def channel_weights(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return what weights channels in [0, 1] by their means over the image."""
    inner = (Point(inputs, width), PixelNorm(width, centred=False), nn.GELU())
    return nn.Sequential(*inner, Point(width, outputs), nn.Sigmoid())


class MixBlock(nn.Module):
    """A spatial and a spectral branch that weight each other, and a feed-forward network.

    Source: Dong et al., CVPR 2023, section 3.3 and figure 4.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.spatial_branch = in_order(norm=PixelNorm(dim, centred=False), inception=Inception(dim))
        self.spatial_conv, self.spatial_interaction = Point(dim, dim), Point(dim, 1)
        self.spectral_branch = ChannelAttention(dim, heads, norm=True)
        self.spectral_interaction = channel_weights(dim, dim // 8, dim)
        self.ffn = Residuals(module=GatedFeedForward(dim, norm=True))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        spatial = self.spatial_branch(x)
        spectral = self.spectral_branch(x, self.spatial_interaction(spatial))
        weights = self.spectral_interaction(spectral.mean((1, 2), keepdim=True))
        spatial = self.spatial_conv(F.gelu(spatial) * weights)
        return self.ffn(2 * x + spatial + spectral)


class StageInteraction(nn.Module):
    """Scale and offset of features, made of what the stage before left at this scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.st_inter_enc, self.st_inter_dec = Point(dim, dim), Point(dim, dim)
        self.phi, self.gamma = spread(dim), spread(dim)

    def forward(self, x: Tensor, encoded: Tensor, decoded: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        skip = F.gelu(self.st_inter_enc(encoded) + self.st_inter_dec(decoded))
        return torch.addcmul(self.gamma(skip), torch.sigmoid(self.phi(skip)), x)


class BlockInteraction(nn.Module):
    """Features of one scale, made of those of all scales."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        point = Point(inputs, outputs)
        self.conv = nn.Sequential(point, nn.GELU(), CONV3(outputs, outputs))

    def forward(self, *images: Tensor) -> Tensor:
        """Map images `(B, H, W, c)` of one size to `(B, H, W, c')`."""
        return self.conv[1:](self.conv[0](*images))


def rescaled(name: str, inputs: int, outputs: int, factor: float) -> nn.Sequential:
    """Return a bilinear scaling and a 3×3 convolution, under a name among the weights."""
    scaling = OnImages(nn.Upsample(scale_factor=factor, mode="bilinear", align_corners=False))
    return in_order(**{name: nn.Sequential(scaling, CONV3(inputs, outputs))})


def rescale(x: Tensor, factor: float) -> Tensor:
    """Scale images `(B, H, W, c)` bilinearly."""
    return on_images(partial(F.interpolate, scale_factor=factor, mode="bilinear"), x)


SCALES = 3
MULTIPLE = 2**SCALES


Features = tuple[tuple[Tensor, Tensor], ...]
"""What a stage leaves to the next of each scale, the finest first: encoded, decoded."""


class StageTransformer(nn.Module):
    """A U-Net of three scales, told what the stage before found at each.

    Any height and width: reflected to a multiple of 8, and cropped.

    `block` makes the network of a scale, of `dim << scale` channels; `down` and `up` make the steps
    from a scale of so many channels to the next one. In the `first` stage layers that would listen
    to the one before stay unused.

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
        self.embedding = Point(bands, dim)
        self.Encoder = nn.ModuleList(block(i) for i in (0, 1))
        self.BottleNeck = block(2)
        self.Decoder = nn.ModuleList(block(i) for i in (1, 0))
        self.BlockInteractions = nn.ModuleList(BlockInteraction(7 * dim, dim << i) for i in (0, 1))
        self.Downs = nn.ModuleList(down(dim << i) for i in (0, 1))
        self.Ups = nn.ModuleList(up(dim << i) for i in (2, 1))
        self.fusions = nn.ModuleList(CONV3(dim << i + 1, dim << i) for i in (1, 0))
        self.stage_interactions = nn.ModuleList(StageInteraction(dim << i) for i in (0, 1, 2, 1, 0))
        if first:
            # Without a gradient they would stop distributed training.
            self.stage_interactions.requires_grad_(False)
        self.mapping = Point(dim, bands)

    def forward(
        self, x: Tensor, before: Features | None, told: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)`, with the features of the stage before; return its own.

        Args:
            x: the cube.
            before: None in the first stage.
            told: what else the blocks are told, one tensor a scale, the finest first.
        """
        height, width = x.shape[-2:]
        padded = pad_to_multiple(x, MULTIPLE, "mirror").permute(0, 2, 3, 1).contiguous()
        at = [told[i : i + 1] for i in range(SCALES)]
        fine = self.embedding(padded)
        fine = self._listen(0, self.Encoder[0](fine, *at[0]), before)
        middle = self._listen(1, self.Encoder[1](self.Downs[0](fine), *at[1]), before)
        coarse = self._listen(2, self.BottleNeck(self.Downs[1](middle), *at[2]), before)
        of_coarse = rescale(coarse, 2)
        encoded = (
            self.BlockInteractions[0](fine, rescale(middle, 2), rescale(of_coarse, 2)),
            self.BlockInteractions[1](rescale(fine, 0.5), middle, of_coarse),
        )
        middle = self.fusions[0](self.Ups[0](coarse), encoded[1])
        middle = self._listen(3, self.Decoder[0](middle, *at[1]), before)
        fine = self.fusions[1](self.Ups[1](middle), encoded[0])
        fine = self._listen(4, self.Decoder[1](fine, *at[0]), before)
        cube = (self.mapping(fine) + padded).permute(0, 3, 1, 2)
        left = (encoded[0], fine), (encoded[1], middle), (coarse, coarse)
        return cube[..., :height, :width], left

    def _listen(self, place: int, x: Tensor, before: Features | None) -> Tensor:
        if before is None:
            return x
        return self.stage_interactions[place](x, *before[(0, 1, 2, 1, 0)[place]])


class MixTransformer(StageTransformer):
    """The U-Net of mixing blocks, scaled bilinearly.

    Source: Dong et al., CVPR 2023, figure 3.
    """

    def __init__(self, bands: int, first: bool = False) -> None:
        # The inception has quarters of the channels, sixths inside, and eighths weight them.
        dim = max(16, bands + -bands % 4)
        super().__init__(
            *(bands, dim),
            block=lambda i: MixBlock(dim << i, 1 << i),
            down=lambda width: rescaled("down", width, 2 * width, 0.5),
            up=lambda width: rescaled("up", width, width // 2, 2),
            first=first,
        )


class LearnedMatrix(nn.Module):
    """A sensing matrix corrected by what y and the masks tell, Φ + DL(y, Φ)."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.DL = nn.Sequential(spread_pixels(bands + 1, bands), spread_pixels(bands, bands))

    def matrix(self, y: Tensor, masks: Tensor) -> Tensor:
        """Return Φ `(B, C, H, W')` of y `(B, 1, H, W')` and masks `(1|B, C, H, W')`."""
        return self.DL(torch.cat((y, masks.expand(len(y), -1, -1, -1)), 1)) + masks


class LearnedDescent(LearnedMatrix):
    """A gradient step with a learned matrix: v = x + r·Φᵀ(y − Φx).

    Source: Dong et al., CVPR 2023, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.r = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor, y: Tensor, matrix: Tensor, scale: float) -> Tensor:
        """Step: x `(B, C, H, W')` → v, the bands of both where they fall."""
        camera = Sensing(matrix)
        return x + (scale * self.r) * camera.adjoint(y - camera(x))


class SharedStages(Unrolled):
    """Stages of a data step and a denoiser, at least 2; between the ends they may share weights."""

    def __init__(self, bands: int, stages: int, shared: bool, checkpointing: bool) -> None:
        super().__init__(bands, stages, checkpointing)
        if stages < 2:
            raise ValueError(f"{type(self).__name__} stages: expected at least 2, got {stages}")
        self.shared = shared

    def build_stages(
        self, step: Callable[[int], nn.Module], denoiser: Callable[..., nn.Module]
    ) -> None:
        """Make the stages, in the order and under the names of the published codes."""
        bands, inner = self.bands, range(self.stages - 2)
        self.head_GD, self.head_PM = step(bands), denoiser(bands, first=True)
        self.body_GD: nn.Module
        self.body_PM: nn.Module
        if self.shared:
            self.body_GD, self.body_PM = step(bands), denoiser(bands)
        else:
            self.body_GD = nn.ModuleList(step(bands) for _ in inner)
            self.body_PM = nn.ModuleList(denoiser(bands) for _ in inner)
        self.tail_GD, self.tail_PM = step(bands), denoiser(bands)

    def each_stage(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the data step and the denoiser of every stage."""
        if self.shared:
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

    Φ_i is as wide as the detector and, unlike the mask, open everywhere on it: x is a wide cube,
    whose bands are rolled to where they fall.

    Args:
        bands: number C of bands.
        stages: number of iterations, at least 2.
        shared: whether all stages but the first and the last are one.

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

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        scale, shifts = 2 / self.bands, offsets(system)
        masks = moved_masks(y, system)
        features: list[Features] = []
        moved = (y * scale).expand(-1, self.bands, -1, -1)
        x, known, matrix = moved, None, masks
        for step, denoiser in self.each_stage():
            descent = cast(LearnedDescent, step)
            if descent is not known:  # a stage that is shared has the same Φ each time
                known, matrix = descent, descent.matrix(y * scale, masks)
            moved = descent(moved, y, matrix, scale)
            together = roll_bands(moved, [-shift for shift in shifts])
            x = self.chain(denoiser, features)(together, 0.0)
            moved = roll_bands(x, shifts)
        return x[..., : system.mask.shape[-1]]
