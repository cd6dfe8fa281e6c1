"""Layers, norms, padding and checks that several networks share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.checks import whole_number


def check_images(owner: str, x: Tensor, channels: int) -> None:
    """Raise a ValueError where x is not `(N, channels, H, W)`."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise ValueError(f"{owner}: expected images (N, {channels}, H, W), got {tuple(x.shape)}")


def check_counts(owner: str, **counts: int) -> None:
    """Raise a ValueError where a number of channels, layers, … is not a whole number >= 1."""
    for name, count in counts.items():
        whole_number(f"{owner} {name}", count, 1)


def pad_to_multiple(
    x: Tensor,
    multiple: int,
    mode: Literal["replicate", "reflect", "mirror"] = "replicate",
    least: int = 0,
) -> Tensor:
    """Add rows below and columns to the right until H and W are multiples of a number.

    Args:
        x: images `(…, H, W)`.
        multiple: the number.
        mode: "replicate" repeats the last row and column; "reflect" mirrors the image, and
            replicates where it is smaller than what is missing; "mirror" mirrors such an image
            again and again.
        least: fewest rows and columns, itself a multiple.
    """
    height, width = x.shape[-2:]
    below, right = (max(-size % multiple, least - size) for size in (height, width))
    if not (below or right):
        return x
    if mode == "replicate" or (below < height and right < width):
        return F.pad(x, (0, right, 0, below), "replicate" if mode == "replicate" else "reflect")
    if mode == "reflect":
        return F.pad(x, (0, right, 0, below), "replicate")
    rows, columns = (
        _mirrored(size, size + more, x.device) for size, more in ((height, below), (width, right))
    )
    return x[..., rows[:, None], columns]


def _mirrored(size: int, total: int, device: torch.device) -> Tensor:
    # 0 1 2 3 2 1 0 1 …: the period leaves out both ends once.
    period = max(2 * (size - 1), 1)
    position = torch.arange(total, device=device) % period
    return torch.minimum(position, period - position) if size > 1 else position


def level_map(owner: str, sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return σ, a number or one per image, as one more channel of `(N, c, H, W)`: `(N, 1, H, W)`.

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


def normalize(norm: nn.LayerNorm | nn.GroupNorm | PixelNorm, x: Tensor) -> Tensor:
    """Apply a norm to `(B, H, W, c)` in the dtype of its weights, and return to that of x.

    `LayerNorm` sees the channels of a pixel, `GroupNorm` those of an image, which with one channel
    per group are those of an instance norm.
    """
    if isinstance(norm, PixelNorm):
        return cast(Tensor, norm(x))
    # bfloat16 takes 7.3 ms for 256×256×28 on one core, float32 and the conversion 4.1 ms.
    wide = x.to(norm.weight.dtype)
    if isinstance(norm, nn.GroupNorm):
        normed: Tensor = norm(wide.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    else:
        normed = norm(wide)
    return normed.to(x.dtype)


def draw_narrow(network: nn.Module, kind: type[nn.Linear] | type[nn.Conv2d]) -> None:
    """Draw the weights of all layers of a kind from a narrow normal distribution, with no bias."""
    for module in network.modules():
        if isinstance(module, kind):
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
        centred: whether the mean is subtracted.

    Source: Zamir et al., "Restormer", CVPR 2022, its code.
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


def mix(layer: nn.Module, *images: Tensor) -> Tensor:
    """Apply a 1×1 convolution to images `(B, H, W, c)` side by side, without laying them so."""
    conv = cast(nn.Conv2d, layer)
    weights = conv.weight.flatten(1).split([image.shape[-1] for image in images], 1)
    mixed = F.linear(images[0], weights[0], conv.bias)
    for image, weight in zip(images[1:], weights[1:], strict=True):
        mixed = mixed + F.linear(image, weight)
    return mixed


def convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer of `(B, c, H, W)` to `(B, H, W, c)`; no element moves."""
    result: Tensor = layer(x.permute(0, 3, 1, 2))
    return result.permute(0, 2, 3, 1)


def widen(x: Tensor, point: nn.Conv2d, spread: nn.Conv2d, parts: int) -> list[Tensor]:
    """Apply a 1×1, then a 3×3 depthwise convolution to `(B, H, W, c)`, and split the channels.

    Computed part by part: what follows reads compact images, and each stays below the size from
    which the allocator returns memory to the system at once. Half the time for 2×74 channels.
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
        bias: whether the depthwise convolution has one.
        norm: whether x is normalized first, and its mean kept, see `PixelNorm`.
        factor: channels of a, in units of `dim`, rounded down.

    Source: Zamir et al., "Restormer", CVPR 2022, equation 3.
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


class FeedForward(nn.Module):
    """1×1, 3×3 depthwise and 1×1 convolution, with GELU between them.

    Args:
        factor: channels inside, in units of `dim`, rounded down.
        point: applies a 1×1 convolution, `mix` or `convolve`: they round differently.
    """

    def __init__(
        self, dim: int, factor: float, point: Callable[[nn.Module, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.net, self.point = spread_pixels(dim, dim, width=int(dim * factor)), point

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        widen, spread, narrow = (self.net[i] for i in (0, 2, 4))
        # GELU sees (B, H, W, c): its kernel for contiguous memory is twice as fast.
        return self.point(narrow, F.gelu(convolve(spread, F.gelu(self.point(widen, x)))))


class PreNorm(nn.Module):
    """fn(norm(x)).

    Args:
        norm: of `(B, H, W, c)`.
        fn: what follows.
        wide: apply the norm as wide as its weights, see `normalize`; results in bfloat16 differ.
    """

    def __init__(
        self, norm: nn.LayerNorm | nn.GroupNorm | PixelNorm, fn: nn.Module, wide: bool = True
    ) -> None:
        super().__init__()
        self.fn, self.norm, self.wide = fn, norm, wide

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        normed = normalize(self.norm, x) if self.wide else self.norm(x)
        return cast(Tensor, self.fn(normed))


class Resampling(nn.Module):
    """Layers that halve or double the resolution, under a name among the weights."""

    def __init__(self, name: str, *layers: nn.Module) -> None:
        super().__init__()
        self.add_module(name, nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H', W', c')`."""
        for layers in self.children():
            x = convolve(layers, x)
        return x


class Residuals(nn.Module):
    """x + part(x), one part after another, under their names among the weights."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to the same."""
        for part in self.children():
            x = x + part(x)
        return x


def in_order(**parts: nn.Module) -> nn.Sequential:
    """Return parts, one after another, under their names among the weights."""
    return nn.Sequential(OrderedDict(parts))


def conv_pair(inputs: int, outputs: int, bias: bool = True) -> nn.Sequential:
    """Return two 3×3 convolutions, each with a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias),
        nn.ReLU(inplace=True),
    )
