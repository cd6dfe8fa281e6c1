"""Where the bands of a camera fall on its detector."""

import math
from dataclasses import dataclass

from cassi.systems.base import System
from cassi.systems.coded import CodedSystem

MOST_BESIDE = 2.0
"""Pixels of a band beside the detector that a calibrated camera may well have."""
SIDES = {-1: "columns", -2: "rows"}


@dataclass(frozen=True)
class Place:
    """Where one band falls along the dispersion.

    Attributes:
        offset: of its first pixel, from the detector's first.
        first: detector pixel that its first light falls on, from 0.
        last: the one that its last light falls on; below `first` where none falls on the detector.
        beside: pixels of the band that fall beside the detector, whole or not.
        lost: their share of the band, 0 to 1.
    """

    offset: float
    first: int
    last: int
    beside: float
    lost: float


def find_places(system: System) -> list[Place]:
    """Return the place of each band, in order of increasing wavelength; none without offsets."""
    if not isinstance(system, CodedSystem):
        return []
    width = system.cube_shape[system.axis]
    detector = system.measurement_shape[system.axis]
    return [_place(float(offset), width, detector) for offset in system.offsets]


def _place(offset: float, width: int, detector: int) -> Place:
    beside = min(width, max(0.0, -offset)) + min(width, max(0.0, offset + width - detector))
    beside = min(float(width), beside)
    first, last = math.floor(offset), math.ceil(offset + width) - 1
    return Place(offset, max(first, 0), min(last, detector - 1), beside, beside / width)


def check_places(places: list[Place]) -> None:
    """Raise ValueError where no light of a band falls on the detector: it cannot be recovered."""
    if dark := [band for band, place in enumerate(places, 1) if place.lost >= 1]:
        raise ValueError(
            f"system.offsets: expected every band on the detector, band {dark[0]} of "
            f"{len(places)} begins at pixel {places[dark[0] - 1].offset:.6g} and none of its light "
            "falls on it; correct offsets, step or system.detector"
        )


def describe_loss(places: list[Place], axis: int) -> str | None:
    """Say in one line what falls beside the detector; None where that is 2 pixels at most."""
    off = [band for band, place in enumerate(places, 1) if place.beside > MOST_BESIDE]
    if not off:
        return None
    which = f"band {off[0]}" if len(off) == 1 else f"{len(off)} bands, {off[0]} to {off[-1]},"
    falls = "falls" if len(off) == 1 else "fall"
    farthest = max(place.beside for place in places)
    share = sum(place.lost for place in places) / len(places)
    return (
        f"{which} {falls} up to {farthest:.4g} {SIDES[axis]} beside the detector, "
        f"{100 * share:.3g} % of all light"
    )
