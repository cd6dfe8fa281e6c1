"""BiSRNet: a U-Net whose inner convolutions have binary activations and binary weights."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.layers import (
    Conv,
    LayerNorm,
    PreNorm,
    ResidualSequence,
    UNet,
    apply_channels_first,
    named_sequence,
)
from cassi.models.published.mst import StageSequence
from cassi.models.registry import register_model


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return `value` with the gradient of `surrogate`."""
    # The difference is exactly zero, so the values stay ±1 in training too.
    return value.detach() + (surrogate - surrogate.detach())


def flatten_rows(x: Tensor) -> Tensor:
    """View `(B, H, W, C)` as `(B·H, W·C)`."""
    # `repeat_per_column` repeats the C values of the channels along a row. So torch broadcasts
    # vectors of W·C values, not of C values. In bfloat16 this is 2 to 25 times as fast.
    return x.flatten(2).flatten(0, 1)


def repeat_per_column(value: Tensor, x: Tensor) -> Tensor:
    """Repeat C values for each column of x `(B, H, W, C)`: `(W·C,)`, in the dtype of x."""
    return value.flatten().to(x.dtype).repeat(x.shape[-2])


class Redistribution(nn.Module):
    """Scale and shift each channel, before the signs are taken."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.k = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return k x + b."""
        k, b = repeat_per_column(self.k, x), repeat_per_column(self.b, x)
        return torch.addcmul(b, flatten_rows(x), k).view(x.shape)


class Sign(nn.Module):
    """sign(x), with the gradient of tanh(βx)."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return -1, 0 or 1 at each pixel."""
        if not torch.is_grad_enabled():
            return x.sign()
        return straight_through(x.sign(), torch.tanh(x * self.beta))


class BinaryWeightConv(Conv):
    """A convolution whose weights are signs, times the mean magnitude of the weights of a filter.

    The gradient is that of a convolution with the weights clipped to [-1, 1].
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        binary_weight = weight.detach().abs().mean((1, 2, 3), keepdim=True) * weight.sign()
        if torch.is_grad_enabled():
            binary_weight = straight_through(binary_weight, weight.clamp(-1, 1))
        return super()._conv_forward(x, binary_weight, bias)


class Bias(nn.Module):
    """A bias per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))


class ShiftedPReLU(nn.Module):
    """A PReLU between two biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pr_bias0 = Bias(channels)
        self.pr_prelu = nn.PReLU(channels)
        self.pr_bias1 = Bias(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same shape."""
        pixels = flatten_rows(x) + repeat_per_column(self.pr_bias0.bias, x)
        pixels = F.prelu(pixels, repeat_per_column(self.pr_prelu.weight, x))
        return (pixels + repeat_per_column(self.pr_bias1.bias, x)).view(x.shape)


class BinaryConv(nn.Module):
    """A binary convolution that keeps the number of channels, with a skip in full precision.

    Source: Cai et al., "Binarized spectral compressive imaging", NeurIPS 2023, section 3.2.
    """

    def __init__(self, channels: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.move0 = Redistribution(channels)
        self.binary_activation = Sign()
        self.binary_conv = BinaryWeightConv(channels, channels, kernel, groups=groups)
        self.relu = ShiftedPReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same shape."""
        return self.relu(self.binary_conv(self.binary_activation(self.move0(x)))) + x


class BinaryExpansion(nn.Module):
    """Join the results of two binary convolutions of the same image: C → 2C channels."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.biconv_1 = BinaryConv(channels, kernel)
        self.biconv_2 = BinaryConv(channels, kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to `(B, H, W, 2C)`."""
        return torch.cat((self.biconv_1(x), self.biconv_2(x)), -1)


class BinaryReduction(BinaryExpansion):
    """Average two binary convolutions, each of one half of the channels: 2C → C channels."""

    def forward(self, x: Tensor, second_half: Tensor | None = None) -> Tensor:
        """Map `(B, H, W, 2C)`, or two halves `(B, H, W, C)`, to `(B, H, W, C)`."""
        first, second = x.chunk(2, -1) if second_half is None else (x, second_half)
        return (self.biconv_1(first) + self.biconv_2(second)) / 2


class BinaryDownsampling(BinaryExpansion):
    """Halve height and width, and double the channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to `(B, H/2, W/2, 2C)`."""
        return super().forward(apply_channels_first(partial(F.avg_pool2d, kernel_size=2), x))


class BinaryUpsampling(BinaryReduction):
    """Double height and width, and halve the channels."""

    def forward(self, x: Tensor, second_half: Tensor | None = None) -> Tensor:
        """Map `(B, H, W, 2C)` to `(B, 2H, 2W, C)`."""
        image = apply_channels_first(partial(F.interpolate, scale_factor=2, mode="bilinear"), x)
        return super().forward(image, second_half)


def binary_feed_forward(dim: int) -> nn.Sequential:
    """Return binary convolutions: 1×1 to 4C channels, a grouped 3×3, and 1×1 back to C channels."""
    return nn.Sequential(
        BinaryExpansion(dim, 1),
        BinaryExpansion(2 * dim, 1),
        ShiftedPReLU(4 * dim),
        BinaryConv(4 * dim, 3, groups=dim),
        ShiftedPReLU(4 * dim),
        BinaryReduction(2 * dim, 1),
        BinaryReduction(dim, 1),
    )


class BinaryUNet(UNet):
    """A U-Net of binary convolutions; H and W are multiples of 2^levels."""

    def __init__(self, dim: int, blocks: Sequence[int]) -> None:
        super().__init__()
        *levels, coarsest = [(dim << i, count) for i, count in enumerate(blocks)]

        def make_block(channels: int, count: int) -> nn.Sequential:
            feed_forwards = (
                PreNorm(LayerNorm(channels), named_sequence(net=binary_feed_forward(channels)))
                for _ in range(count)
            )
            return named_sequence(blocks=ResidualSequence(*feed_forwards))

        self.embedding = BinaryConv(dim, 3)
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList((make_block(channels, count), BinaryDownsampling(channels, 3)))
            for channels, count in levels
        )
        self.bottleneck = make_block(*coarsest)
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList(
                (
                    BinaryUpsampling(channels, 3),
                    BinaryReduction(channels, 1),
                    make_block(channels, count),
                )
            )
            for channels, count in reversed(levels)
        )
        self.mapping = BinaryConv(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same shape."""
        return self.pass_through(x) + x


@register_model("bisrnet")
class BiSRNet(StageSequence):
    """BiSRNet, the binarized network for snapshots; weights have their published names.

    The sign is discontinuous. So inputs that differ only in the last digit may give visibly
    different results at a few per cent of the pixels.

    Args:
        bands: number C of bands, and channels at full size.
        stages: number of U-Nets, one after another.
        blocks: number of blocks at each scale, the smallest image last.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "Binarized spectral compressive imaging", NeurIPS 2023.
    """

    def __init__(self, bands: int = 28, stages: int = 1, blocks: Sequence[int] = (1, 1, 1)) -> None:
        super().__init__(bands, stages, lambda: BinaryUNet(bands, blocks), 2 ** len(blocks))
