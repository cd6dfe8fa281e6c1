"""How noisy a measurement is, judged by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem
from cassi.solvers.reading import reading_of
from cassi.solvers.windows import SIDE, fit_windows

_WINDOWS = 600  # more do not make the estimate better
_BINS = 4  # of brightness
_SHARE = 0.02  # of the windows show plain parts of nearly every scene


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
    reading = reading_of(system)
    if reading is not None:
        return reading.noise.to(y) * root_mean_square(y)
    return noise_of_parts([(y, system)], -2, y.shape)


def root_mean_square(y: Tensor) -> Tensor:
    """Return the root mean square of each sample, `(B, …)` → `(B,)`, > 0."""
    return y.square().flatten(1).mean(1).sqrt().clamp_min(torch.finfo(y.dtype).tiny)


@torch.no_grad()
def noise_of_parts(
    parts: Iterable[tuple[Tensor, LinearSystem]], axis: int, shape: Sequence[int]
) -> Tensor:
    """Estimate the noise of a measurement in parts, as `noise_level` does.

    Args:
        parts: `(B, K, H', W')` and its camera, in order; sizes along the axis that are multiples
            of 16, except the last.
        axis: -2 or -1, along which they follow one another.
        shape: of the whole measurement.

    Returns:
        `(B,)`, in the unit of y.
    """
    down, across = shape[-2] // SIDE, shape[-1] // SIDE
    chosen = torch.arange(0, down * across, down * across // _WINDOWS + 1)
    places = torch.stack((chosen // max(1, across), chosen % max(1, across)), 1)
    variances, means, first = [], [], 0
    for y, system in parts:
        count = y.shape[axis] // SIDE
        inside = (places[:, axis] >= first) & (places[:, axis] < first + count)
        at = places[inside]
        at[:, axis] -= first
        first += count
        if len(at):
            variance, mean = fit_windows(y, system, at.to(y.device))
            variances.append(variance)
            means.append(mean)
    if len(chosen) < 20 or not variances[0].numel():
        return y.new_zeros(len(y))
    return _at_mean_brightness(torch.cat(variances), torch.cat(means)).to(y.dtype)


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
