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
    """Raise a ValueError if x is not `(N, channels, H, W)`."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise ValueError(f"{owner}: expected images (N, {channels}, H, W), got {tuple(x.shape)}")


def check_counts(owner: str, **counts: int) -> None:
    """Raise a ValueError if a number of channels, layers, … is not a whole number >= 1."""
    for name, count in counts.items():
        whole_number(f"{owner} {name}", count, 1)


def pad_to_multiple(
    x: Tensor,
    multiple: int,
    mode: Literal["replicate", "reflect", "mirror"] = "replicate",
    min_size: int = 0,
) -> Tensor:
    """Add rows below and columns to the right until H and W are multiples of a number.

    "replicate" repeats the last row and column. "reflect" mirrors the image once. If the padding
    has as many rows or columns as the image or more, "reflect" repeats the last ones instead.
    "mirror" mirrors as often as needed.

    Args:
        x: images `(…, H, W)`.
        multiple: H and W of the result are multiples of it.
        mode: how the added pixels are filled.
        min_size: fewest rows and columns of the result, a multiple of `multiple`.
    """
    height, width = x.shape[-2:]
    below, right = (max(-size % multiple, min_size - size) for size in (height, width))
    if not (below or right):
        return x
    if mode == "replicate" or (below < height and right < width):
        return F.pad(x, (0, right, 0, below), "replicate" if mode == "replicate" else "reflect")
    if mode == "reflect":
        return F.pad(x, (0, right, 0, below), "replicate")
    rows, columns = (
        _mirror_indices(size, size + padding, x.device)
        for size, padding in ((height, below), (width, right))
    )
    return x[..., rows[:, None], columns]


def _mirror_indices(size: int, total: int, device: torch.device) -> Tensor:
    # The indices run 0 1 2 3 2 1 0 1 …. The first and the last index are not repeated, so the
    # period is 2·(size - 1).
    period = max(2 * (size - 1), 1)
    position = torch.arange(total, device=device) % period
    return torch.minimum(position, period - position) if size > 1 else position


def pixel_unshuffle(x: Tensor, side: int) -> Tensor:
    """Return `(N, c, H, W)` as `(N, c·side², H/side, W/side)`, in the order of torch.

    It takes a third of the time of `F.pixel_unshuffle`.
    """
    blocks = x.unflatten(3, (-1, side)).unflatten(2, (-1, side))
    return blocks.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def pixel_shuffle(x: Tensor, side: int) -> Tensor:
    """Return `(N, c·side², H, W)` as `(N, c, H·side, W·side)`, in the order of torch.

    It takes a third of the time of `F.pixel_shuffle`.
    """
    blocks = x.unflatten(1, (-1, side, side))
    return blocks.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)


def level_map(owner: str, sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return σ, a number or one per image, as a channel of `(N, c, H, W)`: `(N, 1, H, W)`.

    Raises:
        ValueError: the number of values of σ is neither 1 nor N; the message begins with `owner`.
    """
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
        """Map `(…, c)` to the same shape."""
        # The norm of 256×256×28 takes 7.3 ms in bfloat16 on one core. In float32 it takes 4.1 ms,
        # both conversions included.
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class InstanceNorm(nn.GroupNorm):
    """The norm of each channel of an image, computed in the dtype of its weights."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        images = x.to(self.weight.dtype).permute(0, 3, 1, 2)
        return super().forward(images).permute(0, 2, 3, 1).to(x.dtype)


def init_truncated_normal(network: nn.Module, kind: type[nn.Linear] | type[nn.Conv2d]) -> None:
    """Draw the weights of all layers of a kind from a truncated normal; set their biases to zero.

    The standard deviation is 0.02, as in the code of the authors.
    """
    for module in network.modules():
        if isinstance(module, kind):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def pooled_mlp(width: int, outputs: int, bias: bool) -> nn.Sequential:
    """Return three 1×1 convolutions for pooled features: `(B, c, 1, 1)` → `(B, outputs, 1, 1)`."""
    return nn.Sequential(
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, outputs, 1, bias=bias),
    )


def pool_rectified(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the mean over all pixels of relu(1×1 convolution): `(B, C, H, W)` → `(B, c, 1, 1)`."""
    features = torch.relu_(F.linear(x.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias))
    return features.mean((1, 2))[..., None, None]


class PixelNorm(nn.Module):
    """Normalize the channels of each pixel.

    If `subtract_mean` is true, this is LayerNorm, (x − μ)/√(σ² + 1e-5)·weight + bias. Otherwise the
    mean is not subtracted and there is no bias: x/√(σ² + 1e-5)·weight. In both cases σ² is the
    variance about the mean.

    Source: Zamir et al., "Restormer", CVPR 2022, its code.
    """

    def __init__(self, dim: int, subtract_mean: bool = True) -> None:
        super().__init__()
        self.body = _Affine(dim, has_bias=subtract_mean)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(…, c)` to the same shape."""
        weight, bias = self.body.weight, self.body.bias
        # The dtype of the weights is used, because a variance in bfloat16 is slow and inaccurate.
        pixels = x.to(weight.dtype)
        if bias is not None:
            return F.layer_norm(pixels, weight.shape, weight, bias, 1e-5).to(x.dtype)
        # These two means take a third of the time of torch.var.
        variance = (pixels - pixels.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (pixels * (variance + 1e-5).rsqrt() * weight).to(x.dtype)


class _Affine(nn.Module):
    bias: nn.Parameter | None

    def __init__(self, dim: int, has_bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_parameter("bias", nn.Parameter(torch.zeros(dim)) if has_bias else None)


class Conv(nn.Conv2d):
    """A convolution of images `(B, H, W, c)`, with (size − 1) // 2 zeros on each side.

    With an odd kernel and stride 1 the images keep their size. A 2×2 or 4×4 kernel with stride 2
    halves H and W. The images are passed to torch as a view with channels first, without a copy.
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
        """Join the channels of images `(B, H, W, c)` and convolve them: `(B, H', W', c')`."""
        images = [image.permute(0, 3, 1, 2) for image in (x, *others)]
        result = super().forward(torch.cat(images, 1) if others else images[0])
        return result.permute(0, 2, 3, 1)


class Conv3x3(Conv):
    """A 3×3 convolution of images `(B, H, W, c)` by `cassi.ops.convolve3x3`.

    Its rounding differs from that of `Conv`.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve3x3(x, weight, bias)


class PointwiseConv(Conv):
    """A 1×1 convolution of images `(B, H, W, c)`, computed as a matrix product.

    Its rounding differs from that of `Conv`.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Join the channels of images `(B, H, W, c)` and convolve them: `(B, H, W, c')`."""
        # One product per image is summed, because joining the images would copy them.
        weights = self.weight.flatten(1).split([image.shape[-1] for image in (x, *others)], 1)
        result = F.linear(x, weights[0], self.bias)
        for image, weight in zip(others, weights[1:], strict=True):
            result = result + F.linear(image, weight)
        return result


def depthwise_conv(dim: int, size: int = 3, bias: bool = False) -> Conv:
    """Return a depthwise convolution."""
    return Conv(dim, dim, size, groups=dim, bias=bias)


# Makes a 4×4 convolution that halves H and W, from its numbers of input and output channels.
HALVING_CONV = partial(Conv, size=4, stride=2)


class TransposedConv(nn.ConvTranspose2d):
    """A transposed convolution of images `(B, H, W, c)` to twice their size."""

    def __init__(
        self, inputs: int, outputs: int, size: int = 2, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__(inputs, outputs, size, 2, size // 2 - 1, groups=groups, bias=bias)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Map `(B, H, W, c)` to `(B, 2H, 2W, c')`."""
        return super().forward(x.permute(0, 3, 1, 2), output_size).permute(0, 2, 3, 1)


def apply_channels_first(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of `(B, c, H, W)` to `(B, H, W, c)`, without a copy."""
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def apply_channels_last(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of `(B, H, W, c)` to `(B, c, H, W)`, without a copy."""
    return layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsFirst(nn.Module):
    """Apply a function of images `(B, c, H, W)`, without weights, to images `(B, H, W, c)`."""

    def __init__(self, layer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to `(B, H', W', c')`."""
        return apply_channels_first(self.layer, x)


def pointwise_depthwise(
    x: Tensor, pointwise: nn.Conv2d, depthwise: nn.Conv2d, parts: int
) -> list[Tensor]:
    """Apply a 1×1, then a 3×3 depthwise convolution to `(B, H, W, c)`, and split the channels.

    The result is `parts` images `(B, H, W, c'/parts)`.
    """
    # Each part is computed alone. So the caller reads contiguous images. The images are also so
    # small that the allocator keeps their memory for the next ones. For 2×74 channels this takes
    # half of the time that all channels at once take.
    biases = [None] * parts if depthwise.bias is None else depthwise.bias.chunk(parts)
    results = []
    for weight, kernel, bias in zip(
        pointwise.weight.flatten(1).chunk(parts), depthwise.weight.chunk(parts), biases, strict=True
    ):
        image = F.linear(x, weight).permute(0, 3, 1, 2)
        image = F.conv2d(image, kernel, bias, padding=1, groups=len(kernel))
        results.append(image.permute(0, 2, 3, 1))
    return results


def depthwise_bottleneck(inputs: int, outputs: int, bias: bool = False) -> nn.Sequential:
    """Return 1×1, 3×3 depthwise and 1×1 convolutions of `(B, c, H, W)` with GELU between them.

    The 64 channels between them are those of the published weights.
    """
    return nn.Sequential(
        nn.Conv2d(inputs, 64, 1, bias=bias),
        nn.GELU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=bias),
        nn.GELU(),
        nn.Conv2d(64, outputs, 1, bias=False),
    )


class GatedFeedForward(nn.Module):
    """W₂(GELU(a) ⊙ b), where a and b are halves of depthwise(W₁x).

    Each half has 2.66 times as many channels as x, as in the published weights. If `norm` is true,
    x first passes a `PixelNorm` that does not subtract the mean.

    Source: Zamir et al., "Restormer", CVPR 2022, equation 3.
    """

    norm: PixelNorm | None

    def __init__(self, dim: int, bias: bool = False, norm: bool = False) -> None:
        super().__init__()
        width = int(dim * 2.66)
        self.norm = PixelNorm(dim, subtract_mean=False) if norm else None
        self.project_in = PointwiseConv(dim, 2 * width)
        self.dwconv = depthwise_conv(2 * width, bias=bias)
        self.project_out = PointwiseConv(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        x = x if self.norm is None else self.norm(x)
        gate, value = pointwise_depthwise(x, self.project_in, self.dwconv, 2)
        return self.project_out(F.gelu(gate) * value)


def feed_forward(dim: int, factor: float, pointwise: type[Conv] = PointwiseConv) -> nn.Sequential:
    """Return 1×1, 3×3 depthwise and 1×1 convolutions of `(B, H, W, c)` with GELU between them.

    Args:
        dim: channels of the input and the output.
        factor: there are factor·dim channels between the 1×1 convolutions, rounded down.
        pointwise: class of the 1×1 convolutions.
    """
    width = int(dim * factor)
    depthwise = depthwise_conv(width)
    # GELU gets contiguous images (B, H, W, c), for which its kernel is twice as fast.
    layers = (pointwise(dim, width), nn.GELU(), depthwise, nn.GELU(), pointwise(width, dim))
    return named_sequence(net=nn.Sequential(*layers))


class PreNorm(nn.Module):
    """fn(norm(x)). The attributes are named as in the published weights."""

    def __init__(self, norm: nn.Module, fn: nn.Module) -> None:
        super().__init__()
        self.fn, self.norm = fn, norm

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        return self.fn(self.norm(x))


class ResidualSequence(nn.Sequential):
    """Replace x by x + part(x) for one part after another.

    In the state dict the parts are named by their keywords, or by their numbers.
    """

    def __init__(self, *parts: nn.Module, **named_parts: nn.Module) -> None:
        numbered_parts = {str(i): part for i, part in enumerate(parts)}
        super().__init__(OrderedDict(numbered_parts | named_parts))

    def forward(self, x: Tensor) -> Tensor:
        """Map images to the same shape."""
        for part in self:
            # A ConvPair adds x within its last convolution, which saves one pass over the image.
            x = part(x, residual=x) if isinstance(part, ConvPair) else x + part(x)
        return x


def named_sequence(**parts: nn.Module) -> nn.Sequential:
    """Return a sequence whose parts have the given names in the state dict."""
    return nn.Sequential(OrderedDict(parts))


class ConvPair(nn.Sequential):
    """Two 3×3 convolutions with a ReLU between them; if `rectify`, another ReLU at the end."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, rectify: bool = True) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias),
            *([nn.ReLU(inplace=True)] if rectify else []),
        )

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map images `(B, inputs, H, W)` to `(B, outputs, H, W)`; add `residual` if given."""
        first, _, second, *final_relu = (cast(nn.Conv2d, layer) for layer in self)
        features = convolve3x3(x, first.weight, first.bias, rectify=True)
        if not final_relu:
            return convolve3x3(features, second.weight, second.bias, residual)
        y = convolve3x3(features, second.weight, second.bias, rectify=True)
        return y if residual is None else residual + y


def join_channels(x: Tensor, skip: Tensor) -> Tensor:
    """Join the channels of images `(B, c, H, W)`."""
    return torch.cat((x, skip), 1)


Layers = Iterable[Callable[..., Tensor]]


def u_net(
    x: Tensor,
    encoder: Iterable[Layers],
    bottom: Callable[..., Tensor],
    decoder: Iterable[Layers],
    block_inputs: Iterator[tuple[object, ...]] | None = None,
) -> Tensor:
    """Apply the layers of a U-Net to images of any layout.

    Args:
        x: images.
        encoder: (block, downsample) of each scale, the finest first; further layers of a scale are
            ignored.
        bottom: block of the coarsest scale.
        decoder: (upsample, fuse, block) of each scale, the finest last.
        block_inputs: further arguments of the blocks of each scale, the finest first.
    """
    skips = []
    for block, downsample, *_ in encoder:
        arguments = () if block_inputs is None else next(block_inputs)
        x = block(x, *arguments)
        skips.append((x, arguments))
        x = downsample(x)
    x = bottom(x, *(() if block_inputs is None else next(block_inputs)))
    for upsample, fuse, block in decoder:
        skip, arguments = skips.pop()
        x = block(fuse(upsample(x), skip), *arguments)
    return x


def apply_padded(network: Callable[[Tensor], Tensor], x: Tensor, multiple: int) -> Tensor:
    """Return x + network(x) for images `(B, C, H, W)` of any height and width.

    H and W are first mirrored up to multiples of `multiple`. The network gets `(B, H', W', C)`, and
    the sum is cropped.
    """
    height, width = x.shape[-2:]
    x = pad_to_multiple(x, multiple, "mirror").permute(0, 2, 3, 1).contiguous()
    return (network(x) + x)[:, :height, :width].permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Base class of U-Nets of images `(B, H, W, c)`.

    A subclass makes the layers by `build` and applies them by `pass_through`.
    """

    def build(
        self,
        dim: int,
        levels: int,
        block: Callable[[int], nn.Module],
        inputs: int | None = None,
        edge: Callable[[int, int], nn.Module] = Conv3x3,
        fuse: Callable[[int, int], nn.Module] = PointwiseConv,
        n_downsamplings: int = 1,
    ) -> None:
        """Make the layers.

        Args:
            dim: channels at full size; each halving of the image doubles them.
            levels: number of halvings of the image.
            block: makes the block of a level, 0 for the finest.
            inputs: channels of the input; `dim` if None.
            edge: makes the first and the last layer from their input and output channels.
            fuse: makes the layer that joins the upsampled features with those of the encoder.
            n_downsamplings: number of halving layers at each level. `pass_through` applies the
                first one. The others are for other images, such as masks.
        """
        self.embedding = edge(inputs or dim, dim)
        self.encoder_layers = nn.ModuleList()
        for level in range(levels):
            channels = dim << level
            downsamplings = [HALVING_CONV(channels, 2 * channels) for _ in range(n_downsamplings)]
            self.encoder_layers.append(nn.ModuleList((block(level), *downsamplings)))
        self.bottleneck = block(levels)
        self.decoder_layers = nn.ModuleList()
        for level in reversed(range(levels)):
            channels = dim << level
            upsample = TransposedConv(2 * channels, channels)
            layers = upsample, fuse(2 * channels, channels), block(level)
            self.decoder_layers.append(nn.ModuleList(layers))
        self.mapping = edge(dim, dim)

    def pass_through(
        self,
        x: Tensor,
        block_inputs: Iterator[tuple[object, ...]] | None = None,
        activate: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Map `(B, H, W, inputs)`, H and W multiples of 2^levels, to `(B, H, W, dim)`.

        Args:
            x: images.
            block_inputs: see `u_net`.
            activate: applied to the result of the first layer.
        """
        x = self.embedding(x)
        x = x if activate is None else activate(x)
        encoder = [cast(nn.ModuleList, layers) for layers in self.encoder_layers]
        decoder = [cast(nn.ModuleList, layers) for layers in self.decoder_layers]
        return self.mapping(u_net(x, encoder, self.bottleneck, decoder, block_inputs))
