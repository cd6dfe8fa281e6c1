"""How far a dispersion is bent that no frame shows: what lamps, sensors and scenes make likely."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from cassi.calibration.geometry import placed_camera
from cassi.calibration.spectra import Statistics, black_bodies, read_statistics
from cassi.systems import SDCassi, WideCassi
from cassi.systems.dispersion import prism_places

MOST = 1.25
"""Of a prism of N-BK7: the bend of denser glasses."""
_STEP = 0.05
_ROUGH, _DARK = 0.1, 0.02
"""Errors of a mean spectrum: of its logarithm, and of the brightest band, as of stray light."""
_LEVEL = 10.0  # variance of the logarithm of the brightness, which is free
_SEEN = (420.0, 700.0)
"""Nanometres: what is known of lamps, sensors and scenes ends there."""


@dataclass(frozen=True)
class Bend:
    """Where bands lie by the likeliest bend, between outermost bands that stay.

    Attributes:
        value: 0 for even distances, 1 for those of a prism of N-BK7.
        error: its standard error.
        offsets: of the bands, pixels.
        most: pixels by which the error moves a band at most.
    """

    value: float
    error: float
    offsets: tuple[float, ...]
    most: float


def likely_bend(
    light: Sequence[float],
    offsets: Sequence[float],
    wavelengths: Sequence[float],
    known: Statistics | None = None,
) -> Bend | None:
    r"""Return the mean bend of a dispersion, given the light that falls along it.

    Light of all wavelengths shows the density L(o) of light over offsets, and no wavelengths. With
    the bend b a band at offset o has the wavelength λ_b(o), and

        log L(o) = log lamp·sensor + log scene + log |dλ_b/do| + error

    Logarithms of black bodies as sensors see them (`black_bodies`) and of the mean spectra of
    scenes are Gaussian, with the mean and the covariance that `known` and 125 lights have. Errors
    are 10 % and 2 % of the brightest band; the level is free. Beforehand a bend from 0 to 1.25 is
    the likelier the less it is, with the density 1.25 − b.

    Args:
        light: of each band, in a cube with even bands.
        offsets: of the bands, even, pixels.
        wavelengths: nm, one per band, increasing.
        known: of scenes; the statistics of the package if None.

    Returns:
        The bend; None where bands lie beyond 420 to 700 nm.
    """
    if not wavelengths or wavelengths[0] < _SEEN[0] or wavelengths[-1] > _SEEN[1]:
        return None
    known = read_statistics() if known is None else known
    given, places = (np.asarray(each, dtype=float) for each in (known.wavelengths, offsets))
    fine = np.linspace(wavelengths[0], wavelengths[-1], 16 * len(places))
    even = np.linspace(0, 1, len(fine))
    bent = np.array(prism_places(fine.tolist())) - even
    share = (places - places[0]) / (places[-1] - places[0])
    values = np.asarray(light, dtype=float)
    dark = _DARK * values.max()
    values = values.clip(min=dark)
    errors = np.diag(_ROUGH**2 + (dark / values) ** 2) + _LEVEL
    bends = np.arange(0, MOST, _STEP)
    logs = []
    for bend in bends:
        at = np.interp(share, even + bend * bent, fine)
        slope = np.interp(at, fine, np.gradient(even + bend * bent))
        lights = black_bodies(torch.from_numpy(at)).numpy()
        part = np.array([np.interp(at, given, each) for each in np.eye(len(given))])
        covariance = part.T @ known.light_spread.numpy() @ part + np.cov(lights.T, bias=True)
        covariance += errors
        away = np.log(values * slope) - known.light.numpy() @ part - lights.mean(0)
        cost = away @ np.linalg.solve(covariance, away) + np.linalg.slogdet(covariance)[1]
        logs.append(np.log(MOST - bend) - cost / 2)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    mean = float(weights @ bends)
    error = float(weights @ (bends - mean) ** 2) ** 0.5
    curve = np.array(prism_places(wavelengths)) - share
    found = places + mean * (places[-1] - places[0]) * curve
    most = error * abs(places[-1] - places[0]) * float(np.abs(curve).max())
    return Bend(mean, error, tuple(found.tolist()), most)


def bent_camera(system: SDCassi, bend: Bend) -> SDCassi:
    """Return a camera with its bands where a bend has them."""
    narrow = cast(SDCassi, placed_camera(system, system.mask, bend.offsets, None))
    if isinstance(system, WideCassi):
        return WideCassi.like(narrow, system.band_width)
    return narrow
