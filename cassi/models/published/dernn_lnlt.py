"""DERNN-LNLT: one stage, applied again and again, that estimates what degrades the cube."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

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
    CONV3,
    HALVE,
    Double,
    GatedFeedForward,
    PixelNorm,
    Point,
    PreNorm,
    Residuals,
    check_counts,
    draw_narrow,
    in_order,
    level_plane,
    padded,
    pooled_mlp,
    spread,
    spread_pixels,
    u_net,
    widen,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register_model
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
        self.qkv, self.qkv_dwconv = Point(dim, 3 * dim), spread(3 * dim)
        self.project_out = Point(dim, dim, bias=True)

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
        return self.project_out(join(mixed, height, width))


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
    """Return rows of parts, each part of the normalized x and with a skip."""
    blocks = (Residuals(*(PreNorm(PixelNorm(dim), part) for part in parts)) for parts in rows)
    return in_order(blocks=nn.Sequential(*blocks))


class LocalNonLocalTransformer(nn.Module):
    """A U-Net of three scales, told the noise level by one more channel.

    Any height and width: reflected to a multiple, and cropped.

    `block` makes what maps `(B, h, w, c)` to the same at a scale, 0 for the finest; it is made
    twice for all scales but the coarsest.

    Source: Dong et al., AAAI 2024, figure 3.
    """

    def __init__(
        self, bands: int, block: Callable[[int], nn.Module], multiple: int = MULTIPLE
    ) -> None:
        super().__init__()
        self.multiple = multiple
        fine, middle, coarse = (bands << scale for scale in range(SCALES))
        self.embedding = CONV3(bands + 1, bands)
        self.Encoder = nn.ModuleList((block(0), block(1)))
        self.BottleNeck = block(2)
        self.Decoder = nn.ModuleList((block(1), block(0)))
        self.Downs, self.Ups = (
            nn.ModuleList(in_order(**{name: nn.Sequential(make(*each))}) for each in widths)
            for name, make, widths in (
                ("down", HALVE, ((fine, middle), (middle, coarse))),
                ("up", Double, ((coarse, middle), (middle, fine))),
            )
        )
        self.fusions = nn.ModuleList((Point(coarse, middle), Point(middle, fine)))
        self.mapping = CONV3(bands, bands)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""

        def restore(z: Tensor) -> Tensor:
            features = self.embedding(torch.cat((level_plane(sigma, z), z), -1))
            encoder = zip(self.Encoder, self.Downs, strict=True)
            decoder = zip(self.Ups, self.fusions, self.Decoder, strict=True)
            return self.mapping(u_net(features, encoder, self.BottleNeck, decoder))

        return padded(restore, x, self.multiple)


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


class RecurrentSplitting(Unrolled):
    """Half-quadratic splitting with one set of weights for all stages.

    Between stages the bands lie where they fall on the detector; the denoiser sees them together.
    A subclass makes the layers by `build`.
    """

    momentum: ClassVar[float] = 0.0
    """Share of the last change by which the data step looks ahead."""

    def build(self, block: Callable[[int], nn.Module], multiple: int = MULTIPLE) -> None:
        """Make the layers; arguments as of `LocalNonLocalTransformer`."""
        self.fusion = nn.Conv2d(2 * self.bands, self.bands, 1)
        self.DP = DegradationEstimation(self.bands)
        self.PP = LocalNonLocalTransformer(self.bands, block, multiple)
        draw_narrow(self, nn.Conv2d)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        shifts, width = offsets(system), system.mask.shape[-1]
        masks, denoise = moved_masks(y, system), partial(self.compute, self.PP)
        prior = in_place(denoise, shifts, width, y.shape[-1])
        algorithm = HQS()
        before = mix_measurement(self.fusion, y, masks, system)
        state = algorithm.init(y, Sensing(masks), before)
        for _ in range(self.stages):
            matrix, rho, sigma = self.DP(state.x, masks)
            sensing, now, ahead = Sensing(matrix), state.x, y
            if self.momentum:  # y − Φẑ is what the step makes of this one
                ahead = y - sensing(self.momentum * (now - before))
            state = algorithm.step(state, ahead, sensing, prior, sigma, rho)
            before = now
        return gather_bands(state.x, shifts, width)


@register_model("dernn_lnlt_5stg", stages=5)
@register_model("dernn_lnlt_7stg", stages=7)
@register_model("dernn_lnlt_9stg", stages=9)
@register_model("dernn_lnlt_9stg_star", stages=9, blocks=2)
class DERNNLNLT(RecurrentSplitting):
    """Unrolled half-quadratic splitting with one set of weights for all stages.

        v = z + Φᵀ(ΦΦᵀ + ρI)⁻¹(y − Φz),   z ← LNLT(v, σ),   Φ, ρ, σ estimated from z

    Args:
        bands: as of `Unrolled`.
        stages: as of `Unrolled`.
        checkpointing: as of `Unrolled`.
        blocks: of the denoiser, at each scale.

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

        def block(scale: int) -> nn.Sequential:
            dim, heads = bands << scale, 1 << scale
            return normed_blocks(
                dim,
                *(
                    (
                        PixelAttention(dim, heads, local=True),
                        PixelAttention(dim, heads, local=False),
                        GatedFeedForward(dim, bias=True),
                    )
                    for _ in range(blocks)
                ),
            )

        self.build(block)
