"""SSR: an unrolled network that rectifies spectra and space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, from_windows, to_windows
from cassi.models.grid import Camera, band_masks, initial_cube
from cassi.models.layers import (
    FeedForward,
    PreNorm,
    Residuals,
    convolve,
    draw_narrow,
    mix,
    pad_to_multiple,
    pool_rectified,
    pooled_mlp,
)
from cassi.models.network import Staged
from cassi.models.registry import register
from cassi.solvers import GAP

HALVINGS = 2
"""How often the image of a `RectifyingUNet` is halved."""


class WindowedChannelAttention(nn.Module):
    """Attention among the channels of each 8×8 window: softmax(qᵀk/√d) on v.

    Args:
        scale: d.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, scale: int) -> None:
        super().__init__()
        self.scale = scale**-0.5
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same, H and W multiples of 8."""
        height, width = x.shape[1:3]
        cut = to_windows(x)
        tokens = cut.flatten(0, 1)  # (n, pixels, c)
        q, k, v = (F.linear(tokens, weight) for weight in self.to_qkv.weight.flatten(1).chunk(3))
        scores = (q.mT * self.scale) @ k  # (n, c, c)
        out = v @ scores.softmax(-1).mT.to(v.dtype)
        return mix(self.to_out, from_windows(out.view(cut.shape), height, width))


class Modulation(nn.Module):
    """Values multiplied by a wide depthwise convolution: W_o(depthwise(W_a x) ⊙ W_v x) + b.

    Args:
        kernel: width of the convolution, odd.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, kernel: int = 11) -> None:
        super().__init__()
        self.to_a = nn.Sequential(
            nn.Conv2d(dim, dim, 1, bias=False),
            nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim, bias=False),
        )
        self.to_v = nn.Conv2d(dim, dim, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        point, spread = self.to_a
        return mix(self.to_out, convolve(spread, mix(point, x)) * mix(self.to_v, x))


class SpatialWeights(nn.Module):
    """One image of all channels, with weights per pixel and channel: W_o(σ(depthwise(u)) ⊙ e) + b.

    u = W x, and e = gelu(conv(u)) has one channel.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 1, bias=False)
        self.Estimator = nn.Sequential(nn.Conv2d(dim, 1, 3, padding=1, bias=False), nn.GELU())
        self.SW = nn.Sequential(
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False), nn.Sigmoid()
        )
        self.out = nn.Conv2d(dim, dim, 1)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        u = mix(self.conv, x)
        weights = torch.sigmoid(convolve(self.SW[0], u))
        return mix(self.out, weights * F.gelu(convolve(self.Estimator[0], u)))


class SpatialBlock(Residuals):
    """x + modulation(x), then x + weights(x)."""

    def __init__(self, dim: int) -> None:
        super().__init__(
            CMB=PreNorm(nn.LayerNorm(dim), Modulation(dim)),
            SAB=PreNorm(nn.GroupNorm(dim, dim), SpatialWeights(dim)),
        )


class RectifyingUNet(nn.Module):
    """A U-Net of three resolutions with one block at each, twice but for the smallest.

    A subclass makes the layers by `build`, after what it puts before them, and applies them by
    `pass_through`.
    """

    def build(self, dim: int, outputs: int, block: Callable[[int], nn.Module]) -> None:
        """Make the layers of `dim` channels at full size, with a block of so many channels each."""
        self.down1 = block(dim)
        self.downsample1 = nn.Conv2d(dim, 2 * dim, 4, 2, 1, bias=False)
        self.down2 = block(2 * dim)
        self.downsample2 = nn.Conv2d(2 * dim, 4 * dim, 4, 2, 1, bias=False)
        self.bottleneck = block(4 * dim)
        self.upsample2 = nn.ConvTranspose2d(4 * dim, 2 * dim, 2, 2)
        self.fusion2 = nn.Conv2d(4 * dim, 2 * dim, 1, bias=False)
        self.up2 = block(2 * dim)
        self.upsample1 = nn.ConvTranspose2d(2 * dim, dim, 2, 2)
        self.fusion1 = nn.Conv2d(2 * dim, dim, 1, bias=False)
        self.up1 = block(dim)
        self.out = nn.Conv2d(dim, outputs, 3, padding=1, bias=False)

    def pass_through(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, outputs)`, H and W multiples of 4."""
        fine = self.down1(x)
        middle = self.down2(convolve(self.downsample1, fine))
        coarse = self.bottleneck(convolve(self.downsample2, middle))
        x = self.up2(mix(self.fusion2, convolve(self.upsample2, coarse), middle))
        x = self.up1(mix(self.fusion1, convolve(self.upsample1, x), fine))
        return convolve(self.out, x)


MULTIPLE = WINDOW * 2**HALVINGS


class Block(nn.Module):
    """Positions, spectra, space."""

    def __init__(self, dim: int, bands: int) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.SARB = Residuals(
            WSSA=PreNorm(nn.LayerNorm(dim), WindowedChannelAttention(dim, bands)),
            FFN=PreNorm(nn.GroupNorm(dim, dim), FeedForward(dim, 4, mix)),
        )
        self.SRB = SpatialBlock(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        return cast(Tensor, self.SRB(self.SARB(x + convolve(self.pos, x))))


class MaskEmbedding(nn.Module):
    """conv(x) ⊙ (1 + conv(mask))."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.cnn = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.mask = nn.Conv2d(bands, bands, 3, padding=1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Embed: cube `(B, H, W, C)`, mask `(1|B, H, W, C)` → `(B, H, W, C)`."""
        return convolve(self.cnn, x) * (1 + convolve(self.mask, mask))


class Rectifier(RectifyingUNet):
    """A U-Net of spectral and spatial blocks, told the mask.

    Any height and width: reflected to a multiple of 32, and cropped.

    Args:
        bands: number C of bands, also the channels at full size.

    Source: Zhang et al., CVPR 2024, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.mask_embedding = MaskEmbedding(bands)
        self.build(bands, bands, lambda dim: Block(dim, bands))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Denoise: cube `(B, C, H, W)`, mask `(1|B, C, H, W)` → cube."""
        height, width = x.shape[-2:]
        x, mask = (pad_to_multiple(z, MULTIPLE, "mirror").permute(0, 2, 3, 1) for z in (x, mask))
        x = self.pass_through(self.mask_embedding(x, mask)) + x
        return x[:, :height, :width].permute(0, 3, 1, 2)


class SpatialRefinement(SpatialBlock):
    """A spatial block on cubes `(B, C, H, W)`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RelaxationNet(nn.Module):
    """Estimate numbers from a cube, one by default: how far to go towards the measurement."""

    def __init__(self, bands: int, outputs: int = 1, width: int = 32) -> None:
        super().__init__()
        self.fusion = nn.Conv2d(bands, width, 1)
        self.bias = nn.Parameter(torch.ones(1))
        self.mlp = pooled_mlp(width, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, outputs, 1, 1)` of cubes `(B, C, H, W)`."""
        return cast(Tensor, self.mlp(pool_rectified(self.fusion, x))) + self.bias


@register("ssr_s", stages=3)
@register("ssr_m", stages=6)
@register("ssr_l", stages=9)
class SSR(Staged):
    """Unrolled alternating projection, relaxed by ρ_i that is estimated from x.

        z = x + ρ_i Aᵀ(AAᵀ)⁺(y − Ax),   x ← S_i(R_i(z, mask))

    R_i is a U-Net of spectral and spatial blocks, S_i one more spatial block.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 3, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.initial = nn.Conv2d(2 * bands, bands, 1)
        self.rhos = nn.ModuleList(RelaxationNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            part(bands) for _ in range(stages) for part in (Rectifier, SpatialRefinement)
        )

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        mask = band_masks(y, system).contiguous(memory_format=torch.channels_last)
        guess, pattern = (x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask))
        x = mix(self.initial, guess, pattern).permute(0, 3, 1, 2)
        algorithm = GAP(accelerated=False)
        state = algorithm.init(y, system, x)
        for i, net in enumerate(self.rhos):
            rectify, refine = self.net_stage[2 * i : 2 * i + 2]
            prior = self._prior(state.x, rectify, refine, mask)
            state = algorithm.step(state, y, system, prior, net(state.x), 0.0)
            yield state.x

    def _prior(self, x: Tensor, rectify: nn.Module, refine: nn.Module, mask: Tensor) -> Any:
        def apply(projected: Tensor, rho: Tensor) -> Tensor:
            wide = projected.dtype  # of the measurement, also under autocast
            z = torch.lerp(x.to(wide), projected, rho.to(wide))
            return self.compute(refine, self.compute(rectify, z, mask))

        return apply
