"""DRUNet: a denoising U-Net of residual blocks, with a channel for the noise level."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cassi.models.layers import (
    ConvPair,
    ResidualSequence,
    check_counts,
    check_images,
    level_map,
    pad_to_multiple,
    pixel_shuffle,
    pixel_unshuffle,
)
from cassi.ops import convolve3x3


class DRUNet(nn.Module):
    """A U-Net of residual blocks without biases; one more input channel holds the noise level.

        net(x, σ) = U([x, σ]),   or x − U([x, σ]) if `residual`

    Because there are no biases, net(c·x, c·σ) = c·net(x, σ) for c > 0. So one network also removes
    noise that is far stronger than in its training. Height and width are free: images are padded to
    a multiple of 8·`shuffle` by repeating the last row and column, and the result is cropped.

    Args:
        channels: channels of an image; 1 in `drunet_gray.pth`, 3 in `drunet_color.pth`.
        widths: channels at each of the four resolutions.
        blocks: number of residual blocks at each resolution, in encoder and in decoder.
        shuffle: side of the pixel blocks that are turned into channels before the first
            convolution. The network is four times as fast with 2 as with 1.
        residual: predict the noise instead of the image.

    Raises:
        ValueError: a count below 1, or not four widths.

    Source: Zhang et al., "Plug-and-play image restoration with deep denoiser prior", TPAMI 2021,
    section 3; names of the weights as in KAIR's `drunet_*.pth`.
    """

    def __init__(
        self,
        channels: int = 1,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: int = 4,
        shuffle: int = 1,
        residual: bool = False,
    ) -> None:
        super().__init__()
        check_counts("DRUNet", channels=channels, blocks=blocks, shuffle=shuffle)
        if len(widths) != 4:
            raise ValueError(f"DRUNet widths: expected four, got {list(widths)}")
        check_counts("DRUNet", **{f"widths[{i}]": width for i, width in enumerate(widths)})
        self.channels, self.shuffle, self.residual = channels, shuffle, residual
        width_1, width_2, width_3, width_4 = widths
        pixels = channels * shuffle**2

        def make_blocks(width: int) -> list[nn.Module]:
            return [
                ResidualSequence(res=ConvPair(width, width, bias=False, rectify=False))
                for _ in range(blocks)
            ]

        def make_down(width: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                *make_blocks(width), nn.Conv2d(width, outputs, 2, stride=2, bias=False)
            )

        def make_up(outputs: int, width: int) -> nn.Sequential:
            grow = nn.ConvTranspose2d(outputs, width, 2, stride=2, bias=False)
            return nn.Sequential(grow, *make_blocks(width))

        self.m_head = nn.Conv2d(pixels + 1, width_1, 3, padding=1, bias=False)
        self.m_down1 = make_down(width_1, width_2)
        self.m_down2 = make_down(width_2, width_3)
        self.m_down3 = make_down(width_3, width_4)
        self.m_body = nn.Sequential(*make_blocks(width_4))
        self.m_up3 = make_up(width_4, width_3)
        self.m_up2 = make_up(width_3, width_2)
        self.m_up1 = make_up(width_2, width_1)
        self.m_tail = nn.Conv2d(width_1, pixels, 3, padding=1, bias=False)

    def forward(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise images `(N, channels, H, W)` in [0, 1].

        Args:
            x: noisy images.
            sigma: standard deviation of the noise, in the unit of x: a number, or `(N,)`.

        Returns:
            `(N, channels, H, W)`.

        Raises:
            ValueError: x or σ has another shape.
        """
        check_images("DRUNet", x, self.channels)
        height, width = x.shape[-2:]
        level = level_map("DRUNet", sigma, x)
        padded = pad_to_multiple(x, 8 * self.shuffle)
        if self.shuffle > 1:
            padded = pixel_unshuffle(padded, self.shuffle)
        # The level is the same at all pixels of an image, so one pixel of its map is expanded to
        # the size of the shuffled image.
        plane = level[..., :1, :1].expand(-1, -1, *padded.shape[-2:])
        x1 = convolve3x3(torch.cat((padded, plane), 1), self.m_head.weight)
        x2 = self.m_down1(x1)
        x3 = self.m_down2(x2)
        x4 = self.m_down3(x3)
        u = self.m_up3(self.m_body(x4) + x4)
        u = self.m_up2(u + x3)
        u = convolve3x3(self.m_up1(u + x2) + x1, self.m_tail.weight)
        if self.shuffle > 1:
            u = pixel_shuffle(u, self.shuffle)
        u = u[..., :height, :width]
        return x - u if self.residual else u
