"""A network for the deep image prior."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.checks import whole_number
from cassi.models.layers import check_counts, check_images, pad_to_multiple


def _layer(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    # The network sees one image again and again: statistics are those of the image, never stored.
    return nn.Sequential(
        nn.ReflectionPad2d(kernel // 2),
        nn.Conv2d(inputs, outputs, kernel, stride=stride, bias=False),
        nn.BatchNorm2d(outputs, track_running_stats=False),
        nn.LeakyReLU(0.2, inplace=True),
    )


class Hourglass(nn.Module):
    """Encoder and decoder that start from random weights and are fitted to one cube.

    At each of `depth` levels the image is halved by a strided convolution and later doubled by
    bilinear interpolation; `skip` channels pass by each level. That structure renders smooth and
    repeating content long before it renders noise, which is all the prior there is. Any height and
    width: the input is padded to a multiple of 2^`depth`, at least twice that, and cropped.

    Args:
        bands: channels of input and output.
        width: channels inside.
        depth: how often the resolution is halved.
        skip: channels that pass by each level; 0 forces everything through the waist.

    Raises:
        ValueError: a count below 1.

    Source: Ulyanov, Vedaldi, Lempitsky, "Deep image prior", CVPR 2018, supplement 1; without skips
    as in Meng et al., "Self-supervised neural networks for spectral snapshot compressive imaging",
    ICCV 2021.
    """

    def __init__(self, bands: int, width: int = 64, depth: int = 4, skip: int = 4) -> None:
        super().__init__()
        check_counts("Hourglass", bands=bands, width=width, depth=depth)
        whole_number("Hourglass skip", skip, 0)
        self.bands, self.depth = bands, depth
        widths = [bands] + [width] * depth
        self.down = nn.ModuleList(
            nn.Sequential(_layer(c, width, stride=2), _layer(width, width)) for c in widths[:-1]
        )
        self.skips = nn.ModuleList(_layer(c, skip, 1) for c in widths[:-1] if skip)
        self.up = nn.ModuleList(
            nn.Sequential(_layer(width + skip, width), _layer(width, width, 1))
            for _ in range(depth)
        )
        self.tail = nn.Conv2d(width, bands, 1)

    def forward(self, z: Tensor) -> Tensor:
        """Render a cube `(N, bands, H, W)` from one of the same shape.

        Raises:
            ValueError: another shape.
        """
        check_images("Hourglass", z, self.bands)
        height, width = z.shape[-2:]
        # Two pixels at the waist: one alone has no variance to normalize by.
        least = 2 ** (self.depth + 1)
        x = pad_to_multiple(z, least // 2, least=least)
        passed = []
        for level, down in enumerate(self.down):
            passed.append(self.skips[level](x) if len(self.skips) else None)
            x = down(x)
        for up, beside in zip(reversed(self.up), reversed(passed), strict=True):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = up(x if beside is None else torch.cat((x, beside), 1))
        cube: Tensor = self.tail(x)
        return cube[..., :height, :width]
