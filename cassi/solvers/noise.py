"""How noisy a measurement is, judged by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem

_SIDE = 16  # of a window: enough pixels for the unknowns, few enough for a scene to be simple
_SPECTRA = 6  # smooth spectra, cosines
_WINDOWS = 600  # more do not make the estimate better
_BINS = 4  # of brightness
_SHARE, _NORMAL = 0.02, 2.054  # of the windows show plain parts of nearly every scene; its quantile


def noise_level(y: Tensor, system: LinearSystem) -> Tensor:
    """Estimate the standard deviation of the noise in a measurement.

    In a window of 16×16 pixels where the scene is plain, the measurement is a combination of a few
    known images: A of six smooth spectra, each constant, rising downwards and to the right. What
    such a fit leaves is noise. Windows where it leaves more show edges or texture as well; so the
    level is that which the best 2 % of the windows have, corrected for being the best. It is a mean
    over the detector: of shot noise, where dark and bright windows differ, a line of variance over
    brightness through the best of dark, middle and bright windows gives the level at the mean
    brightness. A scene without any plain part reads as a few per cent of noise.

    Args:
        y: measurement `(B, K, H, W')`.
        system: the camera.

    Returns:
        `(B,)`, in the unit of y; 0 where the measurement has less than 20 windows.
    """
    with torch.no_grad():
        data = _cut(y)  # (P, B, pixels)
        if len(data) < 20:
            return y.new_zeros(len(y))
        # (P, B, images, pixels): the camera may have a mask of its own for every sample
        columns = torch.stack([_cut(image) for image in _plain_images(y, system)], 2)
        freedom = columns.shape[3] - columns.shape[2]
        if freedom < 32:
            return y.new_zeros(len(y))
        q, _ = torch.linalg.qr(columns.mT)
        data = data[..., None]
        rest = data - q @ (q.mT @ data)
        variance = rest.square().sum((2, 3)) / freedom  # (P, B)
        # The quantile of a χ² variable over its mean (Wilson, Hilferty, 1931).
        spread = 2 / (9 * freedom)
        best = (1 - spread - _NORMAL * math.sqrt(spread)) ** 3
        return _at_mean_brightness(variance / best, data.mean((2, 3))).to(y.dtype)


def _plain_images(y: Tensor, system: LinearSystem) -> list[Tensor]:
    batch, bands, height, width = system.adjoint(y).shape
    at = (torch.arange(bands, device=y.device, dtype=y.dtype) + 0.5) / bands
    down = torch.linspace(-1, 1, height, device=y.device, dtype=y.dtype).view(-1, 1)
    right = torch.linspace(-1, 1, width, device=y.device, dtype=y.dtype)
    maps = [torch.ones_like(down + right), down.expand(-1, width), right.expand(height, -1)]
    spectra = [torch.cos(math.pi * k * at) for k in range(min(_SPECTRA, bands))]
    cubes = (s.view(1, -1, 1, 1) * m for s in spectra for m in maps)
    return [system(cube.expand(batch, -1, -1, -1).contiguous()) for cube in cubes]


def _cut(image: Tensor) -> Tensor:
    """Cut `(B, K, H, W)` into windows `(P, B, K·256)`, in float32 at least."""
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    batch, shots, height, width = image.shape
    down, across = height // _SIDE, width // _SIDE
    image = image[..., : down * _SIDE, : across * _SIDE]
    cut = image.reshape(batch, shots, down, _SIDE, across, _SIDE).permute(2, 4, 0, 1, 3, 5)
    return cut.reshape(down * across, batch, shots * _SIDE**2)[:: down * across // _WINDOWS + 1]


def _at_mean_brightness(variance: Tensor, brightness: Tensor) -> Tensor:
    """Fit the variance of the best windows over brightness: `(P, B)` twice → `(B,)` of σ."""
    levels = []
    for v, m in zip(variance.T, brightness.T, strict=True):
        bins = m.argsort().chunk(_BINS)
        low = torch.stack([v[part].quantile(_SHARE) for part in bins])
        mean = torch.stack([m[part].mean() for part in bins])
        # A line through the darkest that none of the others is below.
        rise = (low - low[0])[1:] / (mean - mean[0])[1:].clamp_min(1e-30)
        level = low[0] + rise.min().clamp_min(0) * (mean.mean() - mean[0])
        levels.append(level.clamp_min(0).sqrt())
    return torch.stack(levels)
