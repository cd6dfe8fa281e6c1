"""Find where the bands of a camera fall on its detector, and how much light falls beside it."""

import math
from dataclasses import dataclass

from cassi.systems.base import System
from cassi.systems.coded import CodedSystem

MAX_PIXELS_BESIDE = 2.0
"""A band may fall this many pixels beside the detector without a message.

The bands of a calibrated camera may do so."""
SIDES = {-1: "columns", -2: "rows"}


@dataclass(frozen=True)
class BandPosition:
    """Where one band falls along the dispersion.

    Attributes:
        offset: distance of its first pixel from the detector's first pixel, pixels.
        first: first detector pixel that its light falls on, from 0.
        last: last detector pixel that its light falls on; below `first` if no light does.
        pixels_beside: pixels of the band that fall beside the detector, may be fractional.
        lost_fraction: fraction of the band that falls beside the detector, 0 to 1.
    """

    offset: float
    first: int
    last: int
    pixels_beside: float
    lost_fraction: float


def find_places(system: System) -> list[BandPosition]:
    """Return the position of each band, in order of increasing wavelength.

    The list is empty if the camera has no offsets.
    """
    if not isinstance(system, CodedSystem):
        return []
    width = system.cube_shape[system.axis]
    detector = system.measurement_shape[system.axis]
    return [_locate_band(float(offset), width, detector) for offset in system.offsets]


def _locate_band(offset: float, width: int, detector: int) -> BandPosition:
    beside_start = min(width, max(0.0, -offset))
    beside_end = min(width, max(0.0, offset + width - detector))
    pixels_beside = min(float(width), beside_start + beside_end)
    first = max(math.floor(offset), 0)
    last = min(math.ceil(offset + width) - 1, detector - 1)
    return BandPosition(offset, first, last, pixels_beside, pixels_beside / width)


def check_places(places: list[BandPosition]) -> None:
    """Raise ValueError if a band lies beside the detector, so that it cannot be recovered."""
    if dark := [band for band, place in enumerate(places, 1) if place.lost_fraction >= 1]:
        raise ValueError(
            f"system.offsets: expected every band on the detector, band {dark[0]} of "
            f"{len(places)} begins at pixel {places[dark[0] - 1].offset:.6g} and none of its light "
            "falls on it; correct offsets, step or system.detector"
        )


def describe_loss(places: list[BandPosition], axis: int) -> str | None:
    """Say in one line which bands fall beside the detector by more than 2 pixels, or None."""
    lossy_bands = [
        band for band, place in enumerate(places, 1) if place.pixels_beside > MAX_PIXELS_BESIDE
    ]
    if not lossy_bands:
        return None
    subject = f"band {lossy_bands[0]} falls"
    if len(lossy_bands) > 1:
        subject = f"{len(lossy_bands)} bands, {lossy_bands[0]} to {lossy_bands[-1]}, fall"
    max_beside = max(place.pixels_beside for place in places)
    mean_loss = sum(place.lost_fraction for place in places) / len(places)
    return (
        f"{subject} up to {max_beside:.4g} {SIDES[axis]} beside the detector, "
        f"{100 * mean_loss:.3g} % of all light"
    )
