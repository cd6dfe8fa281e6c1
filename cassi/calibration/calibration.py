"""What a calibration found."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cassi.camera.names import Names
from cassi.camera.place import Place
from cassi.systems import DDCassi, SDCassi, TiltedCassi

Watch = Callable[[str], None]
"""Is told what is being tried, every few seconds."""


def silent(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Value:
    """One number of the result.

    Attributes:
        key: of it.
        name: with its unit.
        nominal: of a camera that is as it should be.
        value: found; the nominal one where it is not taken.
        standard_error: of it.
        taken: whether the camera has it.
        pixels: by which a unit moves the border of the mask, or the outermost band.
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
    """The result.

    Attributes:
        system: the calibrated camera with all its pixels, of the nominal one's kind; `TiltedCassi`
            with a tilt.
        estimates: every number that was estimated.
        taken: values of `PARAMETERS` and `BLURS` that make the camera of the nominal one.
        before: held-out error of the nominal camera.
        after: of the calibrated one.
        place: of the mask, and the light along the dispersion.
        told: whether the frames tell the dispersion; if not, it is as it was given.
        dropped: what was found and is not the result's, with the reason.
        names: offsets of the bands by the ends of the light of a sensor's frame.
        levels: mean light of each frame of known light, in its unit: what a band of value 1 gives
            under a mask of 1.
    """

    system: SDCassi | TiltedCassi | DDCassi
    estimates: tuple[Value, ...]
    taken: dict[str, float]
    before: float
    after: float
    place: Place
    told: bool = True
    dropped: tuple[str, ...] = ()
    names: Names | None = None
    levels: tuple[float, ...] = ()

    def refused(self, nominal: SDCassi | DDCassi, reason: str) -> "Calibration":
        """Return the nominal camera as the result, for a reason."""
        values = tuple(replace(each, value=each.nominal, taken=False) for each in self.estimates)
        found = replace(self, taken=dict.fromkeys(self.taken, 0.0), estimates=values)
        return replace(found, system=nominal, after=self.before, dropped=(reason,))


def describe(
    nominal: SDCassi, taken: dict[str, float], place: Place, names: Names | None = None
) -> tuple[Value, ...]:
    """Return by how much a camera is off."""
    errors = place.errors
    aside, beside = ("down", "right") if nominal.axis == -1 else ("right", "down")
    half = math.hypot(*nominal.cube_shape[1:]) / 2
    turned = math.radians(half)
    # Its degrees are those of the mask as displayed, and 0 has no sign.
    sign = 1 if nominal.axis == -1 else -1
    gaps = max(nominal.bands - 1, 1)
    reach = max(abs(nominal.offsets[-1] - nominal.offsets[0]) / 2, 1.0)
    way = 1 if nominal.offsets[-1] >= nominal.offsets[0] else -1
    found = [_value(aside, f"shift {aside} (px)", taken["across"], errors["across"])]
    if names is not None:
        first, last = (names.offsets[at] - nominal.offsets[at] for at in (0, -1))
        # Both ends may err alike, so that their mean is no surer than one of them.
        error = (names.errors[0] + names.errors[-1]) / 2
        found += [
            _value(beside, f"shift {beside} (px)", (first + last) / 2, error),
            _step((last - first) / gaps, 2 * error / gaps, gaps),
        ]
    elif "along" in errors:
        along = taken["along"] + taken["bands"]
        found.append(_value(beside, f"shift {beside} (px)", along, errors["along"]))
        if "step" in errors:
            slope = 2 * way / gaps
            found += [
                _step(taken["step"] * slope, errors["step"] * abs(slope), gaps),
                _value("curve", "curve of the dispersion (px)", taken["curve"], errors["curve"]),
                _value(
                    "tilt",
                    "tilt of the dispersion (degrees)",
                    -sign * way * math.degrees(math.atan(taken["tilt"] / reach)) + 0.0,
                    math.degrees(errors["tilt"] / reach),
                    pixels=math.radians(reach),
                ),
            ]
    rotation = sign * taken["rotation"] + 0.0
    found.append(
        _value("rotation", "rotation (degrees)", rotation, errors["rotation"], pixels=turned)
    )
    size, error = 1 + taken["magnification"], errors["magnification"]
    found.append(_value("magnification", "magnification", size, error, 1.0, half))
    # Of the variance, for the error of a standard deviation of 0 has no linear part.
    blur = max(taken["blur"], 0.0) ** 0.5
    error = errors["blur"] / (2 * blur) if blur else errors["blur"] ** 0.5
    return (*found, _value("blur", "mask blur (px)", blur, error))


def _value(
    key: str, name: str, value: float, error: float, nominal: float = 0.0, pixels: float = 1.0
) -> Value:
    return Value(key, name, nominal, value, error, value != nominal, pixels)


def _step(value: float, error: float, gaps: int) -> Value:
    return _value("dispersion", "dispersion (px per band)", value, error, pixels=gaps / 2)
