"""SSR: unrolled projections whose denoisers have spectral and spatial blocks.

Some layers keep the authors' names, because the published weights have them: `SARB` is the
spectral block, `SRB` the spatial block, `CMB` the modulation in the spatial block, and `SW` makes
the weights of `SpatialWeights`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, apply_in_windows
from cassi.models.camera_adapters import NetworkCamera, band_masks, initial_cube
from cassi.models.layers import (
    Conv,
    InstanceNorm,
    LayerNorm,
    PointwiseConv,
    PreNorm,
    ResidualSequence,
    TransposedConv,
    apply_channels_last,
    apply_padded,
    depthwise_conv,
    feed_forward,
    init_truncated_normal,
    pad_to_multiple,
    pool_rectified,
    pooled_mlp,
    u_net,
)
from cassi.models.network import StagedNetwork
from cassi.models.registry import register_model
from cassi.solvers import GAP
from cassi.solvers.base import Prior

# Number of halvings of the image in a `RectifyingUNet`.
HALVINGS = 2


class WindowedChannelAttention(nn.Module):
    """Attention among the channels of each 8×8 window, with weights softmax(qᵀk/√scale).

    As in the published code, `scale` is the number of bands, also if there are more channels.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, scale: int) -> None:
        super().__init__()
        self.scale = scale**-0.5
        self.to_qkv, self.to_out = PointwiseConv(dim, 3 * dim), PointwiseConv(dim, dim, bias=True)
        init_truncated_normal(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same shape, H and W multiples of 8."""
        return self.to_out(apply_in_windows(self._attend, x))

    def _attend(self, windows: Tensor) -> Tensor:
        tokens = windows.flatten(0, 1)  # (n, pixels, c)
        q, k, v = (F.linear(tokens, weight) for weight in self.to_qkv.weight.flatten(1).chunk(3))
        scores = (q.mT * self.scale) @ k  # (n, c, c)
        return (v @ scores.softmax(-1).mT.to(v.dtype)).view(windows.shape)


class Modulation(nn.Module):
    """W_o(depthwise(W_a x) ⊙ W_v x) + b, with a depthwise convolution of 11×11 pixels.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int, kernel: int = 11) -> None:
        super().__init__()
        self.to_a = nn.Sequential(PointwiseConv(dim, dim), depthwise_conv(dim, kernel))
        self.to_v, self.to_out = PointwiseConv(dim, dim), PointwiseConv(dim, dim, bias=True)
        init_truncated_normal(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        return self.to_out(self.to_a(x) * self.to_v(x))


class SpatialWeights(nn.Module):
    """W_o(sigmoid(depthwise(u)) ⊙ e) + b, where u = W x and e = gelu(conv(u)).

    e has one channel. It is multiplied by a weight for each pixel and channel.

    Source: Zhang et al., "Improving spectral snapshot reconstruction", CVPR 2024, section 3.3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = PointwiseConv(dim, dim)
        self.Estimator = nn.Sequential(Conv(dim, 1, 3), nn.GELU())
        self.SW = nn.Sequential(depthwise_conv(dim), nn.Sigmoid())
        self.out = PointwiseConv(dim, dim, bias=True)
        init_truncated_normal(self, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        u = self.conv(x)
        return self.out(self.SW(u) * self.Estimator(u))


def spatial_block(dim: int) -> ResidualSequence:
    """Return x + modulation(x), then x + weights(x)."""
    return ResidualSequence(
        CMB=PreNorm(LayerNorm(dim), Modulation(dim)),
        SAB=PreNorm(InstanceNorm(dim), SpatialWeights(dim)),
    )


class RectifyingUNet(nn.Module):
    """Base class of U-Nets of three resolutions.

    The encoder and the decoder have a block at each of the two higher resolutions. One block at the
    lowest resolution is between them. A subclass first makes its own input layers. Then it makes
    the layers of this class by `build`, and applies them by `pass_through`.
    """

    def build(self, dim: int, outputs: int, block: Callable[[int], nn.Module]) -> None:
        """Make the layers.

        Args:
            dim: channels at full size; each halving doubles them.
            outputs: channels of the result.
            block: makes a block from its number of channels.
        """
        self.down1 = block(dim)
        self.downsample1 = Conv(dim, 2 * dim, 4, 2)
        self.down2 = block(2 * dim)
        self.downsample2 = Conv(2 * dim, 4 * dim, 4, 2)
        self.bottleneck = block(4 * dim)
        self.upsample2, self.fusion2 = (
            TransposedConv(4 * dim, 2 * dim),
            PointwiseConv(4 * dim, 2 * dim),
        )
        self.up2 = block(2 * dim)
        self.upsample1, self.fusion1 = TransposedConv(2 * dim, dim), PointwiseConv(2 * dim, dim)
        self.up1 = block(dim)
        self.out = Conv(dim, outputs, 3)

    def pass_through(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H, W, outputs)`, H and W multiples of 4."""
        encoder = (self.down1, self.downsample1), (self.down2, self.downsample2)
        coarse_decoder, fine_decoder = (
            (self.upsample2, self.fusion2, self.up2),
            (self.upsample1, self.fusion1, self.up1),
        )
        return self.out(u_net(x, encoder, self.bottleneck, (coarse_decoder, fine_decoder)))


# H and W are padded to multiples of this. Then the lowest resolution has whole windows.
MULTIPLE = WINDOW * 2**HALVINGS


class SpectralSpatialBlock(nn.Module):
    """A convolution that encodes positions, then a spectral block, then a spatial block."""

    def __init__(self, dim: int, bands: int) -> None:
        super().__init__()
        self.pos = depthwise_conv(dim, 5, bias=True)
        self.SARB = ResidualSequence(
            WSSA=PreNorm(LayerNorm(dim), WindowedChannelAttention(dim, bands)),
            FFN=PreNorm(InstanceNorm(dim), feed_forward(dim, 4)),
        )
        self.SRB = spatial_block(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape, H and W multiples of 8."""
        return self.SRB(self.SARB(x + self.pos(x)))


class MaskEmbedding(nn.Module):
    """conv(x) ⊙ (1 + conv(mask))."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.cnn, self.mask = Conv(bands, bands, 3), Conv(bands, bands, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map a cube `(B, H, W, C)` and a mask `(1|B, H, W, C)` to `(B, H, W, C)`."""
        return self.cnn(x) * (1 + self.mask(mask))


class Rectifier(RectifyingUNet):
    """A U-Net of spectral and spatial blocks that also gets the mask.

    Height and width are free: images are mirrored to a multiple of 32, and the result is cropped.

    Source: Zhang et al., CVPR 2024, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.mask_embedding = MaskEmbedding(bands)
        self.build(bands, bands, lambda dim: SpectralSpatialBlock(dim, bands))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; the mask is `(1|B, C, H, W)`."""
        padded_mask = pad_to_multiple(mask, MULTIPLE, "mirror").permute(0, 2, 3, 1)
        return apply_padded(
            lambda z: self.pass_through(self.mask_embedding(z, padded_mask)), x, MULTIPLE
        )


class RelaxationNet(nn.Module):
    """Estimate `outputs` numbers from a cube. SSR uses one, the relaxation ρ of the data step."""

    def __init__(self, bands: int, outputs: int = 1, width: int = 32) -> None:
        super().__init__()
        self.fusion = nn.Conv2d(bands, width, 1)
        self.bias = nn.Parameter(torch.ones(1))
        self.mlp = pooled_mlp(width, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, outputs, 1, 1)` for cubes `(B, C, H, W)`."""
        return self.mlp(pool_rectified(self.fusion, x)) + self.bias


@register_model("ssr_s", stages=3)
@register_model("ssr_m", stages=6)
@register_model("ssr_l", stages=9)
class SSR(StagedNetwork):
    """Unrolled alternating projection with a relaxation ρ_i that is estimated from x.

        z = x + ρ_i Aᵀ(AAᵀ)⁺(y − Ax),   x ← S_i(R_i(z, mask))

    R_i is a `Rectifier`, a U-Net of spectral and spatial blocks. S_i is one more spatial block.

    Arguments and errors are those of `UnrolledNetwork`.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 3, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.initial = PointwiseConv(2 * bands, bands, bias=True)
        self.rhos = nn.ModuleList(RelaxationNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            make(bands) for _ in range(stages) for make in (Rectifier, spatial_block)
        )

    def iterates(self, y: Tensor, system: NetworkCamera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage; y is `(B, 1, H, W')`."""
        mask = band_masks(y, system).contiguous(memory_format=torch.channels_last)
        initial, channels_last_mask = (
            x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask)
        )
        x = self.initial(initial, channels_last_mask).permute(0, 3, 1, 2)
        algorithm = GAP(accelerated=False)
        state = algorithm.init(y, system, x)
        for i, relaxation_net in enumerate(self.rhos):
            rectify, refine = self.net_stage[2 * i : 2 * i + 2]
            prior = self._make_prior(state.x, rectify, refine, mask)
            # The prior gets the relaxation in the place of σ.
            state = algorithm.step(state, y, system, prior, relaxation_net(state.x), 0.0)
            yield state.x

    def _make_prior(self, x: Tensor, rectify: nn.Module, refine: nn.Module, mask: Tensor) -> Prior:
        def relax_and_denoise(projection: Tensor, rho: Tensor) -> Tensor:
            # The relaxation is computed in the dtype of the measurement, because x and ρ have fewer
            # digits under autocast.
            precision = projection.dtype
            z = torch.lerp(x.to(precision), projection, rho.to(precision))
            return self.compute(
                partial(apply_channels_last, refine), self.compute(rectify, z, mask)
            )

        return relax_and_denoise
