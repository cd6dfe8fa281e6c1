"""TSA-Net: a U-Net with attention over rows, columns and bands, one after another."""

import math
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, band_masks, initial_cube
from cassi.models.layers import check_counts, named_sequence, pad_to_multiple
from cassi.models.network import Network
from cassi.models.registry import register_model

Pair = tuple[int, int]


def conv_block(
    inputs: int, outputs: int, kernel: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0
) -> nn.Sequential:
    """Return a convolution, a batch normalization and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def pointwise_batch_norm(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 1×1 convolution and a batch normalization."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class SpatialFeatures(nn.Module):
    """A feature vector for each row of an image and each head.

    The linear layer spans all columns. So features with another number of columns than `length` are
    interpolated. To get features of columns, the caller transposes the image.
    """

    def __init__(self, channels: int, heads: int, length: int, outputs: int, level: int) -> None:
        super().__init__()
        kernel, stride, padding = ((1, 5), (3, 5)), ((1, 2), (2, 2)), ((0, 2), (1, 2))
        # Each of the two convolutions halves the columns. If the level is at least 1, the first
        # also halves the rows. If the level is at least 2, the second one does so, too.
        first_kind, second_kind = level > 0, level > 1
        self.conv1 = conv_block(
            channels, heads, kernel[first_kind], stride[first_kind], padding[first_kind]
        )
        self.conv2 = conv_block(
            heads, heads, kernel[second_kind], stride[second_kind], padding[second_kind]
        )
        self.fully = nn.Sequential(nn.Linear(length, outputs), nn.ReLU(inplace=True))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, heads, H / 2^level, outputs)`."""
        features = self.conv2(self.conv1(x))
        if features.shape[-1] != self.length:
            size = (features.shape[-2], self.length)
            features = F.interpolate(features, size, mode="bilinear", align_corners=False)
        return self.fully(features)


class SpectralFeatures(nn.Module):
    """A feature vector for each channel and head; features are interpolated to a fixed size."""

    def __init__(self, channels: int, heads: int, size: Pair, outputs: int) -> None:
        super().__init__()
        self.conv1 = conv_block(channels, channels, 5, 2)
        self.conv2 = conv_block(channels, channels, 5, 2)
        self.fully = nn.Sequential(
            nn.Linear(size[0] * size[1], heads * outputs), nn.ReLU(inplace=True)
        )
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, C, heads · outputs)`."""
        features = self.conv2(self.conv1(x))
        if tuple(features.shape[-2:]) != self.size:
            features = F.interpolate(features, self.size, mode="bilinear", align_corners=False)
        return self.fully(features.flatten(2))


def neighbour_bias(count: int) -> Tensor:
    """Return a raised cosine, 1 for equal channels and 0 for the most distant: `(1, n, n)`."""
    index = torch.arange(count, dtype=torch.float64)
    distance = (index[:, None] - index) / max(count - 1, 1)
    return ((torch.cos(distance * math.pi) + 1) / 2).float().unsqueeze(0)


class TripleAttention(nn.Module):
    """Attention over rows, then over columns, then over channels, each with several heads.

        out = x + γ Σ_heads W_h (A_rows V A_columnsᵀ) A_channelsᵀ

    V are the values of a head. The matrices A are its attention weights.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        size: height and width for which the linear layers are made.
        dims: lengths of feature vectors. First: of a row or column. Second: of a channel.
        level: number of halvings of the image before rows and columns attend.
        favours_neighbours: whether a bias favours neighbouring channels.
        heads: number of heads.

    Source: Meng, Ma, Yuan, "End-to-end low cost compressive spectral imaging with spatial-spectral
    self-attention", ECCV 2020, section 4.2.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Pair,
        dims: Pair,
        level: int,
        favours_neighbours: bool = False,
        heads: int = 8,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.uSpatial = nn.Parameter(torch.tensor(float(dims[0])), requires_grad=False)
        self.uSpectral = nn.Parameter(torch.tensor(float(dims[1])), requires_grad=False)
        self.mask = self.attn_scale = None
        if favours_neighbours:
            self.mask = nn.Parameter(neighbour_bias(outputs), requires_grad=False)
            self.attn_scale = nn.Parameter(torch.tensor(1.1), requires_grad=False)
        self.gamma = nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.down_sample = self.up_sample = None
        if level:
            widths = [outputs << i for i in range(level + 1)]
            self.down_sample = nn.Sequential(
                *(conv_block(a, b, 3, 2, 1) for a, b in pairwise(widths))
            )
            self.up_sample = nn.ConvTranspose2d(widths[-1], outputs, 2**level, 2**level)
        rows, columns = (n // 4 for n in size)
        spectral = (rows - 3, columns - 3)
        self.preproc = pointwise_batch_norm(inputs, outputs)
        self.query_x = SpatialFeatures(outputs, heads, columns, dims[0], level)
        self.query_y = SpatialFeatures(outputs, heads, rows, dims[0], level)
        self.query_lambda = SpectralFeatures(outputs, heads, spectral, dims[1])
        self.key_x = SpatialFeatures(outputs, heads, columns, dims[0], level)
        self.key_y = SpatialFeatures(outputs, heads, rows, dims[0], level)
        self.key_lambda = SpectralFeatures(outputs, heads, spectral, dims[1])
        self.value = pointwise_batch_norm(outputs, heads * outputs)
        self.aggregation = nn.Linear(heads * outputs, outputs)

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, inputs, H, W)` to `(B, outputs, H, W)`."""
        x = self.preproc(image)
        b, c, h, w = x.shape
        transposed_x = x.mT
        row_attention = attention_weights(self.query_x(x), self.key_x(x), self.uSpatial)
        column_attention = attention_weights(
            self.query_y(transposed_x), self.key_y(transposed_x), self.uSpatial
        )
        query, key = (
            features.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for features in (self.query_lambda(x), self.key_lambda(x))
        )
        band_attention = attention_weights(query, key, self.uSpectral)  # (B, heads, C, C)
        if self.mask is not None and self.attn_scale is not None:
            band_attention = (band_attention + self.mask) / torch.sqrt(self.attn_scale)

        value = self.value(x).unflatten(1, (self.heads, c)).flatten(0, 1)  # (B·heads, C, H, W)
        if self.down_sample is not None:
            value = self.down_sample(value)
        value = torch.einsum("nxp,ncpw->ncxw", row_attention.flatten(0, 1), value)
        value = torch.einsum("nyq,nchq->nchy", column_attention.flatten(0, 1), value)
        if self.up_sample is not None:
            value = self.up_sample(value)
        # The attention among channels and the sum over heads are both linear in V. So one matrix
        # product computes both.
        weight = self.aggregation.weight.unflatten(-1, (self.heads, c))  # (C, heads, C)
        mixture = torch.einsum("bhij,ohi->bohj", band_attention, weight).flatten(2)  # (B, C, h·C)
        value = value.reshape(b, self.heads * c, h * w)
        result = (mixture @ value).view(b, c, h, w) + self.aggregation.bias.view(-1, 1, 1)
        return self.gamma * result + x


def attention_weights(query: Tensor, key: Tensor, scale: Tensor) -> Tensor:
    """Return softmax(QKᵀ/√scale) of `(…, n, d)`: `(…, n, n)`."""
    return (query @ key.mT / torch.sqrt(scale)).softmax(-1)


def plain_block(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 3×3 convolution and a ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True))


class Res2Net(nn.Module):
    """Convolve groups of channels, one after another.

    Each group is convolved after the result of the group before was added to it. As in the code of
    TSA-Net, the last group is not convolved, and there is no skip connection.

    Source: Gao et al., "Res2Net: a new multi-scale backbone architecture", TPAMI 2021.
    """

    def __init__(self, channels: int, width: int, scale: int = 4) -> None:
        super().__init__()
        self.conv_init = nn.Conv2d(channels, width * scale, 1, bias=False)
        self.bn_init = nn.BatchNorm2d(width * scale)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(scale - 1)
        )
        self.bns = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(scale - 1))
        self.conv_end = nn.Conv2d(width * scale, channels, 1, bias=False)
        self.bn_end = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same shape."""
        *groups, unchanged_group = (
            self.bn_init(self.conv_init(x)).relu_().chunk(len(self.convs) + 1, 1)
        )
        outputs: list[Tensor] = []
        for group, conv, norm in zip(groups, self.convs, self.bns, strict=True):
            outputs.append(norm(conv(outputs[-1] + group if outputs else group)).relu_())
        return self.bn_end(self.conv_end(torch.cat((*outputs, unchanged_group), 1)))


def make_encoder(inputs: int, outputs: int, is_deep: bool) -> nn.Sequential:
    """Return two layers. The second one is a `Res2Net` if `is_deep`, else a convolution."""
    first_layer = plain_block(inputs, outputs)
    second_layer = Res2Net(outputs, outputs // 4) if is_deep else plain_block(outputs, outputs)
    return named_sequence(layer1=first_layer, layer2=second_layer)


class Decoder(nn.Module):
    """Upsample features and fuse them with the features of the encoder."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.ReLU(inplace=True)
        )
        self.layer2 = Res2Net(2 * outputs, outputs // 2)
        self.layer3 = plain_block(2 * outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Map `(B, inputs, H/2, W/2)` and `(B, outputs, H, W)` to `(B, outputs, H, W)`."""
        return self.layer3(self.layer2(torch.cat((self.layer1(x), skip), 1)))


@register_model("tsa_net")
class TSANet(Network):
    """TSA-Net, with attention over rows, columns and bands; weights have their published names.

    The input is the initial cube times the mask. Linear layers span whole rows, columns and images.
    For images of another size than `size` the inputs of these layers are interpolated. The
    network should then be trained again.

    Args:
        bands: number C of bands.
        size: H and W of the images for which the network is made: multiples of 16, at least 64.

    Raises:
        ValueError: a count is below 1, or H or W is below 64 or not a multiple of 16.

    Source: Meng, Ma, Yuan, "End-to-end low cost compressive spectral imaging with spatial-spectral
    self-attention", ECCV 2020.
    """

    min_side, multiple = 64, 16
    """Smallest height and width of `size`, and a number that must divide both.

    The image is halved four times, so the divisor is 16. A quarter of 64 pixels is enough for two
    5×5 convolutions with stride 2."""

    def __init__(self, bands: int = 28, size: Pair = (256, 256)) -> None:
        super().__init__(bands)
        size = cast(Pair, tuple(size))
        check_counts("TSANet", height=size[0], width=size[1])
        if min(size) < self.min_side or size[0] % self.multiple or size[1] % self.multiple:
            raise ValueError(
                f"TSANet size: expected multiples of {self.multiple}, at least {self.min_side}, "
                f"got {size}"
            )
        half, quarter = ((size[0] // n, size[1] // n) for n in (2, 4))
        self.tconv_down1 = make_encoder(bands, 64, is_deep=False)
        self.tconv_down2 = make_encoder(64, 128, is_deep=False)
        self.tconv_down3 = make_encoder(128, 256, is_deep=True)
        self.tconv_down4 = make_encoder(256, 512, is_deep=True)
        self.bottom1 = plain_block(512, 1024)
        self.bottom2 = plain_block(1024, 1024)
        self.tconv_up4 = Decoder(1024, 512)
        self.tconv_up3 = Decoder(512, 256)
        self.transform3 = TripleAttention(256, 256, quarter, (64, 80), level=0)
        self.tconv_up2 = Decoder(256, 128)
        self.transform2 = TripleAttention(128, 128, half, (64, 40), level=1)
        self.tconv_up1 = Decoder(128, 64)
        self.transform1 = TripleAttention(
            64, bands, size, (48, 30), level=2, favours_neighbours=True
        )
        self.conv_last = nn.Conv2d(bands, bands, 1)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`, in (0, 1)."""
        height, width = system.mask.shape[-2:]
        x = initial_cube(y, system) * band_masks(y, system)
        x = pad_to_multiple(x, self.multiple, min_size=self.min_side)
        e1 = self.tconv_down1(x)
        e2 = self.tconv_down2(F.max_pool2d(e1, 2))
        e3 = self.tconv_down3(F.max_pool2d(e2, 2))
        e4 = self.tconv_down4(F.max_pool2d(e3, 2))
        bottom = self.bottom2(self.bottom1(F.max_pool2d(e4, 2)))
        d3 = self.transform3(self.tconv_up3(self.tconv_up4(bottom, e4), e3))
        d2 = self.transform2(self.tconv_up2(d3, e2))
        d1 = self.transform1(self.tconv_up1(d2, e1))
        return self.conv_last(d1).sigmoid()[..., :height, :width]
