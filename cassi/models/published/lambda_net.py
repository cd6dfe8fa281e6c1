"""λ-Net: a U-Net of six scales with attention among all pixels of the third one."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, column_offsets, sheared_masks, unshear_bands
from cassi.models.layers import check_counts, join_channels, named_sequence, pad_to_multiple, u_net
from cassi.models.network import Network
from cassi.models.registry import register_model

# Number of resolutions, each half of the one before.
SCALES = 6
# Each of this many highest resolutions has three convolutions. Each lower one has two.
N_TRIPLE_SCALES = 4
# Index of the resolution whose pixels attend to each other: a quarter of the full resolution.
ATTENTION_SCALE = 2
# Number of queries whose scores are in memory at the same time; more queries take more memory.
QUERIES_AT_ONCE = 1024


def convolutions(inputs: int, outputs: int, scale: int) -> nn.Sequential:
    """Return the 3×3 convolutions of a resolution, with ReLU between them."""
    count = 3 if scale < N_TRIPLE_SCALES else 2
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1)]
    for _ in range(count - 1):
        layers += [nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3, padding=1)]
    name = "t_conv" if count == 3 else "d_conv"
    return named_sequence(**{name: nn.Sequential(*layers)})


class GlobalAttention(nn.Module):
    """x + γ softmax(QKᵀ/√d) V among all pixels, where Q and K have d = c/8 channels.

    Source: Miao et al., "λ-Net: Reconstruct hyperspectral images from a snapshot measurement",
    ICCV 2019, section 3.2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))
        self.to_q = nn.Linear(dim, dim // 8, bias=False)
        self.to_k = nn.Linear(dim, dim // 8, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, c, H, W)` to the same shape; memory grows with H·W, time with its square."""
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)  # (B, n, c)
        key, value = self.to_k(pixels), self.to_v(pixels)
        # The scores of all pixels are `(n, n)`. Computing them in blocks of queries saves memory.
        queries = self.to_q(pixels) * key.shape[-1] ** -0.5
        blocks = [
            torch.bmm(torch.bmm(query, key.mT).softmax(-1).to(value.dtype), value)
            for query in queries.split(QUERIES_AT_ONCE, 1)
        ]
        values = torch.cat(blocks, 1).mT.reshape(x.shape)
        return x + self.gamma * values


@register_model("lambda_net")
class LambdaNet(Network):
    """The generator of λ-Net, with the names of weights of the code that accompanies MST.

    The input is y and the sheared masks. All images in the network are as wide as the detector. At
    the end the window of each band is cut out.

    Args:
        bands: number C of bands.
        channels: channels at the highest resolution, an even number; every halving doubles them.

    Raises:
        ValueError: a count below 1, or an odd number of channels.

    Source: Miao, Yuan, Pu, Athitsos, "λ-Net: Reconstruct hyperspectral images from a snapshot
    measurement", ICCV 2019; names of the weights as in the code of Cai et al., CVPR 2022.
    """

    multiple = 2 ** (SCALES - 1)

    def __init__(self, bands: int = 28, channels: int = 32) -> None:
        super().__init__(bands)
        check_counts("LambdaNet", channels=channels)
        if channels % 2:
            raise ValueError(f"LambdaNet channels: expected an even number, got {channels}")
        self.conv_in = nn.Conv2d(1 + bands, bands, 3, padding=1)
        widths = [channels << scale for scale in range(SCALES)]
        scales = range(SCALES)
        for scale, inputs in zip(scales, (bands, *widths[:-1]), strict=True):
            self.add_module(f"conv_down{scale + 1}", convolutions(inputs, widths[scale], scale))
        for scale in reversed(scales[:-1]):
            up = nn.ConvTranspose2d(widths[scale + 1], widths[scale], 2, 2)
            self.add_module(f"upsample{scale + 1}", up)
        for scale in scales[:-1]:
            width = widths[scale]
            self.add_module(f"conv_up{scale + 1}", convolutions(2 * width, width, scale))
        self.attention = GlobalAttention(widths[ATTENTION_SCALE])
        self.conv_last1 = nn.Conv2d(channels, 6, 3, padding=1)
        self.conv_last2 = nn.Conv2d(channels + 6, channels, 3, padding=1)
        self.conv_last3 = nn.Conv2d(channels, 12, 3, padding=1)
        self.conv_last4 = nn.Conv2d(channels + 12, channels, 3, padding=1)
        self.conv_last5 = nn.Conv2d(channels, bands, 1)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        height, width = y.shape[-2:]
        masks = sheared_masks(y, system).expand(len(y), -1, -1, -1)
        first = self.conv_in(torch.cat((y * 2 / self.bands, masks), 1))
        first = pad_to_multiple(first, self.multiple, "mirror")
        # channels_last is faster on CPUs; on GPUs the caller decides.
        if not first.is_cuda:
            first = first.contiguous(memory_format=torch.channels_last)
        x = self._restore(first)
        x = self.conv_last2(torch.cat((x, self.conv_last1(x).relu()), 1))
        x = self.conv_last4(torch.cat((x, self.conv_last3(x).relu()), 1))
        x = (self.conv_last5(x) + first)[..., :height, :width]
        return unshear_bands(x, column_offsets(system), system.mask.shape[-1])

    def _restore(self, x: Tensor) -> Tensor:
        layer, scales = self.get_submodule, range(1, SCALES)
        pool = partial(F.max_pool2d, kernel_size=2)
        ups: dict[int, Callable[[Tensor], Tensor]] = {i: layer(f"conv_up{i}") for i in scales}
        coarse_block = ups[ATTENTION_SCALE + 1]
        ups[ATTENTION_SCALE + 1] = lambda x: self.attention(coarse_block(x))
        encoder = [(layer(f"conv_down{i}"), pool) for i in scales]
        decoder = [(layer(f"upsample{i}"), join_channels, ups[i]) for i in reversed(scales)]
        return u_net(x, encoder, layer(f"conv_down{SCALES}"), decoder)
