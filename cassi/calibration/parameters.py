"""The numbers of a geometry one by one: how each is called, read, changed and how large it is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from cassi.calibration.geometry import Geometry
from cassi.systems import SDCassi


@dataclass(frozen=True)
class Parameter:
    """A number of a `Geometry`.

    Attributes:
        name: for tables, with its unit.
        nominal: its value in a camera that is as it should be.
        read: returns it.
        write: returns a geometry with another value.
        step: for difference quotients; moves nothing by more than 0.1 pixels.
        least: the lowest value there is.
    """

    name: str
    nominal: float
    read: Callable[[Geometry], float]
    write: Callable[[Geometry, float], Geometry]
    step: Callable[[SDCassi], float]
    least: float = -math.inf

    def distance(self, geometry: Geometry) -> float:
        """Return how far a geometry is from the nominal value."""
        return abs(self.read(geometry) - self.nominal)


def _radius(system: SDCassi) -> float:
    return math.hypot(*system.cube_shape[1:]) / 2


def _reach(system: SDCassi) -> float:
    return abs(system.offsets[-1] - system.offsets[0]) / 2


def _curve(order: int) -> Parameter:
    def write(geometry: Geometry, value: float) -> Geometry:
        longer = list(geometry.with_degree(order).dispersion)
        longer[order - 1] = value
        while len(longer) > 1 and longer[-1] == 0:
            longer.pop()
        return replace(geometry, dispersion=tuple(longer))

    return Parameter(
        f"dispersion {order} (px)" if order > 1 else "dispersion (px per band)",
        0.0,
        lambda geometry: geometry.with_degree(order).dispersion[order - 1],
        write,
        (lambda _: 0.1) if order > 1 else (lambda system: 0.2 / max(system.bands - 1, 1)),
    )


def _field(
    name: str,
    field: str,
    step: float | Callable[[SDCassi], float],
    nominal: float = 0.0,
    least: float = -math.inf,
) -> Parameter:
    def write(geometry: Geometry, value: float) -> Geometry:
        other: dict[str, Any] = {field: value}
        return replace(geometry, **other)

    return Parameter(
        name,
        nominal,
        attrgetter(field),
        write,
        step if callable(step) else lambda _: step,
        least,
    )


PARAMETERS: dict[str, Parameter] = {
    "down": Parameter(
        "shift down (px)",
        0.0,
        lambda geometry: geometry.shift[0],
        lambda geometry, value: replace(geometry, shift=(value, geometry.shift[1])),
        lambda _: 0.1,
    ),
    "right": Parameter(
        "shift right (px)",
        0.0,
        lambda geometry: geometry.shift[1],
        lambda geometry, value: replace(geometry, shift=(geometry.shift[0], value)),
        lambda _: 0.1,
    ),
    "rotation": _field(
        "rotation (degrees)", "rotation", lambda system: math.degrees(0.1 / _radius(system))
    ),
    "dispersion": _curve(1),
    **{f"dispersion_{order}": _curve(order) for order in range(2, 6)},
    "interpolated": _field("mask alone, along (px)", "interpolated", 0.1),
    "tilt": _field(
        "tilt of the dispersion (degrees)",
        "tilt",
        lambda system: math.degrees(0.1 / max(_reach(system), 1.0)),
    ),
    "magnification": _field(
        "magnification", "magnification", lambda system: 0.1 / _radius(system), nominal=1.0
    ),
    "blur": _field("mask blur, variance (px²)", "variance", 0.05, least=0.0),
    "contrast": _field("mask contrast", "contrast", 0.05, nominal=1.0, least=0.1),
}
"""All of them, by the key that models name them by."""

SHIFT = ("down", "right")
PLACE = (*SHIFT, "rotation", "dispersion")
"""What plain scenes tell too, and a calibration starts from."""
CODE = ("blur", "contrast")
"""How much of the code is left, which a reconstruction alone does not tell."""
FURTHER = ("magnification", *CODE)
"""What may be added, beside the curve of the dispersion."""
TILT = ("tilt",)
SHARED = ("interpolated",)
"""What shares light between pixels beside the dispersion: more is predicted better, whatever the
camera, so that plain scenes must ask for it too. The same step the other way shares as much."""


def changed(geometry: Geometry, values: Mapping[str, float]) -> Geometry:
    """Return a geometry with other values, none below the least there is."""
    for key, value in values.items():
        parameter = PARAMETERS[key]
        geometry = parameter.write(geometry, max(float(value), parameter.least))
    return geometry


def place_of(geometry: Geometry) -> tuple[str, ...]:
    """Return the keys of the place, with as many degrees of the dispersion as a geometry has."""
    orders = range(2, len(geometry.dispersion) + 1)
    return (*PLACE, *(f"dispersion_{order}" for order in orders))
