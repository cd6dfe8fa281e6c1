"""BiSRNet: a U-Net whose activations and weights inside are signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.layers import PreNorm, convolve
from cassi.models.published.mst import StageRow
from cassi.models.registry import register


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return `value` with the gradient of `surrogate`."""
    # What is added is exactly zero: signs stay signs in training too.
    return value.detach() + (surrogate - surrogate.detach())


def as_rows(x: Tensor) -> Tensor:
    """View `(B, C, H, W)`, laid out with channels innermost, as `(B·H, W·C)`.

    A number per channel then meets whole rows (`row`) and not C values at a time, which in bfloat16
    is 2 to 25 times as fast.
    """
    return x.permute(0, 2, 3, 1).flatten(2).flatten(0, 1)


def as_images(rows: Tensor, like: Tensor) -> Tensor:
    """Undo `as_rows`."""
    b, c, h, w = like.shape
    return rows.view(b, h, w, c).permute(0, 3, 1, 2)


def row(value: Tensor, x: Tensor) -> Tensor:
    """Repeat a number per channel for each column of x, in its dtype: `(W·C,)`."""
    return value.flatten().to(x.dtype).repeat(x.shape[-1])


class Redistribution(nn.Module):
    """Scale and shift of each channel before its sign is taken."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.k = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return k x + b."""
        return as_images(torch.addcmul(row(self.b, x), as_rows(x), row(self.k, x)), x)


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


class BinaryWeights(nn.Conv2d):
    """A convolution whose weights are signs times the mean magnitude of their filter.

    Their gradient is that of the weights clipped to [-1, 1].
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        scale = self.weight.detach().abs().mean((1, 2, 3), keepdim=True)
        weight = scale * self.weight.sign()
        if torch.is_grad_enabled():
            weight = straight_through(weight, self.weight.clamp(-1, 1))
        return self._conv_forward(x, weight, self.bias)


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
        """Map `(B, C, H, W)` to the same."""
        shifted = as_rows(x) + row(self.pr_bias0.bias, x)
        bent = F.prelu(shifted, row(self.pr_prelu.weight, x))
        return as_images(bent + row(self.pr_bias1.bias, x), x)


class BinaryConv(nn.Module):
    """A binary convolution that keeps the number of channels, with a skip in full precision.

    Source: Cai et al., "Binarized spectral compressive imaging", NeurIPS 2023, section 3.2.
    """

    def __init__(self, channels: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.move0 = Redistribution(channels)
        self.binary_activation = Sign()
        self.binary_conv = BinaryWeights(
            channels, channels, kernel, padding=kernel // 2, bias=False, groups=groups
        )
        self.relu = ShiftedPReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        signs = self.binary_activation(self.move0(x))
        return cast(Tensor, self.relu(self.binary_conv(signs))) + x


class Widen(nn.Module):
    """Two binary convolutions of the same image, side by side: C → 2C channels."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.biconv_1 = BinaryConv(channels, kernel)
        self.biconv_2 = BinaryConv(channels, kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, 2C, H, W)`."""
        return torch.cat((self.biconv_1(x), self.biconv_2(x)), 1)


class Narrow(Widen):
    """The mean of two binary convolutions, each of one half: 2C → C channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 2C, H, W)` to `(B, C, H, W)`."""
        first, second = x.chunk(2, 1)
        return (self.biconv_1(first) + self.biconv_2(second)) / 2


class Down(Widen):
    """Twice the channels on half the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, 2C, H/2, W/2)`."""
        return super().forward(F.avg_pool2d(x, 2))


class Up(Narrow):
    """Half the channels on twice the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 2C, H, W)` to `(B, C, 2H, 2W)`."""
        return super().forward(F.interpolate(x, scale_factor=2, mode="bilinear"))


class BinaryFeedForward(nn.Module):
    """C → 4C channels, a grouped 3×3 convolution, and back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            Widen(dim, 1),
            Widen(2 * dim, 1),
            ShiftedPReLU(4 * dim),
            BinaryConv(4 * dim, 3, groups=dim),
            ShiftedPReLU(4 * dim),
            Narrow(2 * dim, 1),
            Narrow(dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, C)` to the same."""
        return convolve(self.net, x)


class Blocks(nn.Module):
    """Feed-forward networks with skips."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            PreNorm(nn.LayerNorm(dim), BinaryFeedForward(dim)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        x = x.permute(0, 2, 3, 1)
        for feed in self.blocks:
            x = x + feed(x)
        return x.permute(0, 3, 1, 2)


class BinaryUNet(nn.Module):
    """A U-Net of binary convolutions; H and W are multiples of 2^levels."""

    def __init__(self, dim: int, blocks: tuple[int, ...]) -> None:
        super().__init__()
        levels = len(blocks) - 1
        wide = [dim << level for level in range(levels + 1)]
        self.embedding = BinaryConv(dim, 3)
        self.encoder_layers = nn.ModuleList(
            nn.ModuleList((Blocks(wide[i], blocks[i]), Down(wide[i], 3))) for i in range(levels)
        )
        self.bottleneck = Blocks(wide[-1], blocks[-1])
        self.decoder_layers = nn.ModuleList(
            nn.ModuleList((Up(wide[i], 3), Narrow(wide[i], 1), Blocks(wide[i], blocks[i])))
            for i in reversed(range(levels))
        )
        self.mapping = BinaryConv(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        features, passed = self.embedding(x), []
        for layers in self.encoder_layers:
            blocks, down = cast(nn.ModuleList, layers)
            passed.append(blocks(features))
            features = down(passed[-1])
        features = self.bottleneck(features)
        for layers in self.decoder_layers:
            up, fuse, blocks = cast(nn.ModuleList, layers)
            features = blocks(fuse(torch.cat((up(features), passed.pop()), 1)))
        return cast(Tensor, self.mapping(features)) + x


@register("bisrnet")
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
        blocks = tuple(blocks)
        super().__init__(bands, stages, lambda: BinaryUNet(bands, blocks), 2 ** len(blocks))
