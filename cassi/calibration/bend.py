"""How far a dispersion is bent that no frame shows: what lamps, sensors and scenes make likely."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cassi.calibration.correlation import Correlation, find_bright_end
from cassi.calibration.spectra import DARK, ROUGH, Statistics, black_bodies, read_statistics
from cassi.systems import SDCassi
from cassi.systems.dispersion import prism_places

Array = NDArray[np.float64]

MOST = 1.25
"""Of a prism of N-BK7: the bend of denser glasses."""
_STEP = 0.05
_LEVEL = 10.0  # variance of the logarithm of the brightness, which is free
_OUTER = 0.5
"""Variance of the logarithm of the light of the outermost bands: where light ends within a band a
part is missing. Without it two of 18 drawn cameras in thermal light seem
strange."""
_PLACE = 0.5
"""Pixels, standard error of where the bands of a camera lie, by hand: their distances are known."""
_STRANGE = 1e-3
"""Probability of light that is less like a thermal lamp's. Of cameras drawn by
`scripts/benchmarks/optics.py` fluorescent lamps, lamps of lines and LEDs of several colours have
1e-19 and less; daylight, halogen light and white LEDs 0.007 and more."""
_SEEN = (420.0, 700.0)
"""Nanometres: what is known of lamps, sensors and scenes ends there."""


@dataclass(frozen=True)
class Bend:
    """Where bands lie by the likeliest bend, between outermost bands that keep their distance.

    Attributes:
        value: 0 for even distances, 1 for those of a prism of N-BK7.
        error: its standard error.
        shift: pixels by which the outermost bands lie further along the dispersion.
        shift_error: its standard error.
        offsets: of the bands, pixels.
        most: pixels by which the error of the bend moves a band at most.
    """

    value: float
    error: float
    shift: float
    shift_error: float
    offsets: tuple[float, ...]
    most: float


def likely_bend(
    light: Sequence[float] | Array,
    offsets: Sequence[float],
    wavelengths: Sequence[float],
    end: tuple[float, float] | None = None,
    covariance: Array | None = None,
    known: Statistics | None = None,
) -> Bend | None:
    r"""Return the mean bend of a dispersion, given the light that falls along it.

    Light of all wavelengths shows the density L(o) of light over offsets, and no wavelengths. With
    the bend b a band at offset o has the wavelength λ_b(o), and

        log L(o) = log lamp·sensor + log scene + log |dλ_b/do| + error

    Logarithms of black bodies as sensors see them (`black_bodies`) and of the mean spectra of
    scenes are Gaussian, with the mean and the covariance that `known` and 125 lights have. Errors
    are those of the light, 10 %, and 2 % of the brightest band; the level is free. Beforehand every
    bend from 0, of a grating, to 1.25, of a prism of dense flint, is as likely.

    Where light ends is half a band beyond an outermost one. With each bend the bands are shifted to
    that end, but for what their places as they were given, ± 0.5 pixels, keep them.

    All of this is true of thermal lamps only. Where the light is unlike any of them with every
    bend, by χ², nothing is said.

    Args:
        light: of each band, of even bands.
        offsets: of the bands, even, pixels.
        wavelengths: nm, one per band, increasing.
        end: pixels, where light ends, and its standard error, see `find_end`; None: the outermost
            bands stay.
        covariance: of the logarithm of the light; None: it is known.
        known: of scenes; the statistics of the package if None.

    Returns:
        The bend; None where bands lie beyond 420 to 700 nm, and in light unlike a thermal lamp's.
    """
    from scipy.stats import chi2

    if not wavelengths or wavelengths[0] < _SEEN[0] or wavelengths[-1] > _SEEN[1]:
        return None
    known = read_statistics() if known is None else known
    given, places = (np.asarray(each, dtype=float) for each in (known.wavelengths, offsets))
    first, span = places[0], places[-1] - places[0]
    half = (wavelengths[-1] - wavelengths[0]) / (2 * (len(places) - 1))
    fine = np.linspace(wavelengths[0] - half, wavelengths[-1] + half, 16 * len(places))
    even = (fine - wavelengths[0]) / (wavelengths[-1] - wavelengths[0])
    bent = np.array(prism_places([wavelengths[0], *fine.tolist(), wavelengths[-1]]))[1:-1] - even
    values = np.asarray(light, dtype=float)
    dark = DARK * values.max()
    values = values.clip(min=dark)
    errors = np.diag(ROUGH**2 + (dark / values) ** 2) + _LEVEL
    errors[[0, -1], [0, -1]] += _OUTER
    if covariance is not None:
        errors = errors + covariance
    values = values / np.exp(np.log(values).mean())
    variance = np.inf if end is None else end[1] ** 2
    trust = _PLACE**2 / (_PLACE**2 + variance)  # in the end, beside the places as they were given
    which = 0
    if end is not None and np.argmin(np.abs(end[0] - first - span * even[[0, -1]])) == 1:
        which = -1
    bends = np.arange(0, MOST + _STEP / 2, _STEP)
    logs, shifts, misfits = [], [], []
    for bend in bends:
        curve = even + bend * bent
        away = 0.0 if end is None else end[0] - first - span * curve[which]
        shifts.append(trust * away)
        at = np.interp((places - first - shifts[-1]) / span, curve, fine)
        slope = np.interp(at, fine, np.gradient(curve))
        lights = black_bodies(torch.from_numpy(at)).numpy()
        part = np.array([np.interp(at, given, each) for each in np.eye(len(given))])
        spread = part.T @ known.light_spread.numpy() @ part + np.cov(lights.T, bias=True)
        spread += errors
        rest = np.log(values * slope) - known.light.numpy() @ part - lights.mean(0)
        misfits.append(rest @ np.linalg.solve(spread, rest))
        cost = misfits[-1] + np.linalg.slogdet(spread)[1]
        logs.append(-(cost + trust * (away / _PLACE) ** 2) / 2)
    if chi2.sf(min(misfits), len(places) - 1) < _STRANGE:
        return None
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    (mean, error), (shift, moved) = (_moments(weights, each) for each in (bends, np.array(shifts)))
    curve = np.array(prism_places(wavelengths)) - (places - first) / span
    found = places + shift + mean * span * curve
    most = error * abs(span) * float(np.abs(curve).max())
    unsure = float(np.hypot(moved, _PLACE * (1 - trust) ** 0.5))
    return Bend(mean, error, shift, unsure, tuple(found.tolist()), most)


def _moments(weights: Array, values: Array) -> tuple[float, float]:
    """Return mean and standard deviation."""
    mean = float(weights @ values)
    return mean, float(weights @ (values - mean) ** 2) ** 0.5


def find_end(y: Tensor, system: SDCassi, good: Tensor | None = None) -> tuple[float, float]:
    """Return where light ends at the brighter end of the bands, see `find_bright_end`.

    Args:
        y: measurement `(B, K, H', W')`.
        system: its camera, with even bands.
        good: bool, as y, pixels that count; None for all.

    Returns:
        Its place, as offsets are counted, and its standard error, pixels.
    """
    frame = Correlation(system.turn(y), None if good is None else system.turn(good))
    return find_bright_end(frame, system.turn(system.mask)[:, 0], system.offsets)
