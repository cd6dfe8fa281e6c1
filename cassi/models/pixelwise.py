"""Parts of networks that keep their images as `(B, H, W, c)`, channels innermost."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PixelNorm(nn.Module):
    """Normalize the channels of each pixel.

    Centred, LayerNorm: (x − μ)/√(σ² + 1e-5)·weight + bias. Otherwise the mean stays and there is
    no bias, x/√(σ² + 1e-5)·weight, where σ² is the variance about the mean all the same.

    Args:
        dim: number of channels.
        centred: whether the mean is subtracted.

    Source: Zamir et al., "Restormer", CVPR 2022, its code; names of the weights as there.
    """

    def __init__(self, dim: int, centred: bool = True) -> None:
        super().__init__()
        self.body = _Affine(dim, centred)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, c)`."""
        weight, bias = self.body.weight, self.body.bias
        # As wide as the weights: a variance in bfloat16 is slow, and has few digits.
        wide = x.to(weight.dtype)
        if bias is not None:
            return F.layer_norm(wide, weight.shape, weight, bias, 1e-5).to(x.dtype)
        # Three times as fast as torch.var.
        variance = (wide - wide.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (wide * (variance + 1e-5).rsqrt() * weight).to(x.dtype)


class _Affine(nn.Module):
    bias: nn.Parameter | None

    def __init__(self, dim: int, shifted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_parameter("bias", nn.Parameter(torch.zeros(dim)) if shifted else None)


def mix(layer: nn.Conv2d, *images: Tensor) -> Tensor:
    """Apply a 1×1 convolution to images laid side by side, without laying them so.

    Args:
        layer: of as many channels as the images have together.
        images: each `(B, H, W, c)`.

    Returns:
        `(B, H, W, c')`.
    """
    weights = layer.weight.flatten(1).split([image.shape[-1] for image in images], 1)
    mixed = F.linear(images[0], weights[0], layer.bias)
    for image, weight in zip(images[1:], weights[1:], strict=True):
        mixed = mixed + F.linear(image, weight)
    return mixed


def convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer of `(B, c, H, W)` to `(B, H, W, c)`; no element moves."""
    result: Tensor = layer(x.permute(0, 3, 1, 2))
    return result.permute(0, 2, 3, 1)


def widen(x: Tensor, point: nn.Conv2d, spread: nn.Conv2d, parts: int) -> list[Tensor]:
    """Apply a 1×1, then a 3×3 depthwise convolution, and split the channels.

    Computed part by part: what follows reads compact images, and each stays below the size from
    which the allocator returns memory to the system at once. Half the time for 2×74 channels.

    Args:
        x: `(B, H, W, c)`.
        point: to parts·c' channels, without bias.
        spread: of parts·c' channels.
        parts: how many.

    Returns:
        Images `(B, H, W, c')`.
    """
    biases = [None] * parts if spread.bias is None else spread.bias.chunk(parts)
    results = []
    for mixing, kernel, bias in zip(
        point.weight.flatten(1).chunk(parts), spread.weight.chunk(parts), biases, strict=True
    ):
        image = F.linear(x, mixing).permute(0, 3, 1, 2)
        image = F.conv2d(image, kernel, bias, padding=1, groups=len(kernel))
        results.append(image.permute(0, 2, 3, 1))
    return results


def spread_pixels(inputs: int, outputs: int, bias: bool = False, width: int = 64) -> nn.Sequential:
    """Return 1×1, 3×3 depthwise and 1×1 convolutions with GELU between them."""
    return nn.Sequential(
        nn.Conv2d(inputs, width, 1, bias=bias),
        nn.GELU(),
        nn.Conv2d(width, width, 3, padding=1, groups=width, bias=bias),
        nn.GELU(),
        nn.Conv2d(width, outputs, 1, bias=False),
    )


class GatedFeedForward(nn.Module):
    """W₂(GELU(a) ⊙ b), where a and b are halves of depthwise(W₁x).

    Args:
        dim: number of channels.
        bias: whether the depthwise convolution has one.
        norm: whether x is normalized first, and its mean kept, see `PixelNorm`.
        factor: channels of a, in units of `dim`, rounded down.

    Source: Zamir et al., "Restormer", CVPR 2022, equation 3; names of the weights as there.
    """

    norm: PixelNorm | None

    def __init__(
        self, dim: int, bias: bool = False, norm: bool = False, factor: float = 2.66
    ) -> None:
        super().__init__()
        inner = int(dim * factor)
        self.norm = PixelNorm(dim, centred=False) if norm else None
        self.project_in = nn.Conv2d(dim, 2 * inner, 1, bias=False)
        self.dwconv = nn.Conv2d(2 * inner, 2 * inner, 3, padding=1, groups=2 * inner, bias=bias)
        self.project_out = nn.Conv2d(inner, dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        x = x if self.norm is None else self.norm(x)
        gate, value = widen(x, self.project_in, self.dwconv, 2)
        return mix(self.project_out, F.gelu(gate) * value)
