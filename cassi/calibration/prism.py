"""The bend of a prism's dispersion that light in lines shows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from cassi.calibration.bend import MOST
from cassi.calibration.fit import LEAST_WINDOWS, PlainScenes
from cassi.calibration.geometry import Geometry, placed_camera
from cassi.calibration.lines import ASKED, SHADES
from cassi.calibration.search import NOMINAL, fit_places
from cassi.calibration.windows import Frame, Windows
from cassi.systems import SDCassi
from cassi.systems.dispersion import prism_places

_STEP = 0.05
_BEYOND = 6  # steps that are looked at on either side, to see how sharp a valley is
_COARSE = 5  # of these steps, in light of all wavelengths, which hardly feels the bend
_SHIFTS = torch.arange(-1, 1.01, 0.25).tolist()
"""Pixels, of the outermost bands."""
_GAIN = 0.01
_CLEAR = 0.015
"""In objective, by which lines fit better where the bend has them than a pixel beside, and than
light of all wavelengths."""
_STEEP = 2 / 3
"""Of what lines gain from the bend: so much they must lose again within a pixel."""


@dataclass(frozen=True)
class Valley:
    """A bend that light in lines fits better than those beside it.

    Attributes:
        bend: 0 for even distances, 1 for those of a prism of N-BK7.
        shift: pixels by which the outermost bands lie further along the dispersion.
    """

    bend: float
    shift: float


def bent_camera(
    system: SDCassi, wavelengths: Sequence[float], bend: float, shift: float = 0.0
) -> SDCassi:
    """Return a camera with the bands of a prism between the same outermost bands.

    Args:
        system: with even bands.
        wavelengths: nm, one per band.
        bend: 0 for even distances, 1 for those of a prism of N-BK7.
        shift: of all bands along the dispersion, pixels.
    """
    found = placed_camera(system, system.mask, _bent(system, wavelengths, bend, shift), None)
    assert isinstance(found, SDCassi)
    return found


def _bent(system: SDCassi, wavelengths: Sequence[float], bend: float, shift: float) -> list[float]:
    given = np.asarray(system.offsets, dtype=float)
    curve = given[0] + (given[-1] - given[0]) * np.array(prism_places(wavelengths))
    return list((given + bend * (curve - given) + shift).tolist())


def find_valley(
    frame: Frame, system: SDCassi, wavelengths: Sequence[float], radius: int
) -> Valley | None:
    r"""Find the bend that a frame shows; None where it shows none.

    A curve of any shape that shares light between pixels as the true one does fits nearly as well,
    and light of all wavelengths is fitted by many. Prisms have one shape, so that a bend and a
    shift are all that is searched: every bend from 0 to 1.25, and shifts of a pixel either way.

    Light in lines fits one bend, in a valley as narrow as half a pixel of the bands in the middle.
    Light of all wavelengths fits all bends nearly alike. So the bend is shown where the objective

        (mean of O a pixel beside on either side) − O  +  O_all − O

    is above 0.015, O in lines and O_all in light of all wavelengths, each at its best bend, and
    above two thirds of what lines gain from the bend, which is 0.01 at least: what falls slowly
    over many pixels is another spectrum.

    Args:
        frame: a snapshot, its light in lines.
        system: the camera, with even bands.
        wavelengths: nm, one per band.
        radius: of the search for the mask, whole pixels.
    """
    scenes = PlainScenes([frame], system)
    if sum(map(len, scenes.parts)) < LEAST_WINDOWS:
        return None
    best = fit_places(scenes, radius)[0].geometry
    across, _ = best.split_shift(system.axis)
    start = replace(NOMINAL, rotation=best.rotation).with_shift(across, 0.0, system.axis)
    places = [start.with_shift(across, shift, system.axis) for shift in _SHIFTS]

    def profile(frame: Frame, bends: Sequence[float]) -> NDArray[np.float64]:
        rows = []
        for bend in bends:
            windows = Windows(frame, bent_camera(system, wavelengths, bend), most=ASKED)
            rows.append([windows.objective(place) for place in places])
        return np.array(rows)

    count = round(MOST / _STEP) + 1
    bends = [_STEP * k for k in range(-_BEYOND, count + _BEYOND)]
    lines = profile(frame, bends)
    every = Frame.snapshot(frame.y, system.bands, frame.good, SHADES, frame.shift)
    other = float(profile(every, bends[_BEYOND : _BEYOND + count : _COARSE]).min())
    # A pixel in the middle.
    curve = np.array(_bent(system, wavelengths, 1, 0)) - np.array(system.offsets)
    found = choose_valley(lines, other, bends, 1 / max(float(np.abs(curve).max()), 1e-6))
    return None if found is None else _refined(frame, system, wavelengths, start, found)


def _refined(
    frame: Frame, system: SDCassi, wavelengths: Sequence[float], start: Geometry, valley: Valley
) -> Valley:
    """Return a valley with the bend and the shift that plain scenes fit best."""
    across, key = start.split_shift(system.axis)[0], "right" if system.axis == -1 else "down"
    bend, shift = valley.bend, valley.shift
    for step in (_STEP, _STEP / 2):
        tried = []
        for k in (-1, 0, 1):
            scenes = PlainScenes([frame], bent_camera(system, wavelengths, bend + k * step))
            tried.append(scenes.fit(start.with_shift(across, shift, system.axis), (key,)))
        away, _ = _bottom(np.array([fit.objective for fit in tried]))
        shifts = [fit.geometry.along(system.axis) for fit in tried]
        bend, shift = bend + (away - 1) * step, float(np.interp(away, range(3), shifts))
    return Valley(bend, shift)


def choose_valley(
    lines: NDArray[np.float64], other: float, bends: Sequence[float], pixel: float
) -> Valley | None:
    """Return the deepest valley of a table of objectives, see `find_valley`.

    Args:
        lines: objectives of light in lines, bends down and shifts across.
        other: the lowest of light of all wavelengths.
        bends: of the rows, some of them beyond those that are looked for.
        pixel: by which the bend moves bands in the middle by a pixel.
    """
    shifts, lowest = np.array([_bottom(row) for row in lines]).T
    k = _BEYOND + int(lowest[_BEYOND : len(bends) - _BEYOND].argmin())
    if lowest[k] > lowest[k - 1 : k + 2].min():  # bends beyond fit better
        return None
    away, least = _bottom(lowest[k - 1 : k + 2])
    bend = float(bends[k] + _STEP * (away - 1))
    shift = _SHIFTS[0] + (_SHIFTS[1] - _SHIFTS[0]) * float(np.interp(bend, bends, shifts))
    sharp = float(np.interp([bend - pixel, bend + pixel], bends, lowest).mean()) - least
    gain, clear = float(lowest[_BEYOND]) - least, sharp + other - least
    shown = gain > _GAIN and clear > max(_CLEAR, _STEEP * gain)
    return Valley(bend, shift) if shown else None


def _bottom(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return where a parabola through the lowest values has its bottom, in steps, and its value."""
    k = int(values.argmin())
    if not 0 < k < len(values) - 1:
        return float(k), float(values[k])
    slope, curvature = values[k + 1] - values[k - 1], values[k - 1 : k + 2] @ [1, -2, 1]
    away = -slope / (2 * curvature) if curvature > 0 else 0.0
    return float(k + away), float(values[k] + slope * away / 4)
