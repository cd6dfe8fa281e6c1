"""Estimate which offset each band has, from the ends of the light along the dispersion.

`cassi.camera.place` estimates the light λ(o) of a frame: its spectrum over offsets in pixels.
If continuous light ends abruptly, it ends half a band beyond the outermost band. Other light does
not show which wavelength falls at which offset. Then the bands keep their nominal offsets.

Each end is an observation of the offset o of band c,

    o(c) = n(c) + s + t·P₁(v) + a·(P₂(v) − 1) + b·(P₃(v) − P₁(v)),   v = 2c/(C − 1) − 1

n are the nominal offsets and P Legendre polynomials. The parameters s, t, a and b are fitted by
least squares with Gaussian priors of mean 0. If no end determines a parameter, it stays at 0, and
its error is the standard deviation of its prior.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cassi.camera.light_model import MARGIN_PIXELS, outer_offsets

SHIFT_DEVIATION = 1.0
"""Prior standard deviation of the shift s, pixels. Cameras are mounted to about a pixel."""
STEP_DEVIATION = 0.03
"""Prior standard deviation of the span o(C − 1) − o(0), relative to the span. t is half of a
change of the span, so its prior standard deviation is half of that of the span."""
CURVE_DEVIATION = 0.05
"""Prior standard deviation of a, relative to the span. That of b is half as large."""
MIN_DEVIATION = 0.3
"""Least prior standard deviation of t and a, pixels. It replaces smaller ones of short spans."""
END_ERROR = 0.2
"""Standard error of the position of an abrupt end of the light, pixels."""
# The light ends where its power, relative to the plateau inside, rises through _END_LEVEL. The end
# is abrupt if two conditions hold: 1.5 pixels outside of it the power is at most _MAX_OUTSIDE, and
# 1.5 pixels inside at least _MIN_INSIDE. The light of a thermal lamp fades more slowly and does not
# end with the bands.
_END_LEVEL, _MAX_OUTSIDE, _MIN_INSIDE = 0.08, 0.02, 0.2


class Observation(NamedTuple):
    """An end of the light.

    Attributes:
        band: place of the end, in bands: −½ beside the first band, C − ½ beside the last band.
        offset: offset at which the light ends, pixels.
        error: standard error of `offset`, pixels.
    """

    band: float
    offset: float
    error: float


@dataclass(frozen=True)
class BandOffsets:
    """Offsets of the bands, estimated from the ends of the light.

    Attributes:
        offsets: offsets of the bands, pixels, `(C,)`.
        errors: standard errors of the offsets, pixels, `(C,)`.
        visible_ends: which ends of the light were visible: "ends", "one end", or "" for none.
    """

    offsets: tuple[float, ...]
    errors: tuple[float, ...]
    visible_ends: str


def estimate_offsets(offsets: Tensor, light: Tensor, nominal: Sequence[float]) -> BandOffsets:
    """Estimate the offsets of the bands from the light along the dispersion.

    Args:
        offsets: even offsets of the light, pixels, `(P,)`.
        light: power of the light at these offsets, `(P,)`.
        nominal: nominal offsets of the bands, pixels.
    """
    positions, power = offsets.numpy(), light.clamp_min(1e-9).numpy()
    nominal_offsets = np.asarray(nominal, dtype=float)
    ends = find_ends(positions, power, nominal_offsets)
    fitted_offsets, errors = _fit_offsets(nominal_offsets, ends)
    visible_ends = ("", "one end", "ends")[len(ends)]
    return BandOffsets(tuple(fitted_offsets.tolist()), tuple(errors.tolist()), visible_ends)


def find_ends(positions: np.ndarray, power: np.ndarray, nominal: np.ndarray) -> list[Observation]:
    """Return the abrupt ends of continuous light, two at most.

    Args:
        positions: even offsets of the light, pixels, `(P,)`.
        power: power of the light at these offsets, `(P,)`.
        nominal: nominal offsets of the bands, pixels.
    """
    pitch = abs(positions[1] - positions[0])
    plateau_samples, edge_samples = (
        max(round(length / pitch), 1) for length in (2 * MARGIN_PIXELS, 1.5)
    )
    ends = []
    outer_ends = outer_offsets(nominal.tolist())
    for flip, band, nominal_end in (
        (1, -0.5, outer_ends[0]),
        (-1, len(nominal) - 0.5, outer_ends[1]),
    ):
        # Samples in the order from this end inwards.
        sample_offsets, samples = positions[::flip], power[::flip]
        for k in range(1, min(2 * plateau_samples, len(samples) - plateau_samples)):
            plateau = float(np.median(samples[k : k + plateau_samples]))
            if samples[k] < _END_LEVEL * plateau or samples[k - 1] >= _END_LEVEL * plateau:
                continue
            inner_power = samples[k + edge_samples : k + 2 * edge_samples + 1]
            is_dark_outside = samples[max(k - edge_samples, 0)] <= _MAX_OUTSIDE * plateau
            if (
                is_dark_outside
                and len(inner_power)
                and inner_power.min() > _MIN_INSIDE * plateau
                and plateau > _MAX_OUTSIDE
            ):
                # Power falls by a factor from sample to sample, so its logarithm is interpolated.
                power_outside, power_inside = samples[k - 1], samples[k]
                fraction = np.log(_END_LEVEL * plateau / power_outside)
                fraction /= np.log(power_inside / power_outside)
                end = sample_offsets[k - 1] + fraction * (sample_offsets[k] - sample_offsets[k - 1])
                if abs(end - nominal_end) <= MARGIN_PIXELS:
                    ends.append(Observation(band, float(end), END_ERROR))
                break
    return ends


def _fit_offsets(nominal: np.ndarray, ends: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
    """Fit the curve of the offsets to ends of the light; return offsets and standard errors."""
    bands, span = len(nominal), abs(nominal[-1] - nominal[0])
    span_deviation = max(STEP_DEVIATION * span / 2, MIN_DEVIATION)
    curve_deviation = max(CURVE_DEVIATION * span, MIN_DEVIATION)
    deviations = np.array([SHIFT_DEVIATION, span_deviation, curve_deviation, curve_deviation / 2])

    def evaluate_polynomials(band: np.ndarray) -> np.ndarray:
        v = 2 * band / max(bands - 1, 1) - 1
        # An end does not show a curve. Ends lie outside of −1 ≤ v ≤ 1. If v is clipped to this
        # range, both curved terms are 0 at an end.
        inner_v = v.clip(-1, 1)
        return np.stack(
            [np.ones_like(v), v, 1.5 * (inner_v**2 - 1), 2.5 * (inner_v**3 - inner_v)], -1
        )

    if bands < 3:
        deviations = deviations[:2]
    n_parameters = len(deviations)
    end_bands, end_offsets, end_errors = np.array(ends, dtype=float).reshape(-1, 3).T
    design = evaluate_polynomials(end_bands)[:, :n_parameters] / end_errors[:, None]
    normal = design.T @ design + np.diag(deviations**-2.0)
    slope = np.diff(nominal)[[0, -1]] if bands > 1 else np.zeros(2)
    nominal_ends = np.interp(end_bands, np.arange(bands), nominal)
    nominal_ends = (
        nominal_ends
        + np.minimum(end_bands, 0) * slope[0]
        + np.maximum(end_bands - bands + 1, 0) * slope[1]
    )
    right_side = design.T @ ((end_offsets - nominal_ends) / end_errors)
    inverse = np.linalg.inv(normal)
    polynomials = evaluate_polynomials(np.arange(bands))[:, :n_parameters]
    errors = np.sqrt(np.einsum("ck,kl,cl->c", polynomials, inverse, polynomials))
    return nominal + polynomials @ (inverse @ right_side), errors
