"""DPU: an unrolled network with one prior of the image and one of its degradation."""

from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, apply_in_windows
from cassi.models.camera_adapters import NetworkCamera, band_masks, band_windows, initial_cube
from cassi.models.layers import (
    HALVING_CONV,
    Conv3x3,
    InstanceNorm,
    LayerNorm,
    PointwiseConv,
    TransposedConv,
    depthwise_conv,
    init_truncated_normal,
    pad_to_multiple,
    pool_rectified,
    pooled_mlp,
    u_net,
)
from cassi.models.network import StagedNetwork
from cassi.models.registry import register_model
from cassi.solvers import HQS
from cassi.solvers.base import State


class Filter(nn.Module):
    """Attention weights between pixels; those with a score below a threshold become zero.

        S = qkᵀ,   S' = S ⊙ (w_q q + b_q)(w_k k + b_k)ᵀ,   A = softmax(S') ⊙ [S' > θ]

    Two small networks compute the threshold θ of each window from S without its diagonal. As in the
    published code, these networks get no gradient. So training does not change them.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.pc_proj_q = nn.Linear(dim, 1, bias=False)
        self.bias_pc_proj_q = nn.Parameter(torch.ones(1))
        self.pc_proj_k = nn.Linear(dim, 1, bias=False)
        self.bias_pc_proj_k = nn.Parameter(torch.ones(1))
        self.mlp1 = nn.Sequential(nn.Linear(tokens, 1, bias=False))
        self.mlp2 = nn.Sequential(
            nn.Linear(tokens, tokens, bias=False),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Linear(tokens, 1, bias=False),
        )
        self.mlp1.requires_grad_(False)
        self.mlp2.requires_grad_(False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Return A `(n, tokens, tokens)` for queries and keys `(n, tokens, dim)`."""
        theta = self._threshold(q.detach(), k.detach())
        q = q * F.linear(q, self.pc_proj_q.weight, self.bias_pc_proj_q)
        k = k * F.linear(k, self.pc_proj_k.weight, self.bias_pc_proj_k)
        scores = q @ k.mT
        return scores.softmax(-1) * (scores > theta)

    @torch.no_grad()
    def _threshold(self, q: Tensor, k: Tensor) -> Tensor:  # (n, 1, 1)
        # Row i of (S − diag S) w is q_i·(Σ_j w_j k_j) − w_i q_i·k_i, so S is not formed.
        weight = cast(nn.Linear, self.mlp1[0]).weight  # (1, tokens)
        rows = q @ (weight @ k).mT - weight.mT * (q * k).sum(-1, keepdim=True)
        return self.mlp2(rows.mT)


class FilteredAttention(nn.Module):
    """Attention within 8×8 windows, with the weights of one `Filter` for all channels of v.

    Queries and keys have `head` channels. If `shift`, the image is first rolled by half a window.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, head: int, shift: bool) -> None:
        super().__init__()
        self.offset = WINDOW // 2 if shift else 0
        self.cal_atten = Filter(head, WINDOW * WINDOW)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_qk = nn.Linear(dim, 2 * head, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same shape, H and W multiples of 8."""
        return apply_in_windows(self._attend, x, self.offset)

    def _attend(self, windows: Tensor) -> Tensor:
        tokens = windows.flatten(0, 1)
        q, k = (F.linear(tokens, weight) for weight in self.to_qk.weight.chunk(2))
        return self.to_out(self.cal_atten(q, k) @ self.to_v(tokens)).view(windows.shape)


class ParallelMaps(nn.Module):
    """A sum of linear maps of the channels, each between two weights per channel.

        Σ_m b_m ⊙ gelu(W_m gelu(a_m ⊙ x))

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, maps: int = 4) -> None:
        super().__init__()
        width = dim * maps
        self.pwconv1 = nn.Sequential(nn.Conv2d(dim, width, 1, groups=dim, bias=False), nn.GELU())
        self.groupconv = nn.Sequential(
            nn.Conv2d(width, width, 1, groups=maps, bias=False), nn.GELU()
        )
        self.pwconv2 = nn.Conv2d(width, dim, 1, groups=dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        channels = x.shape[-1]
        input_scales, channel_maps = (
            cast(Tensor, branch[0].weight) for branch in (self.pwconv1, self.groupconv)
        )
        # The published weights a and b are stored as (c, m), the matrices W as (m·c', c).
        input_weights = input_scales.view(channels, -1).to(x.dtype).unbind(1)
        output_weights = self.pwconv2.weight.view(channels, -1).to(x.dtype).unbind(1)
        maps = channel_maps.view(-1, channels, channels).unbind()
        total = torch.zeros_like(x)
        for input_weight, weight, output_weight in zip(
            input_weights, maps, output_weights, strict=True
        ):
            branch = F.gelu(F.linear(F.gelu(x * input_weight), weight))
            total = torch.addcmul(total, branch, output_weight)
        return total


class FilteredAttentionBlock(nn.Module):
    """x + positions(x), then x + attention(norm(x)), then x + maps(norm(x))."""

    def __init__(self, dim: int, head: int, shift: bool = False) -> None:
        super().__init__()
        self.pos_emb = depthwise_conv(dim, 5)
        self.norm1, self.fa = LayerNorm(dim), FilteredAttention(dim, head, shift)
        self.norm2, self.mpmlp = LayerNorm(dim), ParallelMaps(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape, H and W multiples of 8."""
        x = x + self.pos_emb(x)
        x = x + self.fa(self.norm1(x))
        return x + self.mpmlp(self.norm2(x))


# H and W are padded to multiples of this. Then the coarsest scale, a quarter of H and W, has whole
# windows.
MULTIPLE = WINDOW * 4


class Blend(nn.Module):
    """Base class of networks that take two images; `blend` adds them with a weight per channel.

    The published layers take the channels of both images interleaved: channel 0 of the first,
    channel 0 of the second, channel 1 of the first, …
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        weights = torch.cat((torch.ones(bands, 1, 1, 1), torch.zeros(bands, 1, 1, 1)), 1)
        self.shuffle_conv = nn.Parameter(weights)

    def blend(self, first: Tensor, second: Tensor) -> Tensor:
        """Add two images `(B, H, W, C)` with a weight per channel."""
        first_weight, second_weight = self.shuffle_conv[..., 0, 0].to(first.dtype).unbind(1)
        return first * first_weight + second * second_weight


class ImagePrior(Blend):
    """A U-Net of two cubes with filtered attention; its output is added to their blend.

    Height and width are free: images are mirrored to a multiple of 32, and the result is cropped.

    Source: Zhang et al., CVPR 2024, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        block = partial(FilteredAttentionBlock, head=bands)
        self.conv_in = Conv3x3(2 * bands, bands)
        self.down1, self.downsample1 = block(bands), HALVING_CONV(bands, 2 * bands)
        self.down2, self.downsample2 = block(2 * bands), HALVING_CONV(2 * bands, 4 * bands)
        self.bottleneck_local = block(2 * bands)
        self.bottleneck_swin = block(2 * bands, shift=True)
        self.upsample2, self.fusion2 = (
            TransposedConv(4 * bands, 2 * bands),
            PointwiseConv(4 * bands, 2 * bands),
        )
        self.up2 = block(2 * bands, shift=True)
        self.upsample1, self.fusion1 = (
            TransposedConv(2 * bands, bands),
            PointwiseConv(2 * bands, bands),
        )
        self.up1 = block(bands, shift=True)
        self.conv_out = Conv3x3(bands, bands)
        init_truncated_normal(self, nn.Linear)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Denoise: two cubes `(B, C, H, W)` → one."""
        height, width = first.shape[-2:]
        first, second = (
            pad_to_multiple(x, MULTIPLE, "mirror").permute(0, 2, 3, 1) for x in (first, second)
        )
        cubes = torch.cat((first, second), -1).permute(0, 3, 1, 2)
        # Reorder the weights, not the channels of the images, from interleaved to joined.
        weight = self.conv_in.weight.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        x = F.conv2d(cubes, weight, padding=1).permute(0, 2, 3, 1)
        encoder = (self.down1, self.downsample1), (self.down2, self.downsample2)
        decoder = (
            (self.upsample2, lambda x, skip: skip + self.fusion2(x, skip), self.up2),
            (self.upsample1, lambda x, skip: skip + self.fusion1(x, skip), self.up1),
        )
        correction = self.conv_out(u_net(x, encoder, self._bottom, decoder))
        result = correction + self.blend(first, second)
        return result[:, :height, :width].permute(0, 3, 1, 2)

    def _bottom(self, x: Tensor) -> Tensor:
        # One half of the channels attends within windows, the other half within shifted windows.
        # The result of the first half is added to the second half, so that information passes
        # between windows.
        window_half, shifted_half = x.chunk(2, -1)
        window_half = self.bottleneck_local(window_half)
        return torch.cat((window_half, self.bottleneck_swin(shifted_half + window_half)), -1)


class DegradationPrior(nn.Module):
    """Estimate the degradation r from residual and cube; the masks weight the features.

    Source: Zhang et al., CVPR 2024, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.norm_n, self.norm_mask = LayerNorm(2 * bands), LayerNorm(2 * bands)
        self.fusion = nn.Sequential(PointwiseConv(2 * bands, bands), nn.GELU())
        self.weight = nn.Sequential(PointwiseConv(2 * bands, bands), nn.Sigmoid())
        self.out = nn.Sequential(PointwiseConv(bands, bands))
        init_truncated_normal(self, nn.Conv2d)

    def forward(self, residual: Tensor, x: Tensor, mask_images: Tensor) -> Tensor:
        """Estimate r `(B, C, H, W)` from a residual and a cube of the same shape.

        `mask_images` is `(1|B, H, W, 2C)`. The first C channels are the masks of the bands. The
        other C hold 2/C times the sum of all sheared masks, in the detector window of each band.
        """
        images = torch.cat((residual, x), 1).permute(0, 2, 3, 1)
        features = self.fusion(self.norm_n(images)) * self.weight(self.norm_mask(mask_images))
        return self.out(features).permute(0, 3, 1, 2)


class Fusion(Blend):
    """Two 1×1 convolutions with instance norms, added to the blend of two cubes.

    Source: Zhang et al., CVPR 2024, figure 2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.out = nn.Sequential(
            PointwiseConv(2 * bands, bands, bias=True),
            InstanceNorm(bands),
            nn.LeakyReLU(0.1),
            PointwiseConv(bands, bands, bias=True),
            InstanceNorm(bands),
            nn.LeakyReLU(0.1),
        )
        for i in (0, 3):
            for parameter in (self.out[i].weight, self.out[i + 1].weight, self.out[i + 1].bias):
                nn.init.normal_(cast(Tensor, parameter), std=0.01)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Fuse: two cubes `(B, C, H, W)` → one."""
        first, second = first.permute(0, 2, 3, 1), second.permute(0, 2, 3, 1)
        # Weights with even indices are for the first image, those with odd indices for the second
        # one. Two products make it unnecessary to interleave the channels of the images.
        pointwise = cast(PointwiseConv, self.out[0])
        weight = pointwise.weight.flatten(1)
        features = F.linear(first, weight[:, ::2], pointwise.bias)
        features = self.out[1:](features + F.linear(second, weight[:, 1::2]))
        return (self.blend(first, second) + features).permute(0, 3, 1, 2)


class PenaltyNet(nn.Module):
    """Estimate the penalty μ of a stage, a positive number, from a cube."""

    def __init__(self, bands: int, width: int = 32) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(bands, width, 1), nn.ReLU(inplace=True))
        self.mlp = pooled_mlp(width, 1, bias=True).append(nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        """Return μ `(B, 1, 1, 1)` for cubes `(B, C, H, W)`."""
        # μ must not be zero, because the multiplier is divided by it.
        return self.mlp(pool_rectified(cast(nn.Conv2d, self.conv[0]), x)) + 1e-6


@register_model("dpu_5stg", stages=5)
@register_model("dpu_9stg", stages=9)
class DPU(StagedNetwork):
    """Unrolled multiplier method with priors of an image z and its degradation r: x = z − r.

        z ← Z_i(x + u + r, x),   r ← R_i(z' − u − x, x),   u = λ/μ_i
        x ← F_i(argmin_v ½‖Av − y‖² + μ_i/2‖v − (z − r − u)‖², z − r),   λ ← λ + μ_i(x − z + r)

    z' is the z of the stage before. μ_i is estimated from x. Z_i is an `ImagePrior`, R_i a
    `DegradationPrior`, and F_i a `Fusion`.

    Arguments and errors are those of `UnrolledNetwork`.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024; names
    of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 5, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.conv = PointwiseConv(2 * bands, bands, bias=True)
        self.mu = nn.ModuleList(PenaltyNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            kind(bands) for _ in range(stages) for kind in (ImagePrior, DegradationPrior, Fusion)
        )

    def iterates(self, y: Tensor, system: NetworkCamera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage; y is `(B, 1, H, W')`."""
        masks = band_masks(y, system)
        mask_sum = band_windows(system(torch.ones_like(masks)) * (2 / self.bands), system)
        mask, mask_sum = masks.permute(0, 2, 3, 1), mask_sum.permute(0, 2, 3, 1)
        mask_images = torch.cat((mask, mask_sum), -1)
        initial = initial_cube(y, system).permute(0, 2, 3, 1)
        x = self.conv(initial, mask).permute(0, 3, 1, 2)
        z, r, dual = x, torch.zeros_like(x), torch.zeros_like(x)
        for i, penalty_net in enumerate(self.mu):
            restore, degrade, fuse = self.net_stage[3 * i : 3 * i + 3]
            mu = penalty_net(x).to(x.dtype)
            u = dual / mu
            previous, z = z, self.compute(restore, x + u + r, x)
            r = self.compute(degrade, previous - u - x, x, mask_images)
            target = z - r

            def prior(v: Tensor, second: Tensor, part: nn.Module = fuse) -> Tensor:
                return self.compute(part, v, second)

            state = HQS().step(State(target - u), y, system, prior, target, mu[:, 0, 0, 0])
            x = state.x
            dual = dual + mu * (x - target)
            yield x
