"""MST and MST++: U-Nets with attention between bands; in MST the mask guides the attention."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import (
    NetworkCamera,
    band_masks,
    column_offsets,
    initial_cube,
    shear_bands,
)
from cassi.models.layers import (
    Conv,
    LayerNorm,
    PreNorm,
    UNet,
    apply_channels_last,
    check_counts,
    depthwise_conv,
    feed_forward,
    init_truncated_normal,
    pad_to_multiple,
)
from cassi.models.network import Network
from cassi.models.registry import register_model


class SpectralAttention(nn.Module):
    """Attention between channels: a token is the image of one channel.

        A = softmax(α KᵀQ / (|K| |Q|)),   out = (V ⊙ M) Aᵀ W_p + b + conv(V)

    X are the pixels `(H·W, C)`. Per head, Q = XW_q, K = XW_k and V = XW_v. |·| are norms of
    columns. M is the guide, or 1 without a guide. A is computed from the matrix XᵀX `(C, C)`:
    KᵀQ = W_kᵀ(XᵀX)W_q, |K|² is the diagonal of W_kᵀ(XᵀX)W_k, and |Q|² is the diagonal of
    W_qᵀ(XᵀX)W_q. So neither Q nor K is formed. Aᵀ W_p is one small matrix.

    Source: Cai et al., "Mask-guided spectral-wise transformer", CVPR 2022, equations 5 to 8.
    """

    def __init__(self, dim: int, head: int, is_guided: bool) -> None:
        super().__init__()
        self.heads = dim // head
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.rescale = nn.Parameter(torch.ones(self.heads, 1, 1))
        self.proj = nn.Linear(dim, dim)
        self.pos_emb = nn.Sequential(depthwise_conv(dim), nn.GELU(), depthwise_conv(dim))
        self.mm = MaskGuide(dim) if is_guided else None

    def forward(self, x: Tensor, guide: Tensor | None = None) -> Tensor:
        """Attend: `(B, H, W, C)` → the same shape; the guide M is `(1|B, H, W, C)`."""
        b, h, w, c = x.shape
        mixture = self._mixture(x.reshape(b, h * w, c))
        v = self.to_v(x)
        tokens = v if guide is None else v * guide
        values = torch.baddbmm(
            self.proj.bias.to(tokens.dtype), tokens.reshape(b, h * w, c), mixture.to(tokens.dtype)
        )
        return values.view(b, h, w, c) + self.pos_emb(v)

    def _mixture(self, x: Tensor) -> Tensor:  # (B, N, C) → Aᵀ W_p (B, C, C)
        with torch.autocast(x.device.type, enabled=False):
            # XᵀX is a sum over all pixels, for which half precision has too few digits and too
            # small a range.
            precision = torch.promote_types(x.dtype, torch.float32)
            x = x.to(precision)
            moments = (x.mT @ x).unsqueeze(1)  # (B, 1, C, C)
            split = (self.heads, -1, x.shape[-1])
            w_q, w_k = (
                projection.weight.to(precision).view(split) for projection in (self.to_q, self.to_k)
            )
            k = w_k @ moments  # (B, heads, d, C)
            energy = k @ w_q.mT
            norm_k = _norm((k * w_k).sum(-1))
            norm_q = _norm(((w_q @ moments) * w_q).sum(-1))
            cosine = energy / (norm_k.unsqueeze(-1) * norm_q.unsqueeze(-2))
            attention = (cosine * self.rescale.to(precision)).softmax(-1)  # (B, heads, d, d)
            w_p = self.proj.weight.to(precision).t().reshape(self.heads, -1, x.shape[-1])
            return (attention.mT @ w_p).flatten(1, 2)


def _norm(square: Tensor) -> Tensor:
    # The lower limit of a norm is 1e-12, as in the published code. It also serves squares that
    # rounding has made negative.
    return square.clamp_min(1e-24).sqrt()


class MaskGuide(nn.Module):
    """The guide of the attention, computed from the camera's sheared masks.

        M = unshear((1 + sigmoid(depthwise(W₂u))) ⊙ u),   u = W₁ masks

    Source: Cai et al., "Mask-guided spectral-wise transformer", CVPR 2022, equations 1 to 3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(dim, dim, 1), nn.Conv2d(dim, dim, 1)
        self.depth_conv = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)

    def forward(self, masks: Tensor, channel_offsets: list[int], width: int) -> Tensor:
        """Return the guide `(B, H, W, C)` for masks `(B, C, H, W')`.

        Channel c of the masks begins at column `channel_offsets[c]`.
        """
        u = self.conv1(masks)
        u = torch.addcmul(u, u, torch.sigmoid(self.depth_conv(self.conv2(u))))
        parts, c = [], 0
        for offset, group in groupby(channel_offsets):
            count = len(list(group))
            parts.append(u[:, c : c + count, :, offset : offset + width])
            c += count
        return torch.cat(parts, 1).permute(0, 2, 3, 1)


def scaled_offsets(channels: int, step: int, level: int, max_offset: int) -> list[int]:
    """Return the first column of each channel after `level` halvings of sheared masks.

    Args:
        channels: number of channels at this level.
        step: dispersion, pixels per band; if it is negative, the last channel has offset 0.
        level: number of halvings of the masks.
        max_offset: number of columns by which the masks are wider than the image.
    """
    # A halving divides the step by 4: by 2 because the image shrinks, and by 2 because there are
    # twice as many channels. The quotient is rounded down, as in the published code. Offsets are
    # limited, because steps above the published 2 would lead outside of the masks.
    order = range(channels) if step >= 0 else range(channels - 1, -1, -1)
    return [min(abs(step) * i // 4**level, max_offset) for i in order]


class SpectralBlocks(nn.Module):
    """Attention between bands and a feed-forward network, in turn, each with a skip."""

    def __init__(self, dim: int, head: int, count: int, is_guided: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                (
                    SpectralAttention(dim, head, is_guided),
                    PreNorm(LayerNorm(dim), feed_forward(dim, 4, Conv)),
                )
            )
            for _ in range(count)
        )

    def forward(
        self, x: Tensor, masks: Tensor | None = None, step: int = 0, level: int = 0
    ) -> Tensor:
        """Map `(B, H, W, C)` to the same shape; `masks` are the sheared masks at this scale."""
        width = x.shape[2]
        for pair in self.blocks:
            attention, feed_forward_layer = cast("tuple[SpectralAttention, PreNorm]", pair)
            guide = None
            if masks is not None and attention.mm is not None:
                channel_offsets = scaled_offsets(x.shape[-1], step, level, masks.shape[-1] - width)
                guide = attention.mm(masks, channel_offsets, width)
            x = x + attention(x, guide)
            x = x + feed_forward_layer(x)
        return x


class SpectralUNet(UNet):
    """Base class of U-Nets of spectral attention.

    A subclass makes the layers by `make` and applies them by `pass_through`.
    """

    def make(self, dim: int, blocks: Sequence[int], is_guided: bool) -> None:
        """Make the layers.

        Args:
            dim: channels at full size; each halving doubles them.
            blocks: number of blocks at each scale, the smallest image last.
            is_guided: whether masks guide the attention.
        """
        levels = len(blocks) - 1
        counts = {f"blocks_{i}": n for i, n in enumerate(blocks)}
        check_counts(type(self).__name__, dim=dim, levels=levels, **counts)

        def make_blocks(level: int) -> SpectralBlocks:
            return SpectralBlocks(dim << level, dim, blocks[level], is_guided)

        self.build(dim, levels, make_blocks, fuse=Conv, n_downsamplings=1 + is_guided)


@register_model("mst_s", blocks=(2, 2, 2))
@register_model("mst_m", blocks=(2, 4, 4))
@register_model("mst_l", blocks=(4, 7, 5))
class MST(Network, SpectralUNet):
    """MST, the mask-guided spectral-wise transformer; weights have their published names.

    The published network is for a step of 2. For other steps and directions, the masks are shifted
    as the camera shifts its bands. If each sample has its own mask, that mask guides the sample.

    Args:
        bands: number C of bands, and channels at full size.
        blocks: number of blocks at each scale, the smallest image last.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "Mask-guided spectral-wise transformer for efficient hyperspectral image
    reconstruction", CVPR 2022.
    """

    def __init__(self, bands: int = 28, blocks: Sequence[int] = (2, 2, 2)) -> None:
        super().__init__(bands)
        self.make(bands, blocks, is_guided=True)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        multiple = 2 ** len(self.encoder_layers)
        x = pad_to_multiple(initial_cube(y, system), multiple, "reflect")
        masks, shifts = (
            pad_to_multiple(band_masks(y, system), multiple, "reflect"),
            column_offsets(system),
        )
        masks = shear_bands(masks, shifts, max(shifts)).contiguous(
            memory_format=torch.channels_last
        )

        def block_inputs(masks: Tensor) -> Iterator[tuple[Tensor, int, int]]:
            yield masks, system.step, 0
            for level, layers in enumerate(self.encoder_layers, 1):
                masks = apply_channels_last(cast(nn.ModuleList, layers)[2], masks)
                yield masks, system.step, level

        x = x.permute(0, 2, 3, 1)
        leaky = partial(F.leaky_relu, negative_slope=0.1)
        x = self.pass_through(x, block_inputs(masks), leaky) + x
        return x[:, :height, :width].permute(0, 3, 1, 2)


class UnguidedUNet(SpectralUNet):
    """A U-Net of spectral attention without a mask; its output is added to its input."""

    def __init__(self, dim: int, blocks: Sequence[int]) -> None:
        super().__init__()
        self.make(dim, blocks, is_guided=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same shape."""
        return self.pass_through(x) + x


class StageSequence(Network):
    """A 1×1 convolution that fuses measurement and mask, then U-Nets, one after another.

    Args:
        bands: number C of bands.
        stages: number of U-Nets.
        make: function that makes one U-Net.
        multiple: H and W of the images that a U-Net takes are multiples of it.
    """

    def __init__(
        self, bands: int, stages: int, make: Callable[[], nn.Module], multiple: int
    ) -> None:
        super().__init__(bands)
        check_counts(type(self).__name__, stages=stages)
        self.multiple = multiple
        self.conv_in = Conv(bands, bands, 3)
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.body = nn.Sequential(*(make() for _ in range(stages)))
        self.conv_out = Conv(bands, bands, 3)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = system.mask.shape[-2:]
        masks = band_masks(y, system).expand(y.shape[0], -1, -1, -1)
        x = self.fution(torch.cat((initial_cube(y, system), masks), 1))
        x = self.conv_in(pad_to_multiple(x, self.multiple, "reflect").permute(0, 2, 3, 1))
        return (self.conv_out(self.body(x)) + x)[:, :height, :width].permute(0, 3, 1, 2)


@register_model("mst_plus_plus")
class MSTPlusPlus(StageSequence):
    """MST++ for snapshots; weights have their published names.

    The mask is used only once: a 1×1 convolution fuses it with the measurement. The result of the
    first 3×3 convolution is added to the output.

    Args:
        bands: number C of bands, and channels at full size.
        stages: number of U-Nets, one after another.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "MST++: multi-stage spectral-wise transformer for efficient spectral
    reconstruction", CVPR workshops 2022; for snapshots in the authors' toolbox.
    """

    def __init__(self, bands: int = 28, stages: int = 3) -> None:
        super().__init__(bands, stages, lambda: UnguidedUNet(bands, (1, 1, 1)), 8)
        init_truncated_normal(self, nn.Linear)
