"""DPU: an unrolled network with a prior of the image and one of the degradation."""

from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, in_windows
from cassi.models.grid import Camera, band_masks, initial_cube, windows
from cassi.models.layers import (
    CONV3,
    HALVE,
    Double,
    InstanceNorm,
    LayerNorm,
    Point,
    draw_narrow,
    pad_to_multiple,
    pool_rectified,
    pooled_mlp,
    spread,
    u_net,
)
from cassi.models.network import Staged
from cassi.models.registry import register_model
from cassi.solvers import HQS
from cassi.solvers.base import State


class Filter(nn.Module):
    """Attention between pixels, zero where a score is not above the threshold of its window.

        S = qkᵀ,   S' = S ⊙ (w_q q + b_q)(w_k k + b_k)ᵀ,   A = softmax(S') ⊙ [S' > θ]

    θ comes from two small networks that see S without its diagonal. No gradient reaches them, in
    the published code neither: they keep what they are loaded with.

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
        """Weigh: queries and keys `(n, tokens, dim)` → `(n, tokens, tokens)`."""
        theta = self._threshold(q.detach(), k.detach())
        q = q * F.linear(q, self.pc_proj_q.weight, self.bias_pc_proj_q)
        k = k * F.linear(k, self.pc_proj_k.weight, self.bias_pc_proj_k)
        scores = q @ k.mT
        return scores.softmax(-1) * (scores > theta)

    @torch.no_grad()
    def _threshold(self, q: Tensor, k: Tensor) -> Tensor:  # (n, 1, 1)
        # Row i of (S − diag S) w is q_i·(Σ_j w_j k_j) − w_i q_i·k_i: S itself is not needed.
        weight = cast(nn.Linear, self.mlp1[0]).weight  # (1, tokens)
        rows = q @ (weight @ k).mT - weight.mT * (q * k).sum(-1, keepdim=True)
        return self.mlp2(rows.mT)


class FilteredAttention(nn.Module):
    """Attention within 8×8 windows by one `Filter`, which all heads of the values share.

    Queries and keys have `head` channels. Shifted windows are cut half a window further, around the
    borders.

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
        """Attend: `(B, H, W, c)` → the same, H and W multiples of 8."""
        return in_windows(self._attend, x, self.offset)

    def _attend(self, cut: Tensor) -> Tensor:
        windows = cut.flatten(0, 1)
        q, k = (F.linear(windows, weight) for weight in self.to_qk.weight.chunk(2))
        return self.to_out(self.cal_atten(q, k) @ self.to_v(windows)).view(cut.shape)


class ParallelMaps(nn.Module):
    """Some maps of the channels side by side, each with a weight per channel before and after.

        Σ_m b_m ⊙ gelu(W_m gelu(a_m ⊙ x))

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, maps: int = 4) -> None:
        super().__init__()
        inner = dim * maps
        self.pwconv1 = nn.Sequential(nn.Conv2d(dim, inner, 1, groups=dim, bias=False), nn.GELU())
        self.groupconv = nn.Sequential(
            nn.Conv2d(inner, inner, 1, groups=maps, bias=False), nn.GELU()
        )
        self.pwconv2 = nn.Conv2d(inner, dim, 1, groups=dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        channels = x.shape[-1]
        before, between = (cast(Tensor, part[0].weight) for part in (self.pwconv1, self.groupconv))
        # The weights before and after are laid out (c, m), those between (m, c').
        firsts = before.view(channels, -1).to(x.dtype).unbind(1)
        lasts = self.pwconv2.weight.view(channels, -1).to(x.dtype).unbind(1)
        maps = between.view(-1, channels, channels).unbind()
        total = torch.zeros_like(x)
        for first, weight, last in zip(firsts, maps, lasts, strict=True):
            part = F.gelu(F.linear(F.gelu(x * first), weight))
            total = torch.addcmul(total, part, last)
        return total


class FilteredAttentionBlock(nn.Module):
    """x + positions(x), then x + attention(x), then x + maps(x), with norms before the last two."""

    def __init__(self, dim: int, head: int, shift: bool = False) -> None:
        super().__init__()
        self.pos_emb = spread(dim, 5)
        self.norm1, self.fa = LayerNorm(dim), FilteredAttention(dim, head, shift)
        self.norm2, self.mpmlp = LayerNorm(dim), ParallelMaps(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        x = x + self.pos_emb(x)
        x = x + self.fa(self.norm1(x))
        return x + self.mpmlp(self.norm2(x))


MULTIPLE = WINDOW * 4
"""The smallest of three resolutions is a quarter, cut into windows."""


class Blend(nn.Module):
    """What the networks of two images share: the weights with which these are added.

    The published layers see the channels of both interleaved: 0 of the first, 0 of the second, 1 of
    the first, …
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        weights = torch.cat((torch.ones(bands, 1, 1, 1), torch.zeros(bands, 1, 1, 1)), 1)
        self.shuffle_conv = nn.Parameter(weights)

    def blend(self, first: Tensor, second: Tensor) -> Tensor:
        """Add two images `(B, H, W, C)` with a weight per channel."""
        one, other = self.shuffle_conv[..., 0, 0].to(first.dtype).unbind(1)
        return first * one + second * other


class ImagePrior(Blend):
    """A U-Net of blocks with filtered attention, which sees two cubes and adds to their blend.

    Any height and width: reflected to a multiple of 32, and cropped.

    Source: Zhang et al., CVPR 2024, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        block = partial(FilteredAttentionBlock, head=bands)
        self.conv_in = CONV3(2 * bands, bands)
        self.down1, self.downsample1 = block(bands), HALVE(bands, 2 * bands)
        self.down2, self.downsample2 = block(2 * bands), HALVE(2 * bands, 4 * bands)
        self.bottleneck_local = block(2 * bands)
        self.bottleneck_swin = block(2 * bands, shift=True)
        self.upsample2, self.fusion2 = Double(4 * bands, 2 * bands), Point(4 * bands, 2 * bands)
        self.up2 = block(2 * bands, shift=True)
        self.upsample1, self.fusion1 = Double(2 * bands, bands), Point(2 * bands, bands)
        self.up1 = block(bands, shift=True)
        self.conv_out = CONV3(bands, bands)
        draw_narrow(self, nn.Linear)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Denoise: two cubes `(B, C, H, W)` → one."""
        height, width = first.shape[-2:]
        first, second = (
            pad_to_multiple(x, MULTIPLE, "mirror").permute(0, 2, 3, 1) for x in (first, second)
        )
        side_by_side = torch.cat((first, second), -1).permute(0, 3, 1, 2)
        weight = self.conv_in.weight.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        x = F.conv2d(side_by_side, weight, padding=1).permute(0, 2, 3, 1)
        encoder = (self.down1, self.downsample1), (self.down2, self.downsample2)
        decoder = (
            (self.upsample2, lambda x, skip: skip + self.fusion2(x, skip), self.up2),
            (self.upsample1, lambda x, skip: skip + self.fusion1(x, skip), self.up1),
        )
        restored = self.conv_out(u_net(x, encoder, self._bottom, decoder))
        result = restored + self.blend(first, second)
        return result[:, :height, :width].permute(0, 3, 1, 2)

    def _bottom(self, x: Tensor) -> Tensor:
        near, far = x.chunk(2, -1)
        near = self.bottleneck_local(near)
        return torch.cat((near, self.bottleneck_swin(far + near)), -1)


class DegradationPrior(nn.Module):
    """Estimate what the image prior has added, pixel by pixel, with weights made of the mask.

    Source: Zhang et al., CVPR 2024, section 3.2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.norm_n, self.norm_mask = LayerNorm(2 * bands), LayerNorm(2 * bands)
        self.fusion = nn.Sequential(Point(2 * bands, bands), nn.GELU())
        self.weight = nn.Sequential(Point(2 * bands, bands), nn.Sigmoid())
        self.out = nn.Sequential(Point(bands, bands))
        draw_narrow(self, nn.Conv2d)

    def forward(self, residual: Tensor, x: Tensor, optics: Tensor) -> Tensor:
        """Estimate `(B, C, H, W)` from residual and cube, shaped like it.

        `optics` are mask and light that reach each pixel of each band, `(1|B, H, W, 2C)`.
        """
        images = torch.cat((residual, x), 1).permute(0, 2, 3, 1)
        features = self.fusion(self.norm_n(images)) * self.weight(self.norm_mask(optics))
        return self.out(features).permute(0, 3, 1, 2)


class Fusion(Blend):
    """Two maps of the channels with instance norms, added to the blend of two cubes.

    Source: Zhang et al., CVPR 2024, figure 2.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(bands)
        self.out = nn.Sequential(
            *(Point(2 * bands, bands, bias=True), InstanceNorm(bands), nn.LeakyReLU(0.1)),
            *(Point(bands, bands, bias=True), InstanceNorm(bands), nn.LeakyReLU(0.1)),
        )
        for i in (0, 3):
            for parameter in (self.out[i].weight, self.out[i + 1].weight, self.out[i + 1].bias):
                nn.init.normal_(cast(Tensor, parameter), std=0.01)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Fuse: two cubes `(B, C, H, W)` → one."""
        first, second = first.permute(0, 2, 3, 1), second.permute(0, 2, 3, 1)
        point = cast(Point, self.out[0])
        weight = point.weight.flatten(1)
        features = F.linear(first, weight[:, ::2], point.bias)
        features = self.out[1:](features + F.linear(second, weight[:, 1::2]))
        return (self.blend(first, second) + features).permute(0, 3, 1, 2)


class PenaltyNet(nn.Module):
    """Estimate one positive number from a cube."""

    def __init__(self, bands: int, width: int = 32) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(bands, width, 1), nn.ReLU(inplace=True))
        self.mlp = pooled_mlp(width, 1, bias=True).append(nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, 1, 1, 1)` of cubes `(B, C, H, W)`."""
        # Not zero: it divides.
        return self.mlp(pool_rectified(cast(nn.Conv2d, self.conv[0]), x)) + 1e-6


@register_model("dpu_5stg", stages=5)
@register_model("dpu_9stg", stages=9)
class DPU(Staged):
    """Unrolled multiplier method with two priors: x = z − r, an image less its degradation.

        z ← Z_i(x + u + r, x),   r ← R_i(z' − u − x, x),   u = λ/μ_i
        x ← F_i(argmin_v ½‖Av − y‖² + μ_i/2‖v − (z − r − u)‖², z − r),   λ ← λ + μ_i(x − z + r)

    where z' is the z of the stage before and μ_i is estimated from x.

    Arguments and errors are those of `Unrolled`.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024; names
    of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 5, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.conv = Point(2 * bands, bands, bias=True)
        self.mu = nn.ModuleList(PenaltyNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            part(bands) for _ in range(stages) for part in (ImagePrior, DegradationPrior, Fusion)
        )

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        masks = band_masks(y, system)
        light = windows(system(torch.ones_like(masks)) * (2 / self.bands), system)
        mask, light = masks.permute(0, 2, 3, 1), light.permute(0, 2, 3, 1)
        optics = torch.cat((mask, light), -1)
        guess = initial_cube(y, system).permute(0, 2, 3, 1)
        x = self.conv(guess, mask).permute(0, 3, 1, 2)
        z, r, dual = x, torch.zeros_like(x), torch.zeros_like(x)
        for i, net in enumerate(self.mu):
            restore, degrade, fuse = self.net_stage[3 * i : 3 * i + 3]
            mu = net(x).to(x.dtype)
            u = dual / mu
            previous, z = z, self.compute(restore, x + u + r, x)
            r = self.compute(degrade, previous - u - x, x, optics)
            target = z - r

            def prior(v: Tensor, second: Tensor, part: nn.Module = fuse) -> Tensor:
                return self.compute(part, v, second)

            state = HQS().step(State(target - u), y, system, prior, target, mu[:, 0, 0, 0])
            x = state.x
            dual = dual + mu * (x - target)
            yield x
