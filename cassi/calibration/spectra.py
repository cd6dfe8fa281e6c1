"""Which way round spectra are, by what spectra of ordinary scenes are like."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.statistics import root_mean_square

FILE = Path(__file__).with_name("spectra.json")
"""Made by scripts/data/spectra.py of CAVE's training scenes."""
LEAST = 8
"""Wavelengths of the statistics that a camera must cover."""
_RIDGE = 0.01  # of a logarithm, squared: what a reconstruction adds to a spectrum
_MEANS = 0.3  # what scenes' mean spectra weigh: light and optics change them, more than colours
_POOLED = 4  # pixels
_LIT = 0.2  # of the mean light
ROUGH, DARK = 0.1, 0.02
"""Errors of a cube's mean spectrum: of its logarithm, and of the brightest band, where a method
puts light that belongs to others, and stray light falls."""


class Statistics(NamedTuple):
    """Of logarithms of spectra, each over its mean.

    Attributes:
        wavelengths: `(G,)`, nm.
        mean: `(G,)`.
        within: `(G, G)`, covariance within a scene.
        between: `(G, G)`, covariance of the scenes' means.
        light: `(G,)`, mean logarithm of the scenes' mean spectra.
        light_spread: `(G, G)`, covariance of these.
    """

    wavelengths: Tensor
    mean: Tensor
    within: Tensor
    between: Tensor
    light: Tensor
    light_spread: Tensor


def read_statistics(path: Path = FILE) -> Statistics:
    """Read statistics that scripts/data/spectra.py wrote."""
    values = json.loads(path.read_text())
    return Statistics(
        *(torch.tensor(values[name], dtype=torch.float64) for name in Statistics._fields)
    )


def moments(x: Tensor, wavelengths: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the logarithms of a cube's spectra."""
    side = min(_POOLED, *x.shape[-2:])
    spectra = avg_pool2d(x.detach().double().cpu()[None], side)[0].flatten(1)
    right = torch.searchsorted(wavelengths, at).clamp(1, len(wavelengths) - 1)
    part = (at - wavelengths[right - 1]) / (wavelengths[right] - wavelengths[right - 1])
    spectra = torch.lerp(spectra[right - 1], spectra[right], part[:, None])
    light = spectra.mean(0)
    chosen = light > _LIT * light.mean().clamp_min(torch.finfo(light.dtype).tiny)
    if not bool(chosen.any()):
        return at.new_zeros(len(at)), at.new_zeros(len(at), len(at))
    # A tenth: dark bands are uncertain, and no less likely than half-dark ones.
    logs = (spectra[:, chosen].clamp_min(0) / light[chosen] + 0.1).log()
    logs = logs - logs.mean(0)
    mean = logs.mean(1)
    rest = logs - mean[:, None]
    return mean, rest @ rest.mT / rest.shape[1]


def strangeness(
    x: Tensor, wavelengths: Sequence[float], known: Statistics | None = None, lit: bool = False
) -> list[tuple[float, float]] | None:
    r"""Return how unlike ordinary scenes a cube's spectra are, as they are and in reverse.

        ½ tr(W⁻¹S)  and  0.3·½ (μ − m)ᵀ B⁻¹(μ − m)

    with the covariance S and the mean μ of the logarithms of its spectra, and those of ordinary
    scenes: m, W within and B between scenes. The second is at most 1.5 in 19 of CAVE's 20 training
    scenes, each by the statistics of the others, and at least 3.4 both ways in the light of a lamp,
    as a sensor sees it (docs/development/experiments/camera-check.md).

    Where x is `lit`, lamp and sensor are in it: mean and covariance of their logarithms are added
    to m and B, and to B the errors of x, which are large where a lamp leaves bands dark.

    Returns:
        Both numbers of both; None where fewer than 8 wavelengths of the statistics are covered.
    """
    known = read_statistics() if known is None else known
    given = torch.tensor([float(value) for value in wavelengths], dtype=torch.float64)
    kept = (known.wavelengths >= given[0] - 1) & (known.wavelengths <= given[-1] + 1)
    if len(given) < LEAST or int(kept.sum()) < LEAST:
        return None
    at = known.wavelengths[kept]
    mean = known.mean[kept] - known.mean[kept].mean()
    within, between = (value[kept][:, kept] for value in (known.within, known.between))
    if lit:
        lights = black_bodies(at)
        mean, between = mean + lights.mean(0), between + lights.mT.cov(correction=0)
    ridge = _RIDGE * torch.eye(len(at), dtype=torch.float64)
    colours = torch.linalg.inv(within + ridge)
    costs = []
    for cube in (x, x.flip(0)):
        centre, spread = moments(cube, given, at)
        spreads = between + within / 50 + ridge
        if lit:
            dark = DARK * (centre.max() - centre).exp()
            spreads = spreads + torch.diag(ROUGH**2 + dark.square())
        scenes, away = torch.linalg.inv(spreads), centre - mean
        costs.append(
            (float((spread * colours).sum()) / 2, _MEANS * float(away @ scenes @ away) / 2)
        )
    return costs


def black_bodies(at: Tensor) -> Tensor:
    """Return logarithms, over their mean, of black bodies as sensors see them, `(L, G)`.

    Of 2400 to 6500 K; responses are Gaussians exp(−((λ − b)/w)²), b 550 to 700 nm, w 120 to 300.
    """
    kelvin, best, width = torch.cartesian_prod(
        *(
            torch.linspace(*ends, 5, dtype=at.dtype)
            for ends in ((2400, 6500), (550, 700), (120, 300))
        )
    ).T[..., None]
    logs = -4 * at.log() - (1.4388e7 / (at * kelvin)).expm1().log() - ((at - best) / width).square()
    return logs - logs.mean(1, keepdim=True)


def comb(x: Tensor) -> float:
    r"""Return how far spectra alternate from band to band, over the cube's root mean square.

        a(p) = ½ mean_c (−1)^c (x_c − (x_{c−1} + x_{c+1})/2)

    at every pixel p; scenes have next to none (below 0.4 % in CAVE).
    """
    if len(x) < 5:
        return 0.0
    bends = x[1:-1] - (x[:-2] + x[2:]) / 2
    signs = torch.ones(len(bends), 1, 1, dtype=x.dtype, device=x.device)
    signs[1::2] = -1
    alternating = (bends * signs).mean(0) / 2
    return float(root_mean_square(alternating[None]) / root_mean_square(x[None]))
