"""Layers, norms, padding and checks that several networks share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def check_images(owner: str, x: Tensor, channels: int) -> None:
    """Raise a ValueError where x is not `(N, channels, H, W)`."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise ValueError(f"{owner}: expected images (N, {channels}, H, W), got {tuple(x.shape)}")


def check_counts(owner: str, **counts: int) -> None:
    """Raise a ValueError where a number of channels, layers, … is not a whole number >= 1."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(
                f"{owner} {name}: expected a whole number of at least 1, got {count!r}"
            )


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until H and W are multiples of a number."""
    height, width = x.shape[-2:]
    below, right = -height % multiple, -width % multiple
    return F.pad(x, (0, right, 0, below), mode="replicate") if below or right else x


def level_map(owner: str, sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return σ as one more channel of the images x.

    Args:
        owner: the name in an error.
        sigma: a number, or `(N,)`, `(N, 1, 1, 1)`.
        x: `(N, c, H, W)`.

    Returns:
        `(N, 1, H, W)`, constant over each image.

    Raises:
        ValueError: σ is neither one number nor one per image.
    """
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    if level.numel() not in (1, x.shape[0]):
        raise ValueError(
            f"{owner} sigma: expected one number or one per image ({x.shape[0]}), "
            f"got shape {tuple(level.shape)}"
        )
    return level.reshape(-1, 1, 1, 1).expand(x.shape[0], 1, *x.shape[-2:])


def normalize(norm: nn.LayerNorm | nn.GroupNorm, x: Tensor) -> Tensor:
    """Apply a norm in the dtype of its weights, and return to that of x.

    `LayerNorm` sees the channels of a pixel, `GroupNorm` those of an image, which with one channel
    per group are those of an instance norm.
    """
    wide = x.to(norm.weight.dtype)
    if isinstance(norm, nn.GroupNorm):
        normed: Tensor = norm(wide.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    else:
        normed = norm(wide)
    return normed.to(x.dtype)


def initialize_linear(module: nn.Module) -> None:
    """Draw the weights of a linear map from a narrow normal distribution, with no bias.

    Taken by `nn.Module.apply`; layers of other kinds stay as they are.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def initialize_convolution(module: nn.Module) -> None:
    """Draw the weights of a convolution from a narrow normal distribution, with no bias."""
    if isinstance(module, nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def pooled_mlp(width: int, outputs: int, bias: bool) -> nn.Sequential:
    """Return the maps of pooled features `(B, width, 1, 1)` that end a net of parameters."""
    return nn.Sequential(
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, outputs, 1, bias=bias),
    )


def pool_rectified(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the mean over all pixels of relu(1×1 convolution): `(B, C, H, W)` → `(B, c, 1, 1)`."""
    mixed = torch.relu_(F.linear(x.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias))
    return mixed.mean((1, 2))[..., None, None]


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
