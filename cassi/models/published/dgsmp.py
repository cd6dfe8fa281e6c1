"""DGSMP: unrolled gradient steps with a learnt Gaussian scale mixture prior."""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.grid import Camera, initial_cube, overlay, windows
from cassi.models.layers import ConvPair, Residuals, check_counts, pad_to_multiple
from cassi.models.network import Network
from cassi.models.registry import register_model


def convolution(inputs: int, outputs: int, kernel: int = 3) -> nn.Conv2d:
    """Convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)


def residual(width: int) -> Residuals:
    """Return two pairs of 3×3 convolutions, each with a skip."""
    return Residuals(
        block1=ConvPair(width, width, rectify=False), block2=ConvPair(width, width, rectify=False)
    )


def head(inputs: int, inner: int, outputs: int) -> nn.Sequential:
    """Two 3×3 convolutions and a 1×1."""
    return nn.Sequential(
        convolution(inputs, inner),
        nn.ReLU(inplace=True),
        convolution(inner, outputs),
        nn.ReLU(inplace=True),
        convolution(outputs, outputs, 1),
    )


class Encoding(nn.Module):
    """Features at five sizes, each half the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.E1 = ConvPair(32, 32)
        self.E2 = ConvPair(32, 64)
        self.E3 = ConvPair(64, 64)
        self.E4 = ConvPair(64, 128)
        self.E5 = ConvPair(128, 128)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Map `(B, 32, H, W)`, multiples of 16, to five features."""
        features = [self.E1(x)]
        for layer in (self.E2, self.E3, self.E4, self.E5):
            features.append(layer(F.avg_pool2d(features[-1], 2)))
        return features


class Decoding(nn.Module):
    """The weight of the prior and the filters of the local mean, at each pixel and band."""

    def __init__(self, bands: int, taps: int) -> None:
        super().__init__()
        self.D1 = ConvPair(128 + 128, 128)
        self.D2 = ConvPair(128 + 64, 64)
        self.D3 = ConvPair(64 + 64, 64)
        self.D4 = ConvPair(64 + 32, 32)
        self.w_generator = head(32, 32, bands)
        self.filter_g_1 = head(64 + 32, bands * taps, bands * taps)
        self.filter_g_2 = head(64 + 32, bands * taps, bands * taps)
        self.filter_g_3 = head(64 + 32, bands * taps, bands * taps)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Map the features of `Encoding` to w `(B, C, H, W)` and what the filters are made of."""
        *skips, x = features
        for layer in (self.D1, self.D2, self.D3):
            x = layer(beside(skips.pop(), x))
        joined = beside(skips.pop(), x)
        return self.w_generator(self.D4(joined)), joined


def beside(skip: Tensor, x: Tensor) -> Tensor:
    """Join features with others of half the size."""
    return torch.cat((skip, F.interpolate(x, scale_factor=2, mode="bilinear")), 1)


def filtered(x: Iterator[Tensor], cores: Tensor, bands: int) -> Tensor:
    """Return Σ_i f_i x_i / |f|: the moved cubes x_i, filters `(B, taps · C, H, W)`."""
    f = cores.split(bands, 1)
    total, square = f[0] * next(x), f[0].square()
    for core, moved in zip(f[1:], x, strict=True):
        total = torch.addcmul(total, core, moved)
        square = torch.addcmul(square, core, core)
    # 1e-12 is the published floor of a norm.
    return total / square.clamp_min(1e-24).sqrt()


@register_model("dgsmp")
class DGSMP(Network):
    """The deep Gaussian scale mixture prior, with the published names of weights.

    With A and Aᵀ learnt between shifts and sums (the mask is not seen), each stage is

        x ← x − 2δ (Aᵀ(Ax − y) + w ⊙ (x − u)),

    where w and the 3-D filters that make the local mean u come from a U-Net of all estimates so
    far.

    Args:
        bands: number C of bands.
        stages: gradient steps.
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
                residual(64),
                residual(64),
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

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: `(B, 1, H, W')` → `(B, C, H, W)`."""
        x = initial_cube(y, system)
        y = y * 2 / system.bands
        seen: list[Tensor] = []
        for stage in range(self.stages):
            simulated = overlay(self.A(x).to(y.dtype), system)
            back = self.AT(windows(simulated - y, system))
            seen.append(self.conv(x))
            fused = self.get_submodule(f"Den_con{stage + 1}")(torch.cat(seen, 1))
            change = back + self._prior(x, fused)
            x = x - 2 * self.get_parameter(f"delta_{stage}") * change
        return x

    def _prior(self, x: Tensor, fused: Tensor) -> Tensor:  # w ⊙ (x − u)
        height, width = x.shape[-2:]
        w, joined = self.Decoding(self.Encoding(pad_to_multiple(fused, 16, "reflect")))
        u = x
        for axis, layer in (
            (3, self.Decoding.filter_g_1),
            (2, self.Decoding.filter_g_2),
            (1, self.Decoding.filter_g_3),
        ):
            cores = layer(joined)[..., :height, :width]
            u = filtered(self._moved(u, axis), cores, self.bands)
        return (x - u) * w[..., :height, :width]

    def _moved(self, x: Tensor, axis: int) -> Iterator[Tensor]:
        reach = self.taps // 2
        if axis == 1:
            # As published: zeros beyond the first and last band, repeated pixels at the borders.
            padded = F.pad(x, (0, 0, 0, 0, reach, reach))
        else:
            sides = (reach, reach, 0, 0) if axis == 3 else (0, 0, reach, reach)
            padded = F.pad(x, sides, mode="replicate")
        return (padded.narrow(axis, i, x.shape[axis]) for i in range(self.taps))
