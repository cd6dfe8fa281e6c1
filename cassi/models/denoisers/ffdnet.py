"""FFDNet: a denoiser at half resolution, with a channel for the noise level."""

import torch
from torch import Tensor, nn

from cassi.models.denoisers.dncnn import conv_stack
from cassi.models.layers import (
    check_counts,
    check_images,
    level_map,
    pad_to_multiple,
    pixel_shuffle,
    pixel_unshuffle,
)


class FFDNet(nn.Module):
    """Convolutions at half resolution; one more input channel holds the noise level.

        net(x, σ) = shuffle(R([unshuffle(x), σ]))

    `unshuffle` turns each 2×2 block of pixels into channels. Images of odd sizes are padded by
    repeating the last row and column, and the result is cropped.

    Args:
        channels: channels of the input; 1 in `ffdnet_gray.pth`, 3 in `ffdnet_color.pth`.
        outputs: channels of the output; `channels` if None. If channels=7, outputs=1 and
            width=128, this is HSI-SDeCNN: it denoises the middle one of seven bands.
        width: channels between the convolutions, 64 (grey) or 96 (colour).
        depth: number of convolutions, 15 (grey) or 12 (colour).
        batch_norm: normalize after each inner convolution; the published files need False.

    Raises:
        ValueError: a count below 1, or a depth below 2.

    Source: Zhang, Zuo, Zhang, "FFDNet: toward a fast and flexible solution for CNN-based image
    denoising", TIP 2018; names of the weights as in KAIR's `ffdnet_*.pth`. Maffei et al., "A single
    model CNN for hyperspectral image denoising", TGRS 2020.
    """

    def __init__(
        self,
        channels: int = 1,
        outputs: int | None = None,
        width: int = 64,
        depth: int = 15,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        outputs = channels if outputs is None else outputs
        check_counts("FFDNet", channels=channels, outputs=outputs, width=width, depth=depth)
        if depth < 2:
            raise ValueError(f"FFDNet depth: expected at least 2, got {depth}")
        self.channels = channels
        self.model = conv_stack(4 * channels + 1, 4 * outputs, width, depth, batch_norm)

    def forward(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise images `(N, channels, H, W)` in [0, 1].

        Args:
            x: noisy images.
            sigma: standard deviation of the noise, in the unit of x: a number, or `(N,)`.

        Returns:
            `(N, outputs, H, W)`.

        Raises:
            ValueError: x or σ has another shape.
        """
        check_images("FFDNet", x, self.channels)
        height, width = x.shape[-2:]
        blocks = pixel_unshuffle(pad_to_multiple(x, 2), 2)
        shuffled_image = self.model(torch.cat((blocks, level_map("FFDNet", sigma, blocks)), 1))
        return pixel_shuffle(shuffled_image, 2)[..., :height, :width]
