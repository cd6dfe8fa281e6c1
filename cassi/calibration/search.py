"""Where a calibration starts: fits of plain scenes in every valley of their objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from cassi.calibration.fit import LEAST_WINDOWS, Fit, PlainScenes, are_near
from cassi.calibration.geometry import Geometry
from cassi.calibration.parameters import PLACE, SHARED, TILT
from cassi.calibration.windows import Frame, Windows
from cassi.systems import SDCassi

_LINES = 192  # of a frame's middle, to search
_SEARCHED = 64  # windows are enough to find the right pixel
_TIE = 0.05  # in objective: minima of plain scenes this close are tried with reconstructions
_BENT = 0.5  # px at the last band: a curve from which the search may start too
_BENDS = 7  # px at the last band, of prisms' curves: 10 in the middle
_LEAST_BENT = 4.5  # spans of the bands, over the bend: beyond, a curve turns back
_THIRD = 0.2  # of the bend, the third degree of a prism's curve
_TRIED = 4  # bends are fitted
_VALLEYS = 2  # of these, richer models are tried


def fit_starts(
    scenes: PlainScenes, radius: int, place: Sequence[str], further: Sequence[str]
) -> list[Fit]:
    """Fit plain scenes: the place in each valley, then what else they ask for; best first.

    Args:
        scenes: the frames.
        radius: of the search for the shift, whole pixels.
        place: keys of the parameters of the place.
        further: keys of those that may be added.
    """
    system, nominal = scenes.system, Geometry(whole=0)
    moving = "dispersion" in place
    places = search_start(scenes.frames, system, nominal, radius, moving=moving)
    fits = [scenes.fit(start, place) for start in places]
    fits = _different(sorted(fits, key=lambda fit: fit.objective), system)
    fits = [fit for fit in fits if fit.objective <= fits[0].objective + _TIE]
    richer = []
    if "dispersion_2" in further:
        bent = search_start(scenes.frames, system, nominal, radius, bent=_BENT)
        richer = [scenes.fit(start) for start in bent]
        best = min((*fits, *richer), key=lambda fit: fit.objective).geometry
        prisms = search_prisms(scenes.frames, system, nominal, radius, best)
        richer += [scenes.fit(start) for start in prisms]
    for fit in fits[:_VALLEYS]:
        # Without a blur that there is, shift and step make up for it.
        blurred = scenes.fit(fit.geometry, (*place, "blur"))
        if blurred.is_clear("blur"):
            fit = blurred
            richer.append(fit)
        tilt = TILT if moving else ()
        asked = scenes.ask(fit, [key for key in (*further, *tilt) if key not in fit.keys])
        if TILT[0] in asked:
            asked.remove(TILT[0])
            richer += _fit_tilted(scenes, fit)
        if asked:
            richer.append(scenes.fit(fit.geometry, (*fit.keys, *asked)))
    if moving and any(fit.is_between(system) for fit in (*fits, *richer)):
        richer += _fit_shared(scenes, radius, place)
    # More parameters fit better where they are right.
    richer = [fit for fit in richer if fit.objective <= fits[0].objective + _TIE]
    richer.sort(key=lambda fit: (len(fit.keys), fit.objective))
    return _different([*fits, *richer], system)


def _fit_shared(scenes: PlainScenes, radius: int, place: Sequence[str]) -> list[Fit]:
    """Fit plain scenes with the mask between pixels too, and a tilt if they ask for it.

    The search begins with the mask half a pixel between: without that, bands between pixels have
    valleys beside each other, and the step that fits best is wrong.
    """
    halfway = Geometry(whole=0, interpolated=0.5)
    starts = search_start(scenes.frames, scenes.system, halfway, radius)
    fits = [scenes.fit(start, (*place, *SHARED)) for start in starts]
    found = [[fit, *_fit_tilted(scenes, fit)] for fit in fits if fit.is_clear(SHARED[0])]
    return [fit for both in found for fit in both]


def _fit_tilted(scenes: PlainScenes, fit: Fit) -> list[Fit]:
    """Return a fit with a tilt, turned about the band that fits best; none if none is asked."""
    if scenes.system.offsets[0] == scenes.system.offsets[-1]:
        return []
    starts = [replace(fit.geometry, pivot=pivot) for pivot in (0.5, 0.0, 1.0)]
    fits = [scenes.fit(start, (*fit.keys, *TILT)) for start in starts]
    best = min(fits, key=lambda each: each.objective)
    return [best] if best.is_clear(TILT[0]) else []


def _different(fits: Sequence[Fit], system: SDCassi) -> list[Fit]:
    """Return the first fit of each minimum and model."""
    found: list[Fit] = []
    for fit in fits:
        alike = [other.geometry for other in found if other.keys == fit.keys]
        if not any(are_near(fit.geometry, other, system) for other in alike):
            found.append(fit)
    return found


def search_start(
    frames: Sequence[Frame],
    system: SDCassi,
    start: Geometry,
    radius: int,
    bent: float = 0.0,
    moving: bool = True,
) -> list[Geometry]:
    """Find where to start: shift and dispersion on a grid, then a short fit of each best shift.

    The objective has valleys beside each other, about a pixel apart, where shift and dispersion
    make up for each other. Only the middle of the frames is looked at, which a rotation moves
    little.

    Args:
        frames: of one camera.
        system: the nominal camera.
        start: the middle of the grid.
        radius: pixels, of the shift; 0 searches nothing.
        bent: pixels; if not 0, dispersion curves of second degree that are bent by so much either
            way are tried, each with three steps.
        moving: look for the step too.

    Returns:
        Different places, the best first; `start` alone where nothing is searched.
    """
    frames, system = _middle(frames, system)
    side = range(-radius, radius + 1)
    shifts = list(itertools.product(side, side))
    parts = [Windows(frame, system, central=True, most=_SEARCHED) for frame in frames]
    parts = [part for part in parts if len(part)]
    if radius == 0 or sum(len(part) for part in parts) < LEAST_WINDOWS:
        return [start]
    scenes = PlainScenes(frames, system, central=True)
    # Steps that move the outermost bands by a pixel at most.
    per_band = 1 / max(system.bands - 1, 1)
    fits: list[Fit] = []
    reach = 0 if not moving else 2 if bent == 0 else 1
    slopes = range(-reach, reach + 1)
    keys = None if moving else PLACE[:-1]
    bends = (0.0,) if bent == 0 else (bent, -bent)
    for slope, bend in itertools.product(slopes, bends):
        curved = start.with_degree(1 if bent == 0 else 2)
        curve = list(curved.dispersion)
        curve[0] += slope * per_band
        curve[1:2] = [value + bend for value in curve[1:2]]
        curved = replace(curved, dispersion=tuple(curve))
        _, geometry = _best_shift(parts, system, curved, shifts)
        fits.append(scenes.fit(geometry, keys, iterations=6))
    fits.sort(key=lambda fit: fit.objective)
    return [fit.geometry for fit in _different(fits, system)]


def search_prisms(
    frames: Sequence[Frame], system: SDCassi, start: Geometry, radius: int, best: Geometry
) -> list[Geometry]:
    """Find where curves like those of prisms start, which bend too far for a fit to find them.

    A prism's dispersion falls with the wavelength, about as λ⁻²: its curve is a line, a second
    degree, and a third of a fifth of that with the other sign. Only the second degree is searched,
    up to ten pixels in the middle of the spectrum, both ways; a fit finds the others.

    Args:
        frames: of one camera.
        system: the nominal camera.
        start: the middle of the search.
        radius: pixels, of the shift; 0 searches nothing.
        best: what fits best without a bend.

    Returns:
        Curves of third degree that fit the middle of the frames better, the best first.
    """
    frames, system = _middle(frames, system)
    parts = [Windows(frame, system, central=True, most=_SEARCHED) for frame in frames]
    parts = [part for part in parts if len(part)]
    if radius == 0 or system.bands < 4 or sum(len(part) for part in parts) < LEAST_WINDOWS:
        return []
    most = farthest_bend(system)
    side = range(-radius, radius + 1)
    shifts, found = list(itertools.product(side, side)), []
    for bend in (sign * size for size in range(1, most + 1) for sign in (1, -1)):
        # The outermost bands stay where they are.
        slope = start.dispersion[0] + 2 * _THIRD * bend / (system.bands - 1)
        curve = replace(start, dispersion=(slope, float(bend), -_THIRD * bend))
        across, along = start.split_shift(system.axis)
        curve = curve.with_shift(across, along - bend, system.axis)
        found.append(_best_shift(parts, system, curve, shifts))
    scenes = PlainScenes(frames, system, central=True)
    chosen = sorted(found, key=lambda each: each[0])[:_TRIED]
    fits = [scenes.fit(geometry) for _, geometry in chosen]
    least = scenes.objective(best)
    fits = sorted((fit for fit in fits if fit.objective < least), key=lambda fit: fit.objective)
    return [fit.geometry for fit in _different(fits, system)]


def farthest_bend(system: SDCassi) -> int:
    """Return the greatest bend that is searched, pixels at the last band, either way.

    With a larger one bands change places, as those of a prism do not.
    """
    return min(_BENDS, math.floor(abs(system.offsets[-1] - system.offsets[0]) / _LEAST_BENT))


def _best_shift(
    parts: Sequence[Windows], system: SDCassi, curved: Geometry, shifts: Sequence[tuple[int, int]]
) -> tuple[float, Geometry]:
    """Return the lowest objective over shifts, and the geometry that is moved so."""
    weights = torch.tensor([float(len(part)) for part in parts])
    across, along = curved.split_shift(system.axis)
    # A fraction of half a pixel is as far from a whole pixel as can be.
    halves = [curved.with_shift(across, along + half, system.axis) for half in (0, 0.5)]
    tables = torch.stack(
        [
            weights @ torch.tensor([part.shifted_objective(half, shifts) for part in parts])
            for half in halves
        ]
    )
    half, best = divmod(int(tables.argmin()), len(shifts))
    more_across, more_along = shifts[best]
    along = halves[half].along(system.axis) + more_along
    moved = curved.with_shift(across + more_across, along, system.axis)
    return float(tables.min() / weights.sum()), moved


def _middle(frames: Sequence[Frame], system: SDCassi) -> tuple[list[Frame], SDCassi]:
    """Crop large frames across the dispersion, about their middle, where a rotation moves least."""
    axis, length = system.part_axis, system.cube_shape[system.part_axis]
    first = max(length - _LINES, 0) // 2
    kept = length - 2 * first
    cropped = [
        replace(
            frame,
            y=frame.y.narrow(axis, first, kept),
            good=None if frame.good is None else frame.good.narrow(axis, first, kept),
        )
        for frame in frames
    ]
    return cropped, system.part(first, first + kept)
