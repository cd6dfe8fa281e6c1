"""The result of a calibration: the camera, and every estimate with its standard error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cassi.camera.band_offsets import BandOffsets
from cassi.camera.place import MaskPlacement
from cassi.systems import DDCassi, SDCassi, TiltedCassi

Watch = Callable[[str], None]
"""A function that is called with the name of each stage of a calibration."""


def watch_nothing(_: str) -> None:
    """Ignore the stage."""


@dataclass(frozen=True)
class Value:
    """One estimate of a calibration.

    Attributes:
        key: key in files.
        name: name in tables, with its unit.
        nominal: value of the nominal camera.
        value: value of the calibrated camera.
        standard_error: standard error of the estimate.
        taken: whether the value of the calibrated camera differs from the nominal one.
        pixels: pixels by which a change of the value by 1 moves the border of the mask or, if the
            value belongs to the bands, the outermost band.
    """

    key: str
    name: str
    nominal: float
    value: float
    standard_error: float
    taken: bool
    pixels: float = 1.0


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        system: the calibrated camera; its bad pixels count as good ones. It has the class of the
            nominal one, but is a `TiltedCassi` if the dispersion is tilted.
        estimates: every number that was estimated.
        taken: values of `PARAMETERS` and `BLURS` that turn the nominal camera into the calibrated
            one.
        before: held-out error of the nominal camera.
        after: held-out error of the calibrated camera.
        place: estimated place of the mask, and the light along the dispersion.
        told: whether the dispersion is identifiable. If not, the camera has the nominal dispersion.
        dropped: lines on estimates that the calibrated camera does not use, with the reason.
        names: band offsets that were estimated from the ends of the light; None: not estimated.
        levels: brightness of each frame in known light, in the unit of the frame. A brightness is
            the measurement of a band of value 1 behind a mask of 1.
    """

    system: SDCassi | TiltedCassi | DDCassi
    estimates: tuple[Value, ...]
    taken: dict[str, float]
    before: float
    after: float
    place: MaskPlacement
    told: bool = True
    dropped: tuple[str, ...] = ()
    names: BandOffsets | None = None
    levels: tuple[float, ...] = ()

    def refused(self, nominal: SDCassi | DDCassi, reason: str) -> "Calibration":
        """Return this result with the nominal camera in place of the calibrated one."""
        values = tuple(
            replace(estimate, value=estimate.nominal, taken=False) for estimate in self.estimates
        )
        result = replace(self, taken=dict.fromkeys(self.taken, 0.0), estimates=values)
        return replace(result, system=nominal, after=self.before, dropped=(reason,))


def describe(
    nominal: SDCassi,
    values: dict[str, float],
    place: MaskPlacement,
    names: BandOffsets | None = None,
) -> tuple[Value, ...]:
    """Return the estimates of a calibration in the directions of the displayed frame.

    Args:
        nominal: the nominal camera.
        values: values of `PARAMETERS` and `BLURS` that the calibrated camera has.
        place: the placement with the standard errors.
        names: band offsets, if they were estimated from the ends of the light.
    """
    errors = place.errors
    across_name, along_name = ("down", "right") if nominal.axis == -1 else ("right", "down")
    half_diagonal = math.hypot(*nominal.cube_shape[1:]) / 2
    radians_scale = math.radians(half_diagonal)
    # With a vertical dispersion (axis −2) the frame is transposed, and rotations change their sign.
    # Adding 0.0 below turns −0.0 into 0.0.
    sign = 1 if nominal.axis == -1 else -1
    gaps = max(nominal.bands - 1, 1)
    reach = max(abs(nominal.offsets[-1] - nominal.offsets[0]) / 2, 1.0)
    direction = 1 if nominal.offsets[-1] >= nominal.offsets[0] else -1
    estimates = [_make_shift(across_name, values["across"], errors["across"])]
    if names is not None:
        first, last = (names.offsets[band] - nominal.offsets[band] for band in (0, -1))
        # The errors of both ends may be equal. Then their mean is as uncertain as one end.
        error = (names.errors[0] + names.errors[-1]) / 2
        estimates += [
            _make_shift(along_name, (first + last) / 2, error),
            _make_step((last - first) / gaps, 2 * error / gaps, gaps),
        ]
    elif "along" in errors:
        shift_along = values["along"] + values["bands"]
        estimates.append(_make_shift(along_name, shift_along, errors["along"]))
        if "step" in errors:
            slope = 2 * direction / gaps
            estimates += [
                _make_step(values["step"] * slope, errors["step"] * abs(slope), gaps),
                _make_value(
                    "curve", "curve of the dispersion (px)", values["curve"], errors["curve"]
                ),
                _make_value(
                    "tilt",
                    "tilt of the dispersion (degrees)",
                    -sign * direction * math.degrees(math.atan(values["tilt"] / reach)) + 0.0,
                    math.degrees(errors["tilt"] / reach),
                    pixels=math.radians(reach),
                ),
            ]
    rotation, error = sign * values["rotation"] + 0.0, errors["rotation"]
    estimates.append(
        _make_value("rotation", "rotation (degrees)", rotation, error, 0.0, radians_scale)
    )
    scale, error = 1 + values["magnification"], errors["magnification"]
    estimates.append(
        _make_value("magnification", "magnification", scale, error, 1.0, half_diagonal)
    )
    return (*estimates, _make_blur(values["blur"], errors["blur"]))


def _make_value(
    key: str, name: str, value: float, error: float, nominal: float = 0.0, pixels: float = 1.0
) -> Value:
    return Value(key, name, nominal, value, error, value != nominal, pixels)


def _make_blur(variance: float, variance_error: float) -> Value:
    # The fit estimates the variance v of the blur, and the table has σ = √v. To first order the
    # error of σ is (error of v)/(2σ). If σ = 0, this is infinite, and √(error of v) replaces it.
    blur = max(variance, 0.0) ** 0.5
    error = variance_error / (2 * blur) if blur else variance_error**0.5
    return _make_value("blur", "mask blur (px)", blur, error)


def _make_shift(name: str, value: float, error: float) -> Value:
    return _make_value(name, f"shift {name} (px)", value, error)


def _make_step(value: float, error: float, gaps: int) -> Value:
    return _make_value("dispersion", "dispersion (px per band)", value, error, pixels=gaps / 2)
