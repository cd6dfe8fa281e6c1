"""Compute the features of a cube from which its errors are predicted.

The features have no unit and do not depend on the number of bands.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.solvers.statistics import root_mean_square
from cassi.systems.base import System
from cassi.uncertainty.bootstrap import BootstrapResult
from cassi.uncertainty.local_mean import mean_over_squares

FLOOR = 1e-4
"""Added to a value before its logarithm, relative to the signal level. For the error of the scene,
noise and motion it is the least value."""
# Sides of the blocks of local means, pixels. A local mean is over 3×3 blocks.
_FINE_PIXELS, _COARSE_PIXELS = 4, 16
# Least `heldout` and `heldout_ratio` of a `Probe`. Smaller ones count as this.
_MIN_HELDOUT = 1e-4
# Order of the differences of neighbouring bands in `roughness`. With an order of 2, 90 % intervals
# hold 83.1 % to 95.2 % of the values (docs/development/experiments/uncertainty.md).
_DIFFERENCE_ORDER = 4

NAMES = (
    *("error 3", "error 8", "error 32", "error of all bands 3", "error of all bands 8"),
    *("gradient", "gradient of the mean", "deviation 8"),
    *("deviation of the mean 8", "deviation of the mean 32"),
    *("value", "local mean", "mean over bands", "slope", "local slope"),
    *("residual", "light", "local light", "crowding", "place", "place squared"),
    *("unknowns", "bands", "heldout", "heldout without noise", "error of the scene"),
    *("noise", "motion"),
)
"""Names of the features, in the order of `Features.band`."""
NUMBERS = 7
"""Number of features that are the same for a whole scene: the last ones of `NAMES`."""
BASE, TEXTURE, BRIGHTNESS = (NAMES.index(n) for n in ("error 8", "deviation 8", "local mean"))
"""Indices of three features.

BASE: the local error, which the `ErrorModel` scales to σ.
TEXTURE, BRIGHTNESS: they decide the group of a value, which has its own factor of σ."""


class Features:
    """Features of every value of a cube.

    b is the error of the repeated reconstruction and x the cube, both in units of the signal level.
    The features are decimal logarithms of

    - error: the root mean square of b in its band, over squares of 3 pixels, and of about 12 ("8")
      and 48 ("32"); over the first two also for all bands together
    - gradient, deviation: the gradient and the local standard deviation of x in its band, and of
      the mean of x over the bands
    - value: x, its local mean, and its mean over the bands
    - slope: the difference of the two neighbouring bands, for a distance of 1/28 of the spectrum
    - residual: the back-projected residual Aᵀ|y − Ax|/Aᵀ1
    - crowding: the number of bands that share a pixel of the detector, Aᵀ(A1)/Aᵀ1

    Four features are not logarithms:

    - light, local light: Aᵀ1, the light behind the mask, and its local mean
    - place, place squared: place of the band in the spectrum, −1 to 1, and its square

    The last `NUMBERS` features are decimal logarithms of numbers of the whole scene:

    - unknowns: values of the cube per measured value
    - bands: number of bands over 28
    - heldout: `Probe.heldout`
    - heldout without noise: `Probe.heldout` over `Probe.heldout_ratio`
    - error of the scene: root mean square of b
    - noise: change of the cube by the noise
    - motion: change of the cube by a significant shift of the mask

    Features are computed band by band, because all together take 28 times the memory of the cube.
    For the error of means over squares of pixels, all maps are averaged over such squares first.

    Args:
        result: result of the bootstrap.
        system: the camera.
        level: signal level of the measurement, in the unit of the cube.
        side: side of the squares, pixels; H and W of the features are divided by it, rounded up.
    """

    @torch.no_grad()
    def __init__(
        self, result: BootstrapResult, system: System, level: float, side: int = 1
    ) -> None:
        self.x, self.error = (
            mean_over_squares(cube / level, side).float()
            for cube in (result.x, result.repeated_error)
        )
        bands = self.bands = self.x.shape[1]
        ones = torch.ones_like(result.residual)
        self.light, self.band_count, self.back_projected_residual = (
            mean_over_squares(system.adjoint(frame), side).float()
            for frame in (ones, system(torch.ones_like(result.x)), result.residual.abs() / level)
        )
        mean, power = self.x.mean(1, keepdim=True), self.error.square().mean(1, keepdim=True)
        self.features_of_all_bands = {
            "error of all bands 3": _log(_local_mean(power, 1).sqrt()),
            "error of all bands 8": _log(_local_mean(power, _FINE_PIXELS).sqrt()),
            "gradient of the mean": _log(_gradient(mean)),
            "deviation of the mean 8": _log(_deviation(mean, _FINE_PIXELS)),
            "deviation of the mean 32": _log(_deviation(mean, _COARSE_PIXELS)),
            "mean over bands": _log(mean),
        }
        heldout, mask_shift = max(result.probe.heldout, _MIN_HELDOUT), result.probe.mask_shift
        noise = float(root_mean_square(result.residual))
        shift_change = mask_shift.change if mask_shift.is_significant else 0.0
        changes = [result.probe.response * size / level for size in (noise, shift_change)]
        self.numbers = {
            "unknowns": math.log10(result.x[0].numel() / ones[0].numel()),
            "bands": math.log10(bands / 28),
            "heldout": math.log10(heldout),
            "heldout without noise": math.log10(
                heldout / max(result.probe.heldout_ratio, _MIN_HELDOUT)
            ),
            "error of the scene": 0.5 * math.log10(max(float(power.mean()), FLOOR**2)),
            "noise": math.log10(max(changes[0], FLOOR)),
            "motion": math.log10(max(changes[1], FLOOR)),
        }

    @torch.no_grad()
    def band(self, index: int) -> Tensor:
        """Return the F features of one band, `(F, H, W)`, in the order of `NAMES`."""
        band = slice(index, index + 1)
        x, power, light = self.x[:, band], self.error[:, band].square(), self.light[:, band]
        positive_light = light.clamp_min(1e-3)
        next_band, previous_band = min(index + 1, self.bands - 1), max(index - 1, 0)
        slope = (self.x[:, next_band] - self.x[:, previous_band]).abs()[:, None] * self.bands / 56
        place = 2 * index / max(self.bands - 1, 1) - 1
        features = {
            "error 3": _log(_local_mean(power, 1).sqrt()),
            "error 8": _log(_local_mean(power, _FINE_PIXELS).sqrt()),
            "error 32": _log(_local_mean(power, _COARSE_PIXELS).sqrt()),
            "gradient": _log(_gradient(x)),
            "deviation 8": _log(_deviation(x, _FINE_PIXELS)),
            "value": _log(x),
            "local mean": _log(_local_mean(x, _FINE_PIXELS)),
            "slope": _log(slope),
            "local slope": _log(_local_mean(slope, _FINE_PIXELS)),
            "residual": _log(
                _local_mean(self.back_projected_residual[:, band] / positive_light, _FINE_PIXELS)
            ),
            "light": light,
            "local light": _local_mean(light, _FINE_PIXELS),
            "crowding": _log(self.band_count[:, band] / positive_light),
            "place": torch.full_like(x, place),
            "place squared": torch.full_like(x, place**2),
        }
        all_features = features | self.features_of_all_bands
        all_features |= {name: torch.full_like(x, number) for name, number in self.numbers.items()}
        return torch.cat([all_features[name][0] for name in NAMES])

    @torch.no_grad()
    def roughness(self) -> Tensor:
        r"""Estimate the error from the roughness of the spectra, `(1, C, H, W)`.

        Spectra of scenes are smooth, so their fourth difference is mostly error. If the errors of
        neighbouring bands are independent, the variance of the difference is 70 times that of an
        error. So the estimate is √(local mean of the squared difference / 70). With fewer than 5
        bands it is 0.
        """
        if self.bands <= _DIFFERENCE_ORDER:
            return torch.zeros_like(self.x)
        power = _local_mean(self.x.diff(n=_DIFFERENCE_ORDER, dim=1).square(), _FINE_PIXELS)
        band = torch.arange(self.bands, device=power.device) - _DIFFERENCE_ORDER // 2
        error = (power / math.comb(2 * _DIFFERENCE_ORDER, _DIFFERENCE_ORDER)).sqrt()
        return error[:, band.clamp(0, self.bands - _DIFFERENCE_ORDER - 1)]


def _log(values: Tensor) -> Tensor:
    return (values.clamp_min(0) + FLOOR).log10()


def _local_mean(x: Tensor, side: int) -> Tensor:
    """Return local means over 3×3 blocks of side × side pixels, shaped like x."""
    height, width = x.shape[-2:]
    side = max(1, min(side, height, width))
    if side > 1:
        x = F.avg_pool2d(x, side, ceil_mode=True, count_include_pad=False)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    rows = padded[..., :-2, :] + padded[..., 1:-1, :] + padded[..., 2:, :]
    x = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]) / 9
    if side == 1:
        return x
    size = (x.shape[-2] * side, x.shape[-1] * side)
    return F.interpolate(x, size=size, mode="bilinear")[..., :height, :width]


def _deviation(x: Tensor, side: int) -> Tensor:
    return (_local_mean(x.square(), side) - _local_mean(x, side).square()).clamp_min(0).sqrt()


def _gradient(x: Tensor) -> Tensor:
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    down[..., 1:-1, :] = (x[..., 2:, :] - x[..., :-2, :]) / 2
    right[..., 1:-1] = (x[..., 2:] - x[..., :-2]) / 2
    return (down.square() + right.square()).sqrt()
