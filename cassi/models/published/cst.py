"""CST: a U-Net with hash attention in the windows whose estimated sparsity is largest."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, band_masks, initial_cube
from cassi.models.layers import (
    Conv,
    LayerNorm,
    PreNorm,
    TransposedConv,
    check_counts,
    feed_forward,
    init_truncated_normal,
    pad_to_multiple,
    u_net,
)
from cassi.models.network import Network
from cassi.models.registry import register_model


class HashAttention(nn.Module):
    """Attention within clusters of equal size. Several random clusterings are combined.

    Each round sorts the tokens x_i of a head by the random projection

        aᵀx_i + a' √(max_j |x_j|² − |x_i|²) + b

    and cuts the sorted tokens into clusters. Each round gives a token one result. The results are
    added with weights: the softmax over the rounds of l, the log-sum-exp of the token's scores qᵀk
    in its cluster.
    **Every call draws a, a' and b anew** from torch's global generator, in evaluation mode too.
    Seed the generator if results must repeat.

    Source: Lin et al., "Coarse-to-fine sparse transformer for hyperspectral image reconstruction",
    ECCV 2022, section 3.3.
    """

    def __init__(self, dim: int, heads: int, cluster: int, rounds: int = 2) -> None:
        super().__init__()
        self.heads, self.cluster, self.rounds = heads, cluster, rounds
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, 3 * dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: windows `(B, N, C)`, N a multiple of the cluster, to the same shape."""
        b, n, _ = x.shape
        order = self._order(x)  # (rounds, B, heads, N)
        sample = torch.arange(b, device=x.device).view(-1, 1, 1)
        head = torch.arange(self.heads, device=x.device)
        # Row numbers of the tokens (B, N, heads) in sorted order: (rounds, B, heads, N).
        rows = ((sample * n + order) * self.heads + head.view(-1, 1)).flatten()
        q, k, v = (
            projection(x)
            .view(b * n * self.heads, -1)
            .index_select(0, rows)
            .unflatten(0, (-1, self.cluster))
            for projection in (self.to_q, self.to_k, self.to_v)
        )
        energy = q @ k.mT
        # One value per round, head and token, in the sorted order.
        strength = energy.logsumexp(-1).flatten()
        values = (energy.softmax(-1).to(v.dtype) @ v).flatten(0, 1)

        # The inverse permutation: the position of each token (B, N, heads) in the sorted order.
        indices = torch.arange(n, device=x.device).expand_as(order)
        position = torch.empty_like(order).scatter_(-1, order, indices).transpose(-1, -2)
        round_index = torch.arange(self.rounds, device=x.device).view(-1, 1, 1, 1)
        rows = (((round_index * b + sample) * self.heads + head) * n + position).flatten()
        shape = (self.rounds, b, n, self.heads, -1)
        weights = strength.index_select(0, rows).view(shape).softmax(0)
        result = (values.index_select(0, rows).view(shape) * weights).sum(0)
        return self.to_out(result.flatten(2))

    @torch.no_grad()
    def _order(self, x: Tensor) -> Tensor:  # (B, N, C) → positions (rounds, B, heads, N)
        with torch.autocast(x.device.type, enabled=False):
            # In half precision most tokens of a window would have the same projection.
            precision = torch.promote_types(x.dtype, torch.float32)
            tokens = x.to(precision).unflatten(-1, (self.heads, -1))
            size = tokens.shape[-1]
            # The published code draws one more random number per round, for a coordinate that is
            # always zero. This code draws it too, so that a seed gives the same projections.
            a = torch.normal(0.0, 1.0, (size + 2, self.rounds), device=x.device).to(precision)
            b = torch.rand(1, self.rounds, device=x.device).to(precision)
            norm = tokens.norm(dim=-1, keepdim=True)
            residual_norm = (
                (norm.amax(1, keepdim=True).square() - norm.square()).clamp_min(0).sqrt()
            )
            projections = tokens @ a[:size] + residual_norm * a[size] + b  # (B, N, heads, rounds)
            return projections.permute(3, 0, 2, 1).argsort(-1)


class HashBlock(nn.Module):
    """Hash attention within square windows, and a feed-forward network.

    A cluster has a quarter of the pixels of a window. If `is_shifted`, the windows begin half a
    window further down and right. If `is_sparse`, attention is applied only to the half of the
    windows whose mean estimated sparsity is largest.
    """

    def __init__(
        self, dim: int, heads: int, window: int, is_shifted: bool, is_sparse: bool
    ) -> None:
        super().__init__()
        self.window, self.sparse = window, is_sparse
        self.shift = window // 2 if is_shifted else 0
        self.attn = PreNorm(LayerNorm(dim), HashAttention(dim, heads, window**2 // 4))
        self.ffn = PreNorm(LayerNorm(dim), feed_forward(dim, 4, Conv))

    def forward(self, x: Tensor, sparsity: Tensor | None) -> Tensor:
        """Map `(B, H, W, C)` to the same shape.

        `sparsity` is `(B, H, W)`, or None to apply attention to all windows.
        """
        b, h, w, c = x.shape
        side = self.window
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        grid = (b, h // side, side, w // side, side)
        tokens = x.reshape(*grid, c).transpose(2, 3).reshape(-1, side * side, c)
        if self.sparse and sparsity is not None:
            if self.shift:
                sparsity = sparsity.roll((-self.shift, -self.shift), (1, 2))
            window_sparsity = sparsity.reshape(grid).mean((2, 4)).flatten(1)
            count = window_sparsity.shape[1]
            selected_windows = window_sparsity.topk(max(1, count // 2), 1).indices
            first = torch.arange(0, b * count, count, device=x.device).unsqueeze(1)
            rows = (selected_windows + first).flatten()
            attending_tokens = tokens.index_select(0, rows)
            results = self.attn(attending_tokens) + attending_tokens
            tokens = tokens.index_copy(0, rows, results.to(tokens.dtype))
        else:
            tokens = self.attn(tokens) + tokens
        x = tokens.view(b, h // side, w // side, side, side, c).transpose(2, 3).reshape(b, h, w, c)
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return self.ffn(x) + x


class HashBlocks(nn.Module):
    """Blocks of hash attention; every second one has shifted windows."""

    def __init__(self, dim: int, heads: int, count: int, window: int, sparse: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(HashBlock(dim, heads, window, i % 2 == 1, sparse) for i in range(count))
        )

    def forward(self, x: Tensor, sparsity: Tensor | None) -> Tensor:
        """Map `(B, H, W, C)` to the same shape; `sparsity` is `(B, H, W)` or None."""
        for block in self.blocks:
            x = block(x, sparsity)
        return x


class Pyramid(nn.Module):
    """Dilated convolutions and the mean of the image, fused by a 1×1 convolution.

    Source: Chen et al., "Rethinking atrous convolution for semantic image segmentation", 2017.
    """

    def __init__(self, channels: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation, bias=False),
                nn.ReLU(inplace=True),
            )
            for dilation in dilations
        )
        image_mean = nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1, bias=False)
        self.convs.append(nn.Sequential(*image_mean, nn.ReLU(inplace=True)))
        self.project = nn.Sequential(
            nn.Conv2d(len(self.convs) * channels, channels, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same shape."""
        parts = [conv(x).expand(-1, -1, *x.shape[-2:]) for conv in self.convs]
        return self.project(torch.cat(parts, 1))


def bottleneck_layers(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    """Return a 1×1 convolution to twice the channels, a 3×3 depthwise and a 1×1 one."""
    width = 2 * inputs
    return [
        nn.Conv2d(inputs, width, 1, bias=False),
        nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
        nn.Conv2d(width, outputs, 1, bias=False),
    ]


class SparsityEstimator(nn.Module):
    """A small U-Net that returns features; if `sparse`, one more channel holds the sparsity."""

    def __init__(self, dim: int, sparse: bool) -> None:
        super().__init__()
        self.in_proj = nn.Conv2d(dim, dim, 1, bias=False)
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList(bottleneck_layers(channels, 2 * channels, 2))
            for channels in (dim, 2 * dim)
        )
        self.bottleneck = Pyramid(4 * dim, (3, 6))
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList(
                (
                    nn.ConvTranspose2d(2 * channels, channels, 2, 2),
                    *bottleneck_layers(channels, channels, 1),
                )
            )
            for channels in (2 * dim, dim)
        )
        self.out_conv2 = nn.Conv2d(dim, dim + sparse, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, C, H, W)` or `(B, C + 1, H, W)`; H and W multiples of 4."""
        x, skips = F.leaky_relu(self.in_proj(x), 0.1), []
        for layers in self.encoder_layers:
            skips.append(x)
            x = _chain(x, *cast(nn.ModuleList, layers))
        x = self.bottleneck(x) + x
        for layers in self.decoder_layers:
            upsample, *layers_after = cast(nn.ModuleList, layers)
            x = _chain(upsample(x), *layers_after) + skips.pop()
        return self.out_conv2(x)


def _chain(x: Tensor, first: nn.Module, second: nn.Module, third: nn.Module) -> Tensor:
    return third(F.leaky_relu(second(F.leaky_relu(first(x), 0.1)), 0.1))


@register_model("cst_s", blocks=(1, 1, 2))
@register_model("cst_m", blocks=(2, 2, 2))
@register_model("cst_l", blocks=(2, 4, 6), estimators=2)
@register_model("cst_l_plus", blocks=(2, 4, 6), estimators=2, sparse=False)
class CST(Network):
    """CST, the coarse-to-fine sparse transformer; weights have their published names.

    Its attention draws random numbers at every call. Results repeat after `torch.manual_seed`.

    Args:
        bands: number C of bands, and channels at full size.
        blocks: number of blocks at each scale, the smallest image last.
        estimators: number of `SparsityEstimator`s, one after another.
        sparse: whether attention is applied only to half of the windows.
        window: side of a window, pixels, even.

    Raises:
        ValueError: a count below 1, or an odd window.

    Source: Lin et al., "Coarse-to-fine sparse transformer for hyperspectral image reconstruction",
    ECCV 2022.
    """

    def __init__(
        self,
        bands: int = 28,
        blocks: Sequence[int] = (1, 1, 2),
        estimators: int = 1,
        sparse: bool = True,
        window: int = 16,
    ) -> None:
        super().__init__(bands)
        levels = len(blocks) - 1
        check_counts("CST", levels=levels, estimators=estimators, window=window)
        if window % 2:
            raise ValueError(f"CST window: expected an even number, got {window}")
        self.sparse, self.multiple = sparse, window << levels

        def make_blocks(level: int) -> HashBlocks:
            return HashBlocks(bands << level, 1 << level, blocks[level], window, sparse)

        self.fution = nn.Conv2d(2 * bands, bands, 1, bias=False)
        estimator_list = [
            SparsityEstimator(bands, sparse and last)
            for last in [False] * (estimators - 1) + [True]
        ]
        self.fe = estimator_list[0] if estimators == 1 else nn.Sequential(*estimator_list)
        widths = [(level, bands << level, bands << level + 1) for level in range(levels)]
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList((make_blocks(level), Conv(channels, coarser_channels, 4, 2)))
            for level, channels, coarser_channels in widths
        )
        self.bottleneck = make_blocks(levels)
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList((TransposedConv(coarser_channels, channels), make_blocks(level)))
            for level, channels, coarser_channels in reversed(widths)
        )
        self.out_proj = Conv(bands, bands, 3)
        init_truncated_normal(self, nn.Linear)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        masks = band_masks(y, system).expand(y.shape[0], -1, -1, -1)
        x = torch.cat((initial_cube(y, system), masks), 1)
        x = self.fution(pad_to_multiple(x, self.multiple, "reflect"))
        features, sparsity = self.fe(x), None
        if self.sparse:
            features, sparsity = features[:, :-1], features[:, -1]

        def block_inputs(sparsity: Tensor | None) -> Iterator[tuple[Tensor | None]]:
            for _ in range(len(self.encoder_layers) + 1):
                yield (sparsity,)
                sparsity = None if sparsity is None else F.avg_pool2d(sparsity, 2)

        features, x = features.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)
        encoder = [cast(nn.ModuleList, layers) for layers in self.encoder_layers]
        decoder = [cast(nn.ModuleList, layers) for layers in self.decoder_layers]
        decoder_layers = [(upsample, torch.add, blocks) for upsample, blocks in decoder]
        features = u_net(features, encoder, self.bottleneck, decoder_layers, block_inputs(sparsity))
        return (self.out_proj(features) + x)[:, :height, :width].permute(0, 3, 1, 2)
