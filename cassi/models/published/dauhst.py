"""DAUHST: unrolled half-quadratic splitting with half-shuffle transformers as denoisers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.camera_adapters import (
    CroppingCamera,
    NetworkCamera,
    column_offsets,
    mix_measurement,
    roll_bands,
    sheared_masks,
)
from cassi.models.layers import (
    Conv,
    PointwiseConv,
    PreNorm,
    UNet,
    apply_padded,
    check_counts,
    feed_forward,
    init_truncated_normal,
    level_plane,
    pooled_mlp,
)
from cassi.models.network import UnrolledNetwork
from cassi.models.registry import register_model
from cassi.solvers import HQS

# Number of resolutions of a denoiser, each half of the one before.
SCALES = 3
# H and W are padded to multiples of this. Then the coarsest scale has whole windows.
MULTIPLE = WINDOW * 2 ** (SCALES - 1)


class HalfShuffleAttention(nn.Module):
    """Attention in which half of the heads work within 8×8 windows, the others across windows.

    In a head across windows, the pixels at the same position of all windows attend to each other. A
    single head works within windows only. Learned tables of positions are added to the scores.
    `pos_emb` (for a single head) and `pos_emb1` are for the 64 pixels of a window. `pos_emb2` is
    for the grid of windows in a feature map of the given size; for another size `resize_table`
    interpolates it.

    Args:
        dim: channels of a head.
        heads: 1, or an even number.
        size: height and width of the feature map, multiples of 8.

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
        channels = dim * heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_kv = nn.Linear(channels, 2 * channels, bias=False)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → `(B, H, W, c)`, c = dim·heads, H and W multiples of 8."""
        _, height, width, _ = x.shape
        weights = (self.to_q.weight, *self.to_kv.weight.chunk(2))
        windows = to_windows(x)
        if self.heads == 1:
            result = self._attend(windows, weights, self.pos_emb[0])
        else:
            window_weights, grid_weights = zip(
                *(weight.chunk(2) for weight in weights), strict=True
            )
            within_windows = self._attend(windows, window_weights, self.pos_emb1[0, 0])
            grid = (height // WINDOW, width // WINDOW)
            table = resize_table(self.pos_emb2[0, 0], self.grid, grid)
            across_windows = self._attend(
                windows.transpose(1, 2).contiguous(), grid_weights, table
            ).transpose(1, 2)
            result = torch.cat((within_windows, across_windows), -1)
        return from_windows(self.to_out(result), height, width)

    def _attend(self, x: Tensor, weights: Sequence[Tensor], table: Tensor) -> Tensor:
        # Three products give three contiguous results, which `attend` reads faster than views of
        # one product.
        q, k, v = (
            F.linear(x, weight).unflatten(-1, (-1, self.dim)).transpose(2, 3) for weight in weights
        )
        return attend(q, k, v, table).transpose(2, 3).flatten(3)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.to(memory_format=torch.channels_last)` refuses modules with 5-D tensors. The published
        # tables are 5-D, but their first two dimensions are 1. So the other three are passed on.
        def apply(value: Tensor) -> Tensor:
            return fn(value[0, 0])[None, None] if value.ndim == 5 else fn(value)

        return super()._apply(apply, recurse)


def resize_table(table: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int]) -> Tensor:
    """Interpolate a table of positions to another grid: `(heads, n, n)` → `(heads, n', n')`.

    n is the number of cells of the grid. An entry is for one position of the query and one of the
    key. The table is interpolated bicubically over the keys, then over the queries.
    """
    if old_grid == new_grid:
        return table
    heads = table.shape[0]
    for _ in range(2):
        images = table.reshape(-1, 1, *old_grid)
        images = F.interpolate(images, new_grid, mode="bicubic", align_corners=False)
        table = images.reshape(heads, -1, new_grid[0] * new_grid[1]).mT
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
        branches = (HalfShuffleAttention(dim, heads, size), feed_forward(width, 4))
        layers = (PreNorm(nn.LayerNorm(width), part) for part in branches)
        self.blocks = nn.ModuleList([nn.ModuleList(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        for part in cast(nn.ModuleList, self.blocks[0]):
            x = part(x).add_(x)
        return x


class HalfShuffleTransformer(UNet):
    """A U-Net of half-shuffle blocks; one more input channel holds the noise level.

    Height and width are free: images are mirrored to a multiple of 32, and the result is cropped.

    Source: Cai et al., NeurIPS 2022, figure 3.
    """

    def __init__(self, bands: int, size: tuple[int, int]) -> None:
        super().__init__()

        def make_block(scale: int) -> HalfShuffleBlock:
            return HalfShuffleBlock(bands, 2**scale, (size[0] >> scale, size[1] >> scale))

        self.build(bands, SCALES - 1, make_block, bands + 1)
        init_truncated_normal(self, nn.Linear)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""

        def restore(z: Tensor) -> Tensor:
            images = (image.permute(0, 3, 1, 2) for image in (z, level_plane(sigma, z)))
            # The images are joined with channels first, because the memory layout of the joined
            # image decides how the convolution rounds.
            return self.pass_through(torch.cat(tuple(images), 1).permute(0, 2, 3, 1))

        return apply_padded(restore, x, MULTIPLE)


class ParameterNet(nn.Module):
    """Estimate one pair of positive numbers (α, β) per stage from an image.

    Source: Cai et al., NeurIPS 2022, section 3.1.
    """

    def __init__(self, bands: int, stages: int, width: int = 64) -> None:
        super().__init__()
        self.fution = PointwiseConv(bands, width, bias=True)
        self.down_sample = Conv(width, width, 3, 2, bias=True)
        self.mlp = pooled_mlp(width, 2 * stages, bias=True).append(nn.Softplus())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return α and β `(B, stages, 1, 1)` of images `(B, C, H, W)`."""
        image = F.relu_(self.fution(x.permute(0, 2, 3, 1)))
        features = self.down_sample(image).permute(0, 3, 1, 2)
        # α must not be zero, because the data step divides by ρ = α.
        alpha, beta = (self.mlp(features.mean((2, 3), keepdim=True)) + 1e-6).chunk(2, 1)
        return alpha, beta


@register_model("dauhst_2stg", stages=2)
@register_model("dauhst_3stg", stages=3)
@register_model("dauhst_5stg", stages=5)
@register_model("dauhst_9stg", stages=9)
class DAUHST(UnrolledNetwork):
    """Unrolled half-quadratic splitting; ρ and σ of every stage are estimated from y and the mask.

        v = x + Aᵀ(AAᵀ + α_i I)⁻¹(y − Ax),   x ← HST_i(v, β_i)

    HST_i is a `HalfShuffleTransformer`, α_i the ρ of stage i, and β_i its σ.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        size: rows and columns of the detector for which the tables of positions are made, rounded
            up to multiples of 32. For other detectors the tables are interpolated. The published
            weights have (256, 320).

    Raises:
        ValueError: a count or size below 1.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer for spectral
    compressive imaging", NeurIPS 2022; names of the weights as in its code.
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

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        camera, algorithm = CroppingCamera(system), HQS()
        initial = mix_measurement(self.fution, y, sheared_masks(y, system), system, 2 / self.bands)
        alpha, beta = self.para_estimator(initial)
        state = algorithm.init(
            y, camera, roll_bands(initial, [-shift for shift in column_offsets(system)])
        )
        for i, denoiser in enumerate(self.denoisers):
            prior = partial(self.compute, denoiser)
            rho, sigma = alpha[:, i, 0, 0], beta[:, i : i + 1]
            state = algorithm.step(state, y, camera, prior, sigma, rho)
        return state.x[..., : camera.width]
