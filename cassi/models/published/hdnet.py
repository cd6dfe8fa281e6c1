"""HDNet: residual convolutions, with attention over pixels and over channels between them."""

import torch
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, initial_cube
from cassi.models.layers import ConvPair, ResidualSequence, check_counts
from cassi.models.network import Network
from cassi.models.registry import register_model


def residual_pair(width: int) -> ResidualSequence:
    """Return two 3×3 convolutions with a skip."""
    return ResidualSequence(body=ConvPair(width, width, rectify=False))


class DomainAttention(nn.Module):
    """A weight per channel and a weight per pixel, both computed from the whole image.

        out = x ⊙ sigmoid(W_up W_v X s) + x ⊙ sigmoid(softmax(tᵀX)),
        s = softmax(w_qX),   t = W_v'ᵀ W_q' mean(X)

    X is `(C, H·W)`. Only w_q is applied to whole images. W_v and W_up are applied to a weighted sum
    over pixels, and W_v' is part of the vector t.

    Source: Hu et al., "HDNet: high-resolution dual-domain learning for spectral compressive
    imaging", CVPR 2022, section 3.2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_q_right = nn.Conv2d(width, 1, 1, bias=False)
        self.conv_v_right = nn.Conv2d(width, width // 2, 1, bias=False)
        self.conv_up = nn.Conv2d(width // 2, width, 1, bias=False)
        self.conv_q_left = nn.Conv2d(width, width // 2, 1, bias=False)
        self.conv_v_left = nn.Conv2d(width, width // 2, 1, bias=False)
        for layer in (self.conv_q_right, self.conv_v_right, self.conv_q_left, self.conv_v_left):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same shape."""
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)  # (B, HW, C)
        pixel_weights = self.conv_q_right(x).flatten(2).softmax(-1)  # (B, 1, HW)
        mean_features = (pixel_weights.to(pixels.dtype) @ pixels).mT.unsqueeze(-1)  # (B, C, 1, 1)
        channel_gates = self.conv_up(self.conv_v_right(mean_features)).sigmoid()
        query = self.conv_q_left(x.mean((2, 3), keepdim=True))
        query = nn.functional.conv_transpose2d(query, self.conv_v_left.weight)  # (B, C, 1, 1)
        scores = (pixels @ query.flatten(1).unsqueeze(-1).to(pixels.dtype)).mT.softmax(-1)
        pixel_gates = scores.unflatten(-1, x.shape[-2:]).sigmoid()
        return x * (channel_gates + pixel_gates)


class PixelAttention(nn.Module):
    """x ⊙ (1 + softmax(s)): a weight per pixel, with scores s of two 1×1 convolutions of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_dws = nn.Conv2d(width, width, 1, groups=width)
        self.bn_dws = nn.BatchNorm2d(width, momentum=0.9)
        self.maxpool = nn.MaxPool2d(3, 1, 1)
        self.conv_point = nn.Conv2d(width, 1, 1)
        self.bn_point = nn.BatchNorm2d(1, momentum=0.9)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same shape."""
        scores = self.maxpool(self.bn_dws(self.conv_dws(x)).relu())
        scores = self.bn_point(self.conv_point(scores)).relu()
        weights = scores.flatten(2).softmax(-1).view_as(scores)
        return torch.addcmul(x, x, weights.to(x.dtype))


class FeatureFusion(nn.Module):
    """Attention over pixels, separate for each group of channels."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.subspaces = nn.ModuleList(PixelAttention(width // groups) for _ in range(groups))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same shape."""
        parts = x.chunk(len(self.subspaces), 1)
        results = [attend(part) for attend, part in zip(self.subspaces, parts, strict=True)]
        return torch.cat(results, 1)


@register_model("hdnet")
class HDNet(Network):
    """HDNet, the high-resolution dual-domain network; weights have their published names.

    The network does not use the mask. In evaluation mode its batch normalization uses stored
    statistics.

    Args:
        bands: number C of bands.
        width: channels of the features, a multiple of `groups` and of 2.
        blocks: number of residual blocks before the attention; blocks − 1 follow after it.
        groups: number of channel groups, each with its own attention.

    Raises:
        ValueError: a count is below 1, or the width is not a multiple of `groups` and of 2.

    Source: Hu et al., "HDNet: high-resolution dual-domain learning for spectral compressive
    imaging", CVPR 2022.
    """

    def __init__(self, bands: int = 28, width: int = 64, blocks: int = 16, groups: int = 4) -> None:
        super().__init__(bands)
        check_counts("HDNet", width=width, blocks=blocks, groups=groups)
        if width % groups or width % 2:
            raise ValueError(f"HDNet width: expected a multiple of {groups} and 2, got {width}")
        self.head = nn.Sequential(nn.Conv2d(bands, width, 3, padding=1))
        self.body = nn.Sequential(
            *(residual_pair(width) for _ in range(blocks)),
            DomainAttention(width),
            FeatureFusion(width, groups),
            *(residual_pair(width) for _ in range(blocks - 1)),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.tail = nn.Sequential(nn.Conv2d(width, bands, 3, padding=1))

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        features = self.head(initial_cube(y, system))
        return self.tail(self.body(features) + features)
