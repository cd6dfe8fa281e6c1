"""Layers, norms, padding and checks that several networks share."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.checks import whole_number
from cassi.ops import convolve3x3


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

    "replicate" repeats the last row and column; "reflect" mirrors the image, and replicates where
    it is smaller than what is missing; "mirror" mirrors such an image again and again. There are at
    least `least` rows and columns afterwards, itself a multiple.
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


def pixel_unshuffle(x: Tensor, side: int) -> Tensor:
    """Return `(N, c, H, W)` as `(N, c·side², H/side, W/side)`: torch's, in a third of its time."""
    blocks = x.unflatten(3, (-1, side)).unflatten(2, (-1, side))
    return blocks.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def pixel_shuffle(x: Tensor, side: int) -> Tensor:
    """Return `(N, c·side², H, W)` as `(N, c, H·side, W·side)`: torch's, in a third of its time."""
    blocks = x.unflatten(1, (-1, side, side))
    return blocks.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)


def level_map(owner: str, sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return σ, a number or one per image, as a channel of `(N, c, H, W)`: `(N, 1, H, W)`."""
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    if level.numel() not in (1, x.shape[0]):
        raise ValueError(
            f"{owner} sigma: expected one number or one per image ({x.shape[0]}), "
            f"got shape {tuple(level.shape)}"
        )
    return level.reshape(-1, 1, 1, 1).expand(x.shape[0], 1, *x.shape[-2:])


def level_plane(sigma: Tensor, x: Tensor) -> Tensor:
    """Return noise levels `(B, 1, 1, 1)` as a channel of images `(B, H, W, c)`: `(B, H, W, 1)`."""
    return sigma.to(x.dtype).expand(-1, *x.shape[1:3], -1)


class LayerNorm(nn.LayerNorm):
    """The norm of the channels of each pixel `(…, c)`, computed in the dtype of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(…, c)` to the same."""
        # bfloat16 takes 7.3 ms for 256×256×28 on one core, float32 and the conversion 4.1 ms.
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class InstanceNorm(nn.GroupNorm):
    """The norm of each channel of an image, computed in the dtype of its weights."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        wide = x.to(self.weight.dtype).permute(0, 3, 1, 2)
        return super().forward(wide).permute(0, 2, 3, 1).to(x.dtype)


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


class Conv(nn.Conv2d):
    """A convolution of images `(B, H, W, c)` that keeps their size; no element moves for it.

    A kernel of an even size takes away a row and a column, and with its stride divides H and W.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        padding = (size - 1) // 2
        super().__init__(inputs, outputs, size, stride, padding, groups=groups, bias=bias)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Map images side by side, `(B, H, W, c)` each, to `(B, H', W', c')`."""
        images = [image.permute(0, 3, 1, 2) for image in (x, *others)]
        result = super().forward(torch.cat(images, 1) if others else images[0])
        return result.permute(0, 2, 3, 1)


class Point(Conv):
    """A 1×1 convolution of images `(B, H, W, c)` as a matrix product; it rounds differently."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Map images side by side, `(B, H, W, c)` each, to `(B, H, W, c')`."""
        weights = self.weight.flatten(1).split([image.shape[-1] for image in (x, *others)], 1)
        mixed = F.linear(x, weights[0], self.bias)
        for image, weight in zip(others, weights[1:], strict=True):
            mixed = mixed + F.linear(image, weight)
        return mixed


def spread(dim: int, size: int = 3, bias: bool = False) -> Conv:
    """Return a depthwise convolution."""
    return Conv(dim, dim, size, groups=dim, bias=bias)


CONV3, HALVE = partial(Conv, size=3), partial(Conv, size=4, stride=2)
"""Layers of so many channels in and out, of a 3×3 kernel, and of a 4×4 that halves H and W."""


class Double(nn.ConvTranspose2d):
    """A transposed convolution of images `(B, H, W, c)` to twice their size."""

    def __init__(
        self, inputs: int, outputs: int, size: int = 2, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__(inputs, outputs, size, 2, size // 2 - 1, groups=groups, bias=bias)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Map `(B, H, W, c)` to `(B, 2H, 2W, c')`."""
        return super().forward(x.permute(0, 3, 1, 2), output_size).permute(0, 2, 3, 1)


def on_images(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of `(B, c, H, W)` to `(B, H, W, c)`; no element moves for it."""
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def on_pixels(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of `(B, H, W, c)` to `(B, c, H, W)`; no element moves for it."""
    return layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class OnImages(nn.Module):
    """A layer without weights of `(B, c, H, W)`, as one of `(B, H, W, c)`."""

    def __init__(self, layer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H', W', c')`."""
        return on_images(self.layer, x)


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


def spread_pixels(inputs: int, outputs: int, bias: bool = False) -> nn.Sequential:
    """Return 1×1, 3×3 depthwise and 1×1 convolutions of `(B, c, H, W)` with GELU between them."""
    return nn.Sequential(
        nn.Conv2d(inputs, 64, 1, bias=bias),
        nn.GELU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=bias),
        nn.GELU(),
        nn.Conv2d(64, outputs, 1, bias=False),
    )


class GatedFeedForward(nn.Module):
    """W₂(GELU(a) ⊙ b), where a and b are halves of depthwise(W₁x), each 2.66 times as wide as x.

    With a `norm` x is normalized first, and its mean kept, see `PixelNorm`.

    Source: Zamir et al., "Restormer", CVPR 2022, equation 3.
    """

    norm: PixelNorm | None

    def __init__(self, dim: int, bias: bool = False, norm: bool = False) -> None:
        super().__init__()
        inner = int(dim * 2.66)
        self.norm = PixelNorm(dim, centred=False) if norm else None
        self.project_in = Point(dim, 2 * inner)
        self.dwconv = spread(2 * inner, bias=bias)
        self.project_out = Point(inner, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        x = x if self.norm is None else self.norm(x)
        gate, value = widen(x, self.project_in, self.dwconv, 2)
        return self.project_out(F.gelu(gate) * value)


def feed_forward(dim: int, factor: float, point: type[Conv] = Point) -> nn.Sequential:
    """Return 1×1, 3×3 depthwise and 1×1 convolutions of `(B, H, W, c)` with GELU between them.

    Inside there are `factor` times as many channels, rounded down; `point` makes a 1×1 convolution.
    """
    inner = int(dim * factor)
    # GELU sees (B, H, W, c): its kernel for contiguous memory is twice as fast.
    layers = (point(dim, inner), nn.GELU(), spread(inner), nn.GELU(), point(inner, dim))
    return in_order(net=nn.Sequential(*layers))


class PreNorm(nn.Module):
    """fn(norm(x)), under these names among the weights."""

    def __init__(self, norm: nn.Module, fn: nn.Module) -> None:
        super().__init__()
        self.fn, self.norm = fn, norm

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        return self.fn(self.norm(x))


class Residuals(nn.Sequential):
    """x + part(x), one part after another, under their names among the weights."""

    def __init__(self, *parts: nn.Module, **named: nn.Module) -> None:
        numbered = {str(i): part for i, part in enumerate(parts)}
        super().__init__(OrderedDict(numbered | named))

    def forward(self, x: Tensor) -> Tensor:
        """Map images to the same."""
        for part in self:
            x = part(x, residual=x) if isinstance(part, ConvPair) else x + part(x)
        return x


def in_order(**parts: nn.Module) -> nn.Sequential:
    """Return parts, one after another, under their names among the weights."""
    return nn.Sequential(OrderedDict(parts))


class ConvPair(nn.Sequential):
    """Two 3×3 convolutions with a ReLU between them, and one at the end where it `rectifies`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, rectify: bool = True) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias),
            *([nn.ReLU(inplace=True)] if rectify else []),
        )

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map images `(B, inputs, H, W)`, and add a residual `(B, outputs, H, W)`."""
        first, _, last, *end = (cast(nn.Conv2d, layer) for layer in self)
        between = convolve3x3(x, first.weight, first.bias, rectify=True)
        if not end:
            return convolve3x3(between, last.weight, last.bias, residual)
        y = convolve3x3(between, last.weight, last.bias, rectify=True)
        return y if residual is None else residual + y


def beside(x: Tensor, skip: Tensor) -> Tensor:
    """Lay images `(B, c, H, W)` side by side."""
    return torch.cat((x, skip), 1)


Layers = Iterable[Callable[..., Tensor]]


def u_net(
    x: Tensor,
    encoder: Iterable[Layers],
    bottom: Callable[..., Tensor],
    decoder: Iterable[Layers],
    told: Iterator[tuple[object, ...]] | None = None,
) -> Tensor:
    """Apply parts of a U-Net to images, of any layout.

    `encoder` has (block, halve) of each scale, the finest first, `decoder` (double, fuse, block),
    the finest last; `told` is what else the blocks of a scale are given, the finest first.
    """
    kept = []
    for block, halve, *_ in encoder:
        more = () if told is None else next(told)
        x = block(x, *more)
        kept.append((x, more))
        x = halve(x)
    x = bottom(x, *(() if told is None else next(told)))
    for double, fuse, block in decoder:
        skip, more = kept.pop()
        x = block(fuse(double(x), skip), *more)
    return x


def padded(network: Callable[[Tensor], Tensor], x: Tensor, multiple: int) -> Tensor:
    """Return x + network(x), cropped, of images `(B, C, H, W)` of any height and width."""
    height, width = x.shape[-2:]
    x = pad_to_multiple(x, multiple, "mirror").permute(0, 2, 3, 1).contiguous()
    return (network(x) + x)[:, :height, :width].permute(0, 3, 1, 2)


class UNet(nn.Module):
    """A U-Net of images `(B, H, W, c)`, of a class that inherits `build` and `pass_through`."""

    def build(
        self,
        dim: int,
        levels: int,
        block: Callable[[int], nn.Module],
        inputs: int | None = None,
        edge: Callable[[int, int], nn.Module] = CONV3,
        fuse: Callable[[int, int], nn.Module] = Point,
        halvings: int = 1,
    ) -> None:
        """Make the layers.

        `dim` channels at full size are twice as many at each halving. `block` makes that of a
        level, 0 for the finest, `edge` the first and the last layer, and `fuse` what joins the
        coarser level and what passed by. `halvings` layers halve at each level; `pass_through`
        applies the first.
        """
        self.embedding = edge(inputs or dim, dim)
        self.encoder_layers = nn.ModuleList()
        for level in range(levels):
            wide = dim << level
            halves = [HALVE(wide, 2 * wide) for _ in range(halvings)]
            self.encoder_layers.append(nn.ModuleList((block(level), *halves)))
        self.bottleneck = block(levels)
        self.decoder_layers = nn.ModuleList()
        for level in reversed(range(levels)):
            wide = dim << level
            layers = Double(2 * wide, wide), fuse(2 * wide, wide), block(level)
            self.decoder_layers.append(nn.ModuleList(layers))
        self.mapping = edge(dim, dim)

    def pass_through(
        self,
        x: Tensor,
        told: Iterator[tuple[object, ...]] | None = None,
        activate: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Map `(B, H, W, inputs)`, H and W multiples of 2^levels, to `(B, H, W, dim)`.

        `told` is what else the blocks of a level are given, the finest first; `activate` comes
        after the embedding.
        """
        x = self.embedding(x)
        x = x if activate is None else activate(x)
        encoder = [cast(nn.ModuleList, layers) for layers in self.encoder_layers]
        decoder = [cast(nn.ModuleList, layers) for layers in self.decoder_layers]
        return self.mapping(u_net(x, encoder, self.bottleneck, decoder, told))
