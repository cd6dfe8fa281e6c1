"""BiSRNet: a U-Net whose activations and weights inside are signs."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.layers import Conv, LayerNorm, PreNorm, Residuals, UNet, in_order, on_images
from cassi.models.published.mst import StageRow
from cassi.models.registry import register_model


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return `value` with the gradient of `surrogate`."""
    # What is added is exactly zero: signs stay signs in training too.
    return value.detach() + (surrogate - surrogate.detach())


def as_rows(x: Tensor) -> Tensor:
    """View `(B, H, W, C)` as `(B·H, W·C)`.

    A number per channel then meets whole rows (`row`) and not C values at a time, which in bfloat16
    is 2 to 25 times as fast.
    """
    return x.flatten(2).flatten(0, 1)


def row(value: Tensor, x: Tensor) -> Tensor:
    """Repeat a number per channel for each column of x, in its dtype: `(W·C,)`."""
    return value.flatten().to(x.dtype).repeat(x.shape[-2])


class Redistribution(nn.Module):
    """Scale and shift of each channel before its sign is taken."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.k = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return k x + b."""
        return torch.addcmul(row(self.b, x), as_rows(x), row(self.k, x)).view(x.shape)


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


class BinaryWeights(Conv):
    """A convolution whose weights are signs times the mean magnitude of their filter.

    Their gradient is that of the weights clipped to [-1, 1].
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        signs = weight.detach().abs().mean((1, 2, 3), keepdim=True) * weight.sign()
        if torch.is_grad_enabled():
            signs = straight_through(signs, weight.clamp(-1, 1))
        return super()._conv_forward(x, signs, bias)


class Bias(nn.Module):
    """A number per channel."""

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
        """Map `(B, H, W, C)` to the same."""
        shifted = as_rows(x) + row(self.pr_bias0.bias, x)
        bent = F.prelu(shifted, row(self.pr_prelu.weight, x))
        return (bent + row(self.pr_bias1.bias, x)).view(x.shape)


class BinaryConv(nn.Module):
    """A binary convolution that keeps the number of channels, with a skip in full precision.

    Source: Cai et al., "Binarized spectral compressive imaging", NeurIPS 2023, section 3.2.
    """

    def __init__(self, channels: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.move0 = Redistribution(channels)
        self.binary_activation = Sign()
        self.binary_conv = BinaryWeights(channels, channels, kernel, groups=groups)
        self.relu = ShiftedPReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same."""
        return self.relu(self.binary_conv(self.binary_activation(self.move0(x)))) + x


class Widen(nn.Module):
    """Two binary convolutions of the same image, side by side: C → 2C channels."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.biconv_1 = BinaryConv(channels, kernel)
        self.biconv_2 = BinaryConv(channels, kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to `(B, H, W, 2C)`."""
        return torch.cat((self.biconv_1(x), self.biconv_2(x)), -1)


class Narrow(Widen):
    """The mean of two binary convolutions, each of one half: 2C → C channels."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Map `(B, H, W, 2C)`, or halves of it, to `(B, H, W, C)`."""
        first, second = x.chunk(2, -1) if other is None else (x, other)
        return (self.biconv_1(first) + self.biconv_2(second)) / 2


class Down(Widen):
    """Twice the channels on half the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to `(B, H/2, W/2, 2C)`."""
        return super().forward(on_images(partial(F.avg_pool2d, kernel_size=2), x))


class Up(Narrow):
    """Half the channels on twice the pixels."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Map `(B, H, W, 2C)` to `(B, 2H, 2W, C)`."""
        doubled = on_images(partial(F.interpolate, scale_factor=2, mode="bilinear"), x)
        return super().forward(doubled, other)


def binary_feed_forward(dim: int) -> nn.Sequential:
    """Return binary convolutions: C → 4C channels, a grouped 3×3 one, and back."""
    return nn.Sequential(
        Widen(dim, 1),
        Widen(2 * dim, 1),
        ShiftedPReLU(4 * dim),
        BinaryConv(4 * dim, 3, groups=dim),
        ShiftedPReLU(4 * dim),
        Narrow(2 * dim, 1),
        Narrow(dim, 1),
    )


class BinaryUNet(UNet):
    """A U-Net of binary convolutions; H and W are multiples of 2^levels."""

    def __init__(self, dim: int, blocks: Sequence[int]) -> None:
        super().__init__()
        *levels, last = [(dim << i, count) for i, count in enumerate(blocks)]

        def block(wide: int, count: int) -> nn.Sequential:
            feeds = (
                PreNorm(LayerNorm(wide), in_order(net=binary_feed_forward(wide)))
                for _ in range(count)
            )
            return in_order(blocks=Residuals(*feeds))

        self.embedding = BinaryConv(dim, 3)
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList((block(wide, count), Down(wide, 3))) for wide, count in levels
        )
        self.bottleneck = block(*last)
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList((Up(wide, 3), Narrow(wide, 1), block(wide, count)))
            for wide, count in reversed(levels)
        )
        self.mapping = BinaryConv(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same."""
        return self.pass_through(x) + x


@register_model("bisrnet")
class BiSRNet(StageRow):
    """The binarized network for snapshots, with the published names of weights.

    Signs are discontinuous: two computations that differ in the last digit may differ visibly in
    some per cent of the pixels.

    Args:
        bands: number C of bands, and channels at full size.
        stages: U-Nets in a row.
        blocks: how many at each scale, the smallest image last.

    Raises:
        ValueError: a count below 1.

    Source: Cai et al., "Binarized spectral compressive imaging", NeurIPS 2023.
    """

    def __init__(self, bands: int = 28, stages: int = 1, blocks: Sequence[int] = (1, 1, 1)) -> None:
        super().__init__(bands, stages, lambda: BinaryUNet(bands, blocks), 2 ** len(blocks))
