"""SSR: an unrolled network that rectifies spectra and space."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, in_windows
from cassi.models.grid import Camera, band_masks, initial_cube
from cassi.models.layers import (
    Conv,
    Double,
    InstanceNorm,
    LayerNorm,
    Point,
    PreNorm,
    Residuals,
    draw_narrow,
    feed_forward,
    on_pixels,
    pad_to_multiple,
    padded,
    pool_rectified,
    pooled_mlp,
    spread,
    u_net,
)
from cassi.models.network import Staged
from cassi.models.registry import register_model
from cassi.solvers import GAP
from cassi.solvers.base import Prior

HALVINGS = 2
"""How often the image of a `RectifyingUNet` is halved."""


class WindowedChannelAttention(nn.Module):
    """Attention among the channels of each 8×8 window: softmax(qᵀk/√d) on v.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, scale: int) -> None:
        super().__init__()
        self.scale = scale**-0.5
        self.to_qkv, self.to_out = Point(dim, 3 * dim), Point(dim, dim, bias=True)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same, H and W multiples of 8."""
        return self.to_out(in_windows(self._attend, x))

    def _attend(self, cut: Tensor) -> Tensor:
        tokens = cut.flatten(0, 1)  # (n, pixels, c)
        q, k, v = (F.linear(tokens, weight) for weight in self.to_qkv.weight.flatten(1).chunk(3))
        scores = (q.mT * self.scale) @ k  # (n, c, c)
        return (v @ scores.softmax(-1).mT.to(v.dtype)).view(cut.shape)


class Modulation(nn.Module):
    """Values multiplied by a wide depthwise convolution: W_o(depthwise(W_a x) ⊙ W_v x) + b.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, kernel: int = 11) -> None:
        super().__init__()
        self.to_a = nn.Sequential(Point(dim, dim), spread(dim, kernel))
        self.to_v, self.to_out = Point(dim, dim), Point(dim, dim, bias=True)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        return self.to_out(self.to_a(x) * self.to_v(x))


class SpatialWeights(nn.Module):
    """One image of all channels, with weights per pixel and channel: W_o(σ(depthwise(u)) ⊙ e) + b.

    u = W x, and e = gelu(conv(u)) has one channel.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = Point(dim, dim)
        self.Estimator = nn.Sequential(Conv(dim, 1, 3), nn.GELU())
        self.SW = nn.Sequential(spread(dim), nn.Sigmoid())
        self.out = Point(dim, dim, bias=True)
        draw_narrow(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        u = self.conv(x)
        return self.out(self.SW(u) * self.Estimator(u))


def spatial_block(dim: int) -> Residuals:
    """Return x + modulation(x), then x + weights(x)."""
    return Residuals(
        CMB=PreNorm(LayerNorm(dim), Modulation(dim)),
        SAB=PreNorm(InstanceNorm(dim), SpatialWeights(dim)),
    )


class RectifyingUNet(nn.Module):
    """A U-Net of three resolutions with one block at each, twice but for the smallest.

    A subclass makes the layers by `build`, after what it puts before them, and applies them by
    `pass_through`.
    """

    def build(self, dim: int, outputs: int, block: Callable[[int], nn.Module]) -> None:
        """Make the layers of `dim` channels at full size, with a block of so many channels each."""
        self.down1 = block(dim)
        self.downsample1 = Conv(dim, 2 * dim, 4, 2)
        self.down2 = block(2 * dim)
        self.downsample2 = Conv(2 * dim, 4 * dim, 4, 2)
        self.bottleneck = block(4 * dim)
        self.upsample2, self.fusion2 = Double(4 * dim, 2 * dim), Point(4 * dim, 2 * dim)
        self.up2 = block(2 * dim)
        self.upsample1, self.fusion1 = Double(2 * dim, dim), Point(2 * dim, dim)
        self.up1 = block(dim)
        self.out = Conv(dim, outputs, 3)

    def pass_through(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, outputs)`, H and W multiples of 4."""
        encoder = (self.down1, self.downsample1), (self.down2, self.downsample2)
        second, first = (
            (self.upsample2, self.fusion2, self.up2),
            (self.upsample1, self.fusion1, self.up1),
        )
        return self.out(u_net(x, encoder, self.bottleneck, (second, first)))


MULTIPLE = WINDOW * 2**HALVINGS


class Block(nn.Module):
    """Positions, spectra, space."""

    def __init__(self, dim: int, bands: int) -> None:
        super().__init__()
        self.pos = spread(dim, 5, bias=True)
        self.SARB = Residuals(
            WSSA=PreNorm(LayerNorm(dim), WindowedChannelAttention(dim, bands)),
            FFN=PreNorm(InstanceNorm(dim), feed_forward(dim, 4)),
        )
        self.SRB = spatial_block(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        return self.SRB(self.SARB(x + self.pos(x)))


class MaskEmbedding(nn.Module):
    """conv(x) ⊙ (1 + conv(mask))."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.cnn, self.mask = Conv(bands, bands, 3), Conv(bands, bands, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Embed: cube `(B, H, W, C)`, mask `(1|B, H, W, C)` → `(B, H, W, C)`."""
        return self.cnn(x) * (1 + self.mask(mask))


class Rectifier(RectifyingUNet):
    """A U-Net of spectral and spatial blocks, told the mask.

    Any height and width: reflected to a multiple of 32, and cropped.

    Source: Zhang et al., CVPR 2024, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.mask_embedding = MaskEmbedding(bands)
        self.build(bands, bands, lambda dim: Block(dim, bands))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Denoise: cube `(B, C, H, W)`, mask `(1|B, C, H, W)` → cube."""
        optics = pad_to_multiple(mask, MULTIPLE, "mirror").permute(0, 2, 3, 1)
        return padded(lambda z: self.pass_through(self.mask_embedding(z, optics)), x, MULTIPLE)


class RelaxationNet(nn.Module):
    """Estimate numbers from a cube, one by default: how far to go towards the measurement."""

    def __init__(self, bands: int, outputs: int = 1, width: int = 32) -> None:
        super().__init__()
        self.fusion = nn.Conv2d(bands, width, 1)
        self.bias = nn.Parameter(torch.ones(1))
        self.mlp = pooled_mlp(width, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, outputs, 1, 1)` of cubes `(B, C, H, W)`."""
        return self.mlp(pool_rectified(self.fusion, x)) + self.bias


@register_model("ssr_s", stages=3)
@register_model("ssr_m", stages=6)
@register_model("ssr_l", stages=9)
class SSR(Staged):
    """Unrolled alternating projection, relaxed by ρ_i that is estimated from x.

        z = x + ρ_i Aᵀ(AAᵀ)⁺(y − Ax),   x ← S_i(R_i(z, mask))

    R_i is a U-Net of spectral and spatial blocks, S_i one more spatial block.

    Arguments and errors are those of `Unrolled`.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 3, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.initial = Point(2 * bands, bands, bias=True)
        self.rhos = nn.ModuleList(RelaxationNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            part(bands) for _ in range(stages) for part in (Rectifier, spatial_block)
        )

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        mask = band_masks(y, system).contiguous(memory_format=torch.channels_last)
        guess, pattern = (x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask))
        x = self.initial(guess, pattern).permute(0, 3, 1, 2)
        algorithm = GAP(accelerated=False)
        state = algorithm.init(y, system, x)
        for i, net in enumerate(self.rhos):
            rectify, refine = self.net_stage[2 * i : 2 * i + 2]
            prior = self._prior(state.x, rectify, refine, mask)
            state = algorithm.step(state, y, system, prior, net(state.x), 0.0)
            yield state.x

    def _prior(self, x: Tensor, rectify: nn.Module, refine: nn.Module, mask: Tensor) -> Prior:
        def apply(projected: Tensor, rho: Tensor) -> Tensor:
            wide = projected.dtype  # of the measurement, also under autocast
            z = torch.lerp(x.to(wide), projected, rho.to(wide))
            return self.compute(partial(on_pixels, refine), self.compute(rectify, z, mask))

        return apply
