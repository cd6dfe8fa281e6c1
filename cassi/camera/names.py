"""Which band falls at which offset, as the ends of the light along the dispersion tell.

`cassi.camera.place` finds the light λ(o) of a frame: its spectrum over offsets in pixels. Where
that is continuous and ends abruptly, it ends half a band beyond the outermost bands. Nothing else
of it says which wavelength falls where: offsets of bands are names, and stay as they were given.

What is seen are observations of the curve

    o(c) = n(c) + s + t·P₁(v) + a·(P₂(v) − 1) + b·(P₃(v) − P₁(v)),   v = 2c/(C − 1) − 1

with the nominal offsets n and Legendre polynomials P. It is fitted by least squares with a Gaussian
prior. So the standard error of what nothing tells is that of the prior.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cassi.camera.window_model import BEYOND, outer_offsets

SHIFT, STEP, LEAST_STEP, CURVE = 1.0, 0.03, 0.3, 0.05
"""Prior standard deviations: of the shift, pixels; of half the span, its share and at least so many
pixels; of a curve, its share of the span. Cameras are mounted and measured as well as that."""
END = 0.2
"""Pixels by which an abrupt end of the light is seen beside its place."""
_FALLEN, _GONE, _FULL = 0.08, 0.02, 0.2
# Of the power within: where light ends, what is left 1.5 pixels beyond, and what there is before.


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
        told: by what: both "ends" of the light, "one end", or "" for nothing.
    """

    offsets: tuple[float, ...]
    errors: tuple[float, ...]
    told: str


def name_bands(offsets: Tensor, light: Tensor, nominal: Sequence[float]) -> Names:
    """Return the offsets of bands by the light along the dispersion."""
    at, power = offsets.numpy(), light.clamp_min(1e-9).numpy()
    given = np.asarray(nominal, dtype=float)
    seen = find_ends(at, power, given)
    places, errors = _fitted(given, seen)
    told = ("", "one end", "ends")[len(seen)]
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


def _fitted(nominal: np.ndarray, seen: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and standard errors, by least squares with a prior."""
    bands, span = len(nominal), abs(nominal[-1] - nominal[0])
    slack = max(STEP * span / 2, LEAST_STEP)
    curve = max(CURVE * span, LEAST_STEP)
    deviations = np.array([SHIFT, slack, curve, curve / 2])

    def columns(band: np.ndarray) -> np.ndarray:
        v = 2 * band / max(bands - 1, 1) - 1
        within = v.clip(-1, 1)  # no end of the light tells a curve
        return np.stack([np.ones_like(v), v, 1.5 * (within**2 - 1), 2.5 * (within**3 - within)], -1)

    if bands < 3:
        deviations = deviations[:2]
    many = len(deviations)
    at, where, sure = np.array(seen, dtype=float).reshape(-1, 3).T
    rows = columns(at)[:, :many] / sure[:, None]
    normal = rows.T @ rows + np.diag(deviations**-2.0)
    slope = np.diff(nominal)[[0, -1]] if bands > 1 else np.zeros(2)
    base = np.interp(at, np.arange(bands), nominal)
    base = base + np.minimum(at, 0) * slope[0] + np.maximum(at - bands + 1, 0) * slope[1]
    right = rows.T @ ((where - base) / sure)
    inverse = np.linalg.inv(normal)
    every = columns(np.arange(bands))[:, :many]
    errors = np.sqrt(np.einsum("ck,kl,cl->c", every, inverse, every))
    return nominal + every @ (inverse @ right), errors
