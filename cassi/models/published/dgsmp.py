"""DGSMP: unrolled gradient steps with a learned Gaussian scale mixture prior."""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, band_windows, initial_cube, sum_windows
from cassi.models.layers import ConvPair, ResidualSequence, check_counts, pad_to_multiple
from cassi.models.network import Network
from cassi.models.registry import register_model


def convolution(inputs: int, outputs: int, kernel: int = 3) -> nn.Conv2d:
    """Return a convolution that keeps the size of the image."""
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)


def residual_pairs(width: int) -> ResidualSequence:
    """Return two pairs of 3×3 convolutions, each with a skip."""
    return ResidualSequence(
        block1=ConvPair(width, width, rectify=False), block2=ConvPair(width, width, rectify=False)
    )


def output_layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return two 3×3 convolutions and a 1×1 convolution."""
    return nn.Sequential(
        convolution(inputs, width),
        nn.ReLU(inplace=True),
        convolution(width, outputs),
        nn.ReLU(inplace=True),
        convolution(outputs, outputs, 1),
    )


class Encoding(nn.Module):
    """The encoder, which returns features at five sizes, each half of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.E1 = ConvPair(32, 32)
        self.E2 = ConvPair(32, 64)
        self.E3 = ConvPair(64, 64)
        self.E4 = ConvPair(64, 128)
        self.E5 = ConvPair(128, 128)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Map `(B, 32, H, W)` to five feature images; H and W are multiples of 16."""
        features = [self.E1(x)]
        for layer in (self.E2, self.E3, self.E4, self.E5):
            features.append(layer(F.avg_pool2d(features[-1], 2)))
        return features


class Decoding(nn.Module):
    """The decoder: it returns the weight w of the prior, and features.

    From these features, `filter_g_1` to `filter_g_3` compute the filters of u. `DGSMP` calls them.
    """

    def __init__(self, bands: int, taps: int) -> None:
        super().__init__()
        self.D1 = ConvPair(128 + 128, 128)
        self.D2 = ConvPair(128 + 64, 64)
        self.D3 = ConvPair(64 + 64, 64)
        self.D4 = ConvPair(64 + 32, 32)
        self.w_generator = output_layers(32, 32, bands)
        self.filter_g_1 = output_layers(64 + 32, bands * taps, bands * taps)
        self.filter_g_2 = output_layers(64 + 32, bands * taps, bands * taps)
        self.filter_g_3 = output_layers(64 + 32, bands * taps, bands * taps)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Map the features of `Encoding` to w `(B, C, H, W)` and features `(B, 96, H, W)`."""
        *skips, x = features
        for layer in (self.D1, self.D2, self.D3):
            x = layer(upsample_and_join(skips.pop(), x))
        features_and_skip = upsample_and_join(skips.pop(), x)
        return self.w_generator(self.D4(features_and_skip)), features_and_skip


def upsample_and_join(skip: Tensor, x: Tensor) -> Tensor:
    """Upsample the features x by 2, and join their channels with those of `skip`."""
    return torch.cat((skip, F.interpolate(x, scale_factor=2, mode="bilinear")), 1)


def apply_filters(x: Iterator[Tensor], filters: Tensor, bands: int) -> Tensor:
    """Return Σ_i f_i x_i / |f| for shifted cubes x_i and filters f `(B, taps · C, H, W)`."""
    f = filters.split(bands, 1)
    total, squared_norm = f[0] * next(x), f[0].square()
    for f_i, shifted_cube in zip(f[1:], x, strict=True):
        total = torch.addcmul(total, f_i, shifted_cube)
        squared_norm = torch.addcmul(squared_norm, f_i, f_i)
    # The published code keeps norms above 1e-12.
    return total / squared_norm.clamp_min(1e-24).sqrt()


@register_model("dgsmp")
class DGSMP(Network):
    """DGSMP, the deep Gaussian scale mixture prior; weights have their published names.

    A is a learned network followed by the camera's shifts and sum. Aᵀ is the adjoint of shifts and
    sum followed by another learned network. The mask is not used. Each stage is

        x ← x − 2δ (Aᵀ(Ax − y) + w ⊙ (x − u))

    δ is learned. u is a local mean of x. A U-Net gets features of all cubes so far. It returns w
    and the 3-D filters that compute u.

    Args:
        bands: number C of bands.
        stages: number of gradient steps.
        taps: length of the filters along each axis, odd.

    Raises:
        ValueError: a count below 1, or an even number of taps.

    Source: Huang et al., "Deep Gaussian scale mixture prior for spectral compressive imaging",
    CVPR 2021, equations 9 to 14.
    """

    def __init__(self, bands: int = 28, stages: int = 4, taps: int = 7) -> None:
        super().__init__(bands)
        check_counts("DGSMP", stages=stages, taps=taps)
        if taps % 2 == 0:
            raise ValueError(f"DGSMP taps: expected an odd number, got {taps}")
        self.stages, self.taps = stages, taps
        self.AT, self.A = (
            nn.Sequential(
                convolution(bands, 64),
                nn.LeakyReLU(inplace=True),
                residual_pairs(64),
                residual_pairs(64),
                convolution(64, bands),
                nn.LeakyReLU(inplace=True),
            )
            for _ in range(2)
        )
        self.Encoding = Encoding()
        self.Decoding = Decoding(bands, taps)
        self.conv = convolution(bands, 32)
        for stage in range(stages):
            self.add_module(f"Den_con{stage + 1}", convolution(32 * (stage + 1), 32, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_normal_(module.weight)
                nn.init.zeros_(cast(Tensor, module.bias))
        for stage in range(stages):
            delta = nn.Parameter(torch.empty(1).normal_(0.1, 0.01))
            self.register_parameter(f"delta_{stage}", delta)

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        # The measurement is scaled to the brightness of one band, as in `initial_cube`.
        x = initial_cube(y, system)
        y = y * 2 / system.bands
        features: list[Tensor] = []
        for stage in range(self.stages):
            simulation = sum_windows(self.A(x).to(y.dtype), system)
            data_gradient = self.AT(band_windows(simulation - y, system))
            features.append(self.conv(x))
            fused_features = self.get_submodule(f"Den_con{stage + 1}")(torch.cat(features, 1))
            change = data_gradient + self._prior_gradient(x, fused_features)
            x = x - 2 * self.get_parameter(f"delta_{stage}") * change
        return x

    def _prior_gradient(self, x: Tensor, features: Tensor) -> Tensor:  # w ⊙ (x − u)
        height, width = x.shape[-2:]
        w, filter_features = self.Decoding(self.Encoding(pad_to_multiple(features, 16, "reflect")))
        local_mean = x
        for axis, layer in (
            (3, self.Decoding.filter_g_1),
            (2, self.Decoding.filter_g_2),
            (1, self.Decoding.filter_g_3),
        ):
            filters = layer(filter_features)[..., :height, :width]
            local_mean = apply_filters(self._shifted_copies(local_mean, axis), filters, self.bands)
        return (x - local_mean) * w[..., :height, :width]

    def _shifted_copies(self, x: Tensor, axis: int) -> Iterator[Tensor]:
        radius = self.taps // 2
        if axis == 1:
            # As in the published code, bands before the first and after the last one are zero,
            # whereas images are padded by repeating their border pixels.
            padded = F.pad(x, (0, 0, 0, 0, radius, radius))
        else:
            sides = (radius, radius, 0, 0) if axis == 3 else (0, 0, radius, radius)
            padded = F.pad(x, sides, mode="replicate")
        return (padded.narrow(axis, i, x.shape[axis]) for i in range(self.taps))
