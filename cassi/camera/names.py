"""Which band falls at which offset, as the light along the dispersion tells.

`cassi.camera.place` finds the light λ(o) of a frame: its spectrum over offsets in pixels. It tells
the bands' offsets in two cases. Where light is continuous and ends abruptly, it ends half a band
beyond the outermost bands. Where it comes in lines, one per band, the lines are the bands. In any
other light offsets are names that a frame does not tell, and they stay as they were given.

All that is seen are observations of the curve

    o(c) = n(c) + s + t·P₁(v) + a·(P₂(v) − 1) + b·(P₃(v) − P₁(v)),   v = 2c/(C − 1) − 1

with the nominal offsets n and Legendre polynomials P. It is fitted by least squares with a Gaussian
prior. So the standard error of what nothing tells is that of the prior.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cassi.camera.place import BEYOND, outer_offsets
from cassi.systems.dispersion import prism_places

SHIFT, STEP, LEAST_STEP, CURVE = 1.0, 0.03, 0.3, 0.05
"""Prior standard deviations: of the shift, pixels; of half the span, its share and at least so many
pixels; of a curve, its share of the span. Cameras are mounted and measured as well as that."""
END, LINE = 0.2, 0.1
"""Pixels by which an abrupt end, and a line, of the light are seen beside their place."""
_FALLEN, _GONE, _FULL = 0.08, 0.02, 0.2
# Of the power within: where light ends, what is left 1.5 pixels beyond, and what there is before.
_APART = 1.7
"""Pixels between lines that are seen as two."""
_CONTRAST = 1.0  # mean of log power at lines over that between them, nats
_TRIED = 40  # combs, each moved onto the lines beside it
_MATCHED = 0.85  # of the lines must be brighter than what lies between them


class Observation(NamedTuple):
    """An offset that was seen: band (−½ is where the light of the first one begins), pixels."""

    band: float
    offset: float
    error: float


@dataclass(frozen=True)
class Names:
    """Offsets of bands.

    Attributes:
        offsets: pixels, `(C,)`.
        errors: standard errors, pixels, `(C,)`.
        told: by what: "lines", "ends" or "one end" of the light, or "" for nothing.
    """

    offsets: tuple[float, ...]
    errors: tuple[float, ...]
    told: str


def name_bands(
    offsets: Tensor,
    light: Tensor,
    nominal: Sequence[float],
    wavelengths: Sequence[float] | None = None,
) -> Names:
    """Return the offsets of bands by the light along the dispersion.

    Args:
        offsets: o, pixels, from the first band to the last, `(P,)`.
        light: power there, mean 1, `(P,)`.
        nominal: offsets as they are given, pixels, one per band.
        wavelengths: nm, one per band: even bands may be those of a prism.
    """
    at, power = offsets.numpy(), light.clamp_min(1e-9).numpy()
    given = np.asarray(nominal, dtype=float)
    told, seen = "lines", find_lines(at, power, given, wavelengths) if len(given) > 2 else []
    if not seen:
        seen = find_ends(at, power, given)
        told = ("", "one end", "ends")[len(seen)]
    places, errors = _fitted(given, seen, bent=told == "lines")
    return Names(tuple(places.tolist()), tuple(errors.tolist()), told)


def find_ends(at: np.ndarray, power: np.ndarray, nominal: np.ndarray) -> list[Observation]:
    """Return the ends of light that is continuous and ends abruptly, of two at most."""
    pitch = abs(at[1] - at[0])
    within, beyond = (max(round(length / pitch), 1) for length in (2 * BEYOND, 1.5))
    found = []
    wanted = outer_offsets(nominal.tolist())
    for flip, band, outer in ((1, -0.5, wanted[0]), (-1, len(nominal) - 0.5, wanted[1])):
        x, p = at[::flip], power[::flip]
        for k in range(1, min(2 * within, len(p) - within)):
            plateau = float(np.median(p[k : k + within]))
            if p[k] < _FALLEN * plateau or p[k - 1] >= _FALLEN * plateau:
                continue
            inner = p[k + beyond : k + 2 * beyond + 1]
            gone = p[max(k - beyond, 0)] <= _GONE * plateau
            if gone and len(inner) and inner.min() > _FULL * plateau and plateau > _GONE:
                share = np.log(_FALLEN * plateau / p[k - 1]) / np.log(p[k] / p[k - 1])
                place = x[k - 1] + share * (x[k] - x[k - 1])
                if abs(place - outer) <= BEYOND:
                    found.append(Observation(band, float(place), END))
                break
    return found


def find_lines(
    at: np.ndarray,
    power: np.ndarray,
    nominal: np.ndarray,
    wavelengths: Sequence[float] | None,
) -> list[Observation]:
    """Return the lines of light that comes in one line per band; none in other light."""
    order = np.argsort(at)
    x, logs = at[order], np.log(power[order])
    bands = len(nominal)
    v = np.linspace(-1, 1, bands)
    half = abs(nominal[-1] - nominal[0]) / 2
    shape = np.zeros(bands)
    if wavelengths and 300 <= min(wavelengths) < max(wavelengths) <= 2500:
        prism = np.asarray(prism_places(wavelengths))
        shape = (nominal[-1] - nominal[0]) * prism
        shape -= nominal - nominal[0]
    shift = np.arange(-2, 2.01, 0.25)
    step = np.arange(-1.5, 1.51, 0.25) * max(1.0, STEP * half)
    bend = np.arange(-0.2, 1.41, 0.05) if np.abs(shape).max() > 0.5 else np.zeros(1)
    grid = np.stack(np.meshgrid(shift, step, bend, indexing="ij"), -1).reshape(-1, 3)
    places = nominal + grid[:, :1] + grid[:, 1:2] * v + grid[:, 2:] * shape
    # A curve of a glass is near: the polynomial fits the lines where they are.
    found: tuple[float, list[Observation]] = (-math.inf, [])
    for start in places[np.argsort(-_contrast(x, logs, places)[0])[:_TRIED]]:
        curve = start
        for _ in range(3):
            seen = _peaks(x, np.exp(logs), curve)
            curve, _ = _fitted(nominal, seen, bent=True)
        total, mean, matched = (each[0] for each in _contrast(x, logs, curve[None]))
        if total > found[0] and mean > _CONTRAST and matched >= _MATCHED:
            found = total, seen
    return found[1]


def _contrast(x: np.ndarray, logs: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return of places `(T, C)` by how much log power is higher there than between them.

    The next bands on either side, which there are not, must be dark: else they are lines left out.

    Returns:
        Sum over gaps, mean, and the share of the gaps that are darker, `(T,)` each.
    """
    ends = 2 * places[:, :1] - places[:, 1:2], 2 * places[:, -1:] - places[:, -2:-1]
    wide = np.concatenate([ends[0], places, ends[1]], 1)
    between = (wide[:, 1:] + wide[:, :-1]) / 2
    power, dark = np.interp(wide, x, logs), np.interp(between, x, logs)
    apart = (np.abs(np.diff(wide)) >= _APART) & (between > x[0]) & (between < x[-1])
    inner = apart[:, 1:-1]
    contrast = ((power[:, 1:-2] + power[:, 2:-1]) / 2 - dark[:, 1:-1]) * inner
    count, bands = np.maximum(inner.sum(1), 1), places.shape[1]
    outside = sum(np.maximum((power[:, k] - dark[:, k]) * apart[:, k], 0) for k in (0, -1))
    enough = inner.sum(1) >= max(min(3, bands - 1), (bands - 1) // 3)
    total = np.where(enough, contrast.sum(1) - outside, -np.inf)
    return total, total / count, (contrast > 0).sum(1) / count


def _peaks(x: np.ndarray, power: np.ndarray, places: np.ndarray) -> list[Observation]:
    """Return the centroids of lines near places, of lines that are seen as such."""
    gaps = np.abs(np.diff(places))
    room = np.minimum(np.append(np.inf, gaps), np.append(gaps, np.inf))
    seen = []
    for band, (place, gap) in enumerate(zip(places, room, strict=True)):
        if gap < _APART:
            continue
        reach = min(gap / 2, 1.5)
        near = np.abs(x - place) <= reach
        if near.sum() < 3 or not x[0] + 1 < place < x[-1] - 1:
            continue
        weights = power[near] - power[near].min()
        if weights.sum() <= 0:
            continue
        seen.append(
            Observation(float(band), float((weights * x[near]).sum() / weights.sum()), LINE)
        )
    return seen


def _fitted(
    nominal: np.ndarray, seen: Sequence[Observation], bent: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and standard errors, by least squares with a prior."""
    bands, span = len(nominal), abs(nominal[-1] - nominal[0])
    slack = max(STEP * span / 2, LEAST_STEP)
    curve = max(CURVE * span, LEAST_STEP)
    # Where lines are seen the curve is free: a prism bends by a fifth of its span.
    deviations = np.array(
        [SHIFT, slack, 4 * curve, 2 * curve] if bent else [SHIFT, slack, curve, curve / 2]
    )

    def columns(band: np.ndarray) -> np.ndarray:
        v = 2 * band / max(bands - 1, 1) - 1
        within = v.clip(-1, 1)  # no end of the light tells a curve
        return np.stack([np.ones_like(v), v, 1.5 * (within**2 - 1), 2.5 * (within**3 - within)], -1)

    if bands < 3:
        deviations = deviations[:2]
    many = len(deviations)
    at = np.array([each.band for each in seen])
    rows = (
        columns(at)[:, :many] / np.array([[each.error] for each in seen])
        if seen
        else np.zeros((0, many))
    )
    normal = rows.T @ rows + np.diag(deviations**-2.0)
    right = np.zeros(many)
    if seen:
        base = np.interp(at, np.arange(bands), nominal)
        slope = np.diff(nominal)[[0, -1]] if bands > 1 else np.zeros(2)
        base = base + np.minimum(at, 0) * slope[0] + np.maximum(at - bands + 1, 0) * slope[1]
        away = (np.array([each.offset for each in seen]) - base) / [each.error for each in seen]
        right = rows.T @ away
    inverse = np.linalg.inv(normal)
    every = columns(np.arange(bands))[:, :many]
    errors = np.sqrt(np.einsum("ck,kl,cl->c", every, inverse, every))
    return nominal + every @ (inverse @ right), errors
