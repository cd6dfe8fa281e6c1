"""Compare the spectra of a cube, and these spectra in reverse, with spectra of ordinary scenes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.statistics import root_mean_square

FILE = Path(__file__).with_name("spectra.json")
"""Statistics of spectra. scripts/data/spectra.py computes them from CAVE's training scenes."""
MIN_WAVELENGTHS = 8
"""Fewest wavelengths of the statistics that a camera must cover."""
# Variance of the error that a reconstruction makes in the logarithm of a spectrum.
_RIDGE = 0.01
# Weight of the mean spectrum relative to the covariance. It is below 1, because illuminant and
# optics change the mean more than the covariance.
_MEAN_WEIGHT = 0.3
# Side of the squares in which pixels are averaged. The average has less noise.
_POOLING_PIXELS = 4
# Pixels darker than this, relative to the mean, are left out: their logarithms are mostly noise.
_MIN_BRIGHTNESS = 0.2
LOG_ERROR = 0.1
"""Error of the logarithm of a cube's mean spectrum."""
DARK_BAND_ERROR = 0.02
"""Error of a cube's mean spectrum, relative to the brightest band. It matters in bands that a lamp
leaves dark: there a cube has stray light, and light that the method took from other bands.

Without `LOG_ERROR` and this error, one right cube had the `direction_score` −0.35, with them 0.06
(docs/development/experiments/camera-check.md)."""


class Statistics(NamedTuple):
    """Statistics of the logarithms of spectra, each relative to its mean.

    Attributes:
        wavelengths: nm, `(G,)`.
        mean: mean over the scenes, `(G,)`.
        within_scenes: covariance within a scene, `(G, G)`.
        between_scenes: covariance of the means of the scenes, `(G, G)`.
        light: mean logarithm of the mean spectra of the scenes, `(G,)`.
        light_spread: covariance of these logarithms, `(G, G)`.
    """

    wavelengths: Tensor
    mean: Tensor
    within_scenes: Tensor
    between_scenes: Tensor
    light: Tensor
    light_spread: Tensor


def read_statistics(path: Path = FILE) -> Statistics:
    """Read the statistics of a JSON file that scripts/data/spectra.py wrote."""
    values = json.loads(path.read_text())
    return Statistics(
        *(torch.tensor(values[name], dtype=torch.float64) for name in Statistics._fields)
    )


def moments(x: Tensor, wavelengths: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the logarithms of a cube's spectra.

    Args:
        x: cube `(C, H, W)`.
        wavelengths: wavelengths of the cube, nm, increasing, `(C,)`.
        at: wavelengths to which the spectra are interpolated, nm, `(G,)`.

    Returns:
        Mean `(G,)` and covariance `(G, G)`, float64; zeros if no pixel is bright.
    """
    side = min(_POOLING_PIXELS, *x.shape[-2:])
    spectra = avg_pool2d(x.detach().double().cpu()[None], side)[0].flatten(1)
    right = torch.searchsorted(wavelengths, at).clamp(1, len(wavelengths) - 1)
    fraction = (at - wavelengths[right - 1]) / (wavelengths[right] - wavelengths[right - 1])
    spectra = torch.lerp(spectra[right - 1], spectra[right], fraction[:, None])
    mean_spectrum = spectra.mean(0)
    is_bright = mean_spectrum > _MIN_BRIGHTNESS * mean_spectrum.mean().clamp_min(
        torch.finfo(mean_spectrum.dtype).tiny
    )
    if not bool(is_bright.any()):
        return at.new_zeros(len(at)), at.new_zeros(len(at), len(at))
    # Values are uncertain by about a tenth of the spectrum's mean. So this tenth is added before
    # the logarithm. Otherwise the errors of dark bands would dominate.
    logs = (spectra[:, is_bright].clamp_min(0) / mean_spectrum[is_bright] + 0.1).log()
    logs = logs - logs.mean(0)
    mean = logs.mean(1)
    deviations = logs - mean[:, None]
    return mean, deviations @ deviations.mT / deviations.shape[1]


def distances_from_scenes(
    x: Tensor,
    wavelengths: Sequence[float],
    statistics: Statistics | None = None,
    in_lamp_light: bool = False,
) -> list[tuple[float, float]] | None:
    r"""Return the distance of a cube's spectra from ordinary scenes, as they are and in reverse.

        ½ tr(W⁻¹S)  and  0.3·½ (μ − m)ᵀ B⁻¹(μ − m)

    S is the covariance of the logarithms of the cube's spectra, and μ their mean. Ordinary scenes
    have the covariance W within a scene, the covariance B between scenes, and the mean m. The
    second number is at most 1.5 for 19 of CAVE's 20 training scenes, if each is compared with the
    statistics of the other scenes. If the cube includes lamp and sensor, the second number is at
    least 3.4 in both orders of the bands (docs/development/experiments/camera-check.md).

    Args:
        x: cube `(C, H, W)`.
        wavelengths: nm, one per band, increasing.
        statistics: statistics of ordinary scenes; None: those of the package.
        in_lamp_light: x includes lamp and sensor. The mean of the logarithms of lamp spectra is
            added to m. Their covariance and the errors of x are added to B.

    Returns:
        Both numbers of the spectra as they are, and both in reverse; None if fewer than 8
        wavelengths of the statistics are covered.
    """
    statistics = read_statistics() if statistics is None else statistics
    cube_wavelengths = torch.tensor([float(value) for value in wavelengths], dtype=torch.float64)
    is_covered = (statistics.wavelengths >= cube_wavelengths[0] - 1) & (
        statistics.wavelengths <= cube_wavelengths[-1] + 1
    )
    if len(cube_wavelengths) < MIN_WAVELENGTHS or int(is_covered.sum()) < MIN_WAVELENGTHS:
        return None
    covered_wavelengths = statistics.wavelengths[is_covered]
    mean = statistics.mean[is_covered] - statistics.mean[is_covered].mean()
    within_scenes, between_scenes = (
        value[is_covered][:, is_covered]
        for value in (statistics.within_scenes, statistics.between_scenes)
    )
    if in_lamp_light:
        lamp_spectra = black_bodies(covered_wavelengths)
        mean = mean + lamp_spectra.mean(0)
        between_scenes = between_scenes + lamp_spectra.mT.cov(correction=0)
    ridge = _RIDGE * torch.eye(len(covered_wavelengths), dtype=torch.float64)
    inverse_colours = torch.linalg.inv(within_scenes + ridge)
    costs = []
    for cube in (x, x.flip(0)):
        cube_mean, covariance = moments(cube, cube_wavelengths, covered_wavelengths)
        # W/50 is the covariance of the mean over 50 independent pixels.
        scene_covariance = between_scenes + within_scenes / 50 + ridge
        if in_lamp_light:
            dark_errors = DARK_BAND_ERROR * (cube_mean.max() - cube_mean).exp()
            scene_covariance = scene_covariance + torch.diag(LOG_ERROR**2 + dark_errors.square())
        inverse_scenes, deviation = torch.linalg.inv(scene_covariance), cube_mean - mean
        colour_cost = float((covariance * inverse_colours).sum()) / 2
        mean_cost = _MEAN_WEIGHT * float(deviation @ inverse_scenes @ deviation) / 2
        costs.append((colour_cost, mean_cost))
    return costs


def black_bodies(wavelengths: Tensor) -> Tensor:
    """Return logarithms of spectra of black bodies as sensors measure them, `(L, G)`.

    The mean of each logarithm is subtracted. The bodies have 2400 to 6500 K. The responses of the
    sensors are Gaussians exp(−((λ − b)/w)²), with b from 550 to 700 nm and w from 120 to 300 nm.

    Args:
        wavelengths: nm, `(G,)`.
    """
    kelvin, peak_wavelength, width = torch.cartesian_prod(
        *(
            torch.linspace(*ends, 5, dtype=wavelengths.dtype)
            for ends in ((2400, 6500), (550, 700), (120, 300))
        )
    ).T[..., None]
    logs = (
        -4 * wavelengths.log()
        - (1.4388e7 / (wavelengths * kelvin)).expm1().log()
        - ((wavelengths - peak_wavelength) / width).square()
    )
    return logs - logs.mean(1, keepdim=True)


def alternation(x: Tensor) -> float:
    r"""Return the alternation of spectra from band to band, relative to the brightness of the cube.

        a(p) = ½ mean_c (−1)^c (x_c − (x_{c−1} + x_{c+1})/2)

    is the alternation at pixel p. The function returns the root mean square of a over that of x. In
    scenes it is below 0.4 % (CAVE).

    Args:
        x: cube `(C, H, W)`. With fewer than 5 bands the result is 0.
    """
    if len(x) < 5:
        return 0.0
    second_differences = x[1:-1] - (x[:-2] + x[2:]) / 2
    signs = torch.ones(len(second_differences), 1, 1, dtype=x.dtype, device=x.device)
    signs[1::2] = -1
    alternating = (second_differences * signs).mean(0) / 2
    return float(root_mean_square(alternating[None]) / root_mean_square(x[None]))
