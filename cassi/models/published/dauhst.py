"""DAUHST: an unrolled network with half-shuffle transformers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.grid import Camera, Wide, mix_measurement, moved_masks, offsets, roll_bands
from cassi.models.layers import (
    Conv,
    Point,
    PreNorm,
    UNet,
    check_counts,
    draw_narrow,
    feed_forward,
    level_plane,
    padded,
    pooled_mlp,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register_model
from cassi.solvers import HQS

SCALES = 3
"""Resolutions of a denoiser, each half of the one before."""
MULTIPLE = WINDOW * 2 ** (SCALES - 1)


class HalfShuffleAttention(nn.Module):
    """Half of the heads attend within 8×8 windows, half among the pixels at one place of a window.

    With one head there are only windows. Positions enter by learned tables that are added to the
    scores: `pos_emb` or `pos_emb1` for the 64 pixels of a window, `pos_emb2` for the grid of
    windows of the feature map for which it was made; for another map it is interpolated, see
    `resize_table`.

    `dim` is of a head; there is one, or an even number. `size` is that of the feature map,
    multiples of 8.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer for spectral
    compressive imaging", NeurIPS 2022, section 3.2 and figure 3.
    """

    def __init__(self, dim: int, heads: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.grid = (size[0] // WINDOW, size[1] // WINDOW)
        pixels, windows = WINDOW * WINDOW, self.grid[0] * self.grid[1]
        if heads == 1:
            self.pos_emb = _table(1, heads, pixels, pixels)
        else:
            self.pos_emb1 = _table(1, 1, heads // 2, pixels, pixels)
            self.pos_emb2 = _table(1, 1, heads // 2, windows, windows)
        inner = dim * heads
        self.to_q = nn.Linear(inner, inner, bias=False)
        self.to_kv = nn.Linear(inner, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → `(B, H, W, c)`, c = dim·heads, H and W multiples of 8."""
        _, height, width, _ = x.shape
        weights = (self.to_q.weight, *self.to_kv.weight.chunk(2))
        cut = to_windows(x)
        if self.heads == 1:
            out = self._attend(cut, weights, self.pos_emb[0])
        else:
            near, far = zip(*(weight.chunk(2) for weight in weights), strict=True)
            inside = self._attend(cut, near, self.pos_emb1[0, 0])
            grid = (height // WINDOW, width // WINDOW)
            table = resize_table(self.pos_emb2[0, 0], self.grid, grid)
            among = self._attend(cut.transpose(1, 2).contiguous(), far, table).transpose(1, 2)
            out = torch.cat((inside, among), -1)
        return from_windows(self.to_out(out), height, width)

    def _attend(self, x: Tensor, weights: Sequence[Tensor], table: Tensor) -> Tensor:
        # Three products instead of one: what each gives is compact, which the next products like.
        q, k, v = (
            F.linear(x, weight).unflatten(-1, (-1, self.dim)).transpose(2, 3) for weight in weights
        )
        return attend(q, k, v, table).transpose(2, 3).flatten(3)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.to(memory_format=torch.channels_last)` refuses modules that hold 5-D tensors, which the
        # published tables are: show it their last three dimensions only.
        def apply(value: Tensor) -> Tensor:
            return fn(value[0, 0])[None, None] if value.ndim == 5 else fn(value)

        return super()._apply(apply, recurse)


def resize_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Interpolate a table of positions to another grid.

    An entry belongs to the position of a query and to that of a key, both on a grid. It is
    interpolated bicubically over the grid of the keys, then over that of the queries:
    `(heads, n, n)`, n = rows·columns, → `(heads, n', n')`.
    """
    if old == new:
        return table
    heads = table.shape[0]
    for _ in range(2):
        images = table.reshape(-1, 1, *old)
        images = F.interpolate(images, new, mode="bicubic", align_corners=False)
        table = images.reshape(heads, -1, new[0] * new[1]).mT
    return table


def _table(*shape: int) -> nn.Parameter:
    table = nn.Parameter(torch.empty(shape))
    nn.init.trunc_normal_(table)
    return table


class HalfShuffleBlock(nn.Module):
    """x + attention(x), then x + feed_forward(x)."""

    def __init__(self, dim: int, heads: int, size: tuple[int, int]) -> None:
        super().__init__()
        width = dim * heads
        parts = (HalfShuffleAttention(dim, heads, size), feed_forward(width, 4))
        normed = (PreNorm(nn.LayerNorm(width), part) for part in parts)
        self.blocks = nn.ModuleList([nn.ModuleList(normed)])

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        for part in cast(nn.ModuleList, self.blocks[0]):
            x = part(x).add_(x)
        return x


class HalfShuffleTransformer(UNet):
    """A U-Net of half-shuffle blocks, told the noise level by one more channel.

    Any height and width: reflected to a multiple of 32, and cropped.

    Source: Cai et al., NeurIPS 2022, figure 3.
    """

    def __init__(self, bands: int, size: tuple[int, int]) -> None:
        super().__init__()

        def block(scale: int) -> HalfShuffleBlock:
            return HalfShuffleBlock(bands, 2**scale, (size[0] >> scale, size[1] >> scale))

        self.build(bands, SCALES - 1, block, bands + 1)
        draw_narrow(self, nn.Linear)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""

        def restore(z: Tensor) -> Tensor:
            images = (image.permute(0, 3, 1, 2) for image in (z, level_plane(sigma, z)))
            # Not along the last axis: the layout of the result decides how a convolution rounds.
            return self.pass_through(torch.cat(tuple(images), 1).permute(0, 2, 3, 1))

        return padded(restore, x, MULTIPLE)


class ParameterNet(nn.Module):
    """Estimate positive numbers from an image, one pair (α, β) per stage.

    Source: Cai et al., NeurIPS 2022, section 3.1.
    """

    def __init__(self, bands: int, stages: int, width: int = 64) -> None:
        super().__init__()
        self.fution = Point(bands, width, bias=True)
        self.down_sample = Conv(width, width, 3, 2, bias=True)
        self.mlp = pooled_mlp(width, 2 * stages, bias=True).append(nn.Softplus())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return α and β `(B, stages, 1, 1)` of images `(B, C, H, W)`."""
        mixed = F.relu_(self.fution(x.permute(0, 2, 3, 1)))
        features = self.down_sample(mixed).permute(0, 3, 1, 2)
        # Not zero: ρ = α divides.
        alpha, beta = (self.mlp(features.mean((2, 3), keepdim=True)) + 1e-6).chunk(2, 1)
        return alpha, beta


@register_model("dauhst_2stg", stages=2)
@register_model("dauhst_3stg", stages=3)
@register_model("dauhst_5stg", stages=5)
@register_model("dauhst_9stg", stages=9)
class DAUHST(Unrolled):
    """Unrolled half-quadratic splitting; ρ and σ of every stage are estimated from y and the mask.

        v = x + Aᵀ(AAᵀ + α_i I)⁻¹(y − Ax),   x ← HST_i(v, β_i)

    Args:
        bands: as of `Unrolled`.
        stages: as of `Unrolled`.
        checkpointing: as of `Unrolled`.
        size: rows and columns of the detector for which the tables of positions are made; rounded
            up to multiples of 32. Others are served by interpolation. (256, 320) is the published.

    Raises:
        ValueError: a count or size below 1.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer for spectral
    compressive imaging", NeurIPS 2022; names of the weights as there.
    """

    def __init__(
        self,
        bands: int = 28,
        stages: int = 2,
        size: tuple[int, int] = (256, 320),
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        height, width = size
        check_counts("DAUHST size", height=height, width=width)
        table = (height + -height % MULTIPLE, width + -width % MULTIPLE)
        self.para_estimator = ParameterNet(bands, stages)
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.denoisers = nn.ModuleList(HalfShuffleTransformer(bands, table) for _ in range(stages))

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        wide, algorithm = Wide(system), HQS()
        guess = mix_measurement(self.fution, y, moved_masks(y, system), system, 2 / self.bands)
        alpha, beta = self.para_estimator(guess)
        state = algorithm.init(y, wide, roll_bands(guess, [-shift for shift in offsets(system)]))
        for i, denoiser in enumerate(self.denoisers):
            prior = partial(self.compute, denoiser)
            rho, sigma = alpha[:, i, 0, 0], beta[:, i : i + 1]
            state = algorithm.step(state, y, wide, prior, sigma, rho)
        return state.x[..., : wide.width]
