"""Where a calibration starts: fits of plain scenes in every valley of their objective."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from cassi.calibration.fit import LEAST_WINDOWS, Fit, PlainScenes, are_near, bands_apart
from cassi.calibration.geometry import Geometry, moved_offsets
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
_WORSE = 0.2  # in objective, than without a bend: such a bend is not fitted
_VALLEYS = 2  # of these, richer models are tried
_FITTED = 6  # starts of a curve are fitted
_NEAR = 1.0  # pixels: bands this near are the same valley
NOMINAL = Geometry(whole=0)
"""The camera as it is given, bands between pixels."""


def fit_places(scenes: PlainScenes, radius: int) -> list[Fit]:
    """Fit plain scenes with the dispersion as it is given, in each valley; the best first.

    Args:
        scenes: the frames.
        radius: of the search for the shift, whole pixels.
    """
    scenes.watch("shifts")
    starts = search_start(scenes.frames, scenes.system, NOMINAL, radius, moving=False)
    fits = sorted((scenes.fit(each, PLACE[:-1]) for each in starts), key=_objective)
    fits = [fit for fit in fits if fit.objective <= fits[0].objective + _TIE]
    return _different(fits, scenes.system)


def fit_curves(
    scenes: PlainScenes, radius: int, bent: bool, still: Fit, asked: float = math.inf
) -> list[Fit]:
    """Fit plain scenes with the dispersion free, from straight and from bent curves on.

    Curves that share light alike fit nearly as well, though their bands lie pixels apart. What is
    known of a camera is where its outermost bands fall: of curves that plain scenes do not tell
    apart, the one that leaves those nearest to their places comes first.

    Args:
        scenes: the frames.
        radius: of the search for the shift, whole pixels.
        bent: look for curves, too.
        still: the best fit with the dispersion as it is given.
        asked: of the objective, with `bent`; where the curves of prisms, which are searched first,
            stay above it, no other is searched, and `still` is returned.

    Returns:
        Curves that are not clearly worse than the best, the likeliest first.
    """
    frames, system, best = scenes.frames, scenes.system, still.geometry
    aside = best.split_shift(system.axis)[0]
    across = round(aside)
    starts: list[Geometry] = []
    if bent:
        scenes.watch("dispersions of prisms")
        start = replace(
            NOMINAL.with_shift(aside - across, 0.0, system.axis), rotation=best.rotation
        )
        starts += search_prisms(frames, system, start, radius, best, across)
        if min(map(scenes.objective, starts), default=still.objective) > asked:
            return [still]
        scenes.watch("bent dispersions")
        starts += search_start(frames, system, NOMINAL, radius, bent=_BENT, across=across)
    scenes.watch("steps of the dispersion")
    starts += search_start(frames, system, NOMINAL, radius, across=across)
    fits = [scenes.fit(start) for start in _best_starts(scenes, starts, _FITTED)]
    fits = _different(sorted(fits, key=_objective), system)
    tied = [fit for fit in fits if fit is fits[0] or not scenes.is_surer(fits[0], fit)]
    ends = [_moved_ends(fit, system) for fit in tied]
    near = [fit for fit, end in zip(tied, ends, strict=True) if end < min(ends) + _NEAR]
    # Of one valley, the simplest curve that will do.
    alike = [
        fit
        for fit in near
        if bands_apart(fit.geometry, near[0].geometry, system) < _NEAR
        and not scenes.is_surer(near[0], fit)
    ]
    first = min(alike, key=lambda fit: len(fit.keys))
    return [first, *(fit for fit in tied if fit is not first)]


def with_richer(
    scenes: PlainScenes, fits: Sequence[Fit], radius: int, further: Sequence[str]
) -> list[Fit]:
    """Return fits of the place, and such with what else the best of them ask for.

    Args:
        scenes: the frames.
        fits: of the place, the likeliest first.
        radius: of the search for the shift, whole pixels.
        further: keys of parameters that may be added.
    """
    system, richer = scenes.system, list[Fit]()
    moving = "dispersion" in fits[0].keys
    for fit in fits[:_VALLEYS]:
        # Without a blur that there is, shift and step make up for it.
        blurred = scenes.fit(fit.geometry, (*fit.keys, "blur"))
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
        richer += _fit_shared(scenes, radius, fits[0])
    # More parameters fit better where they are right.
    richer = [fit for fit in richer if fit.objective <= fits[0].objective + _TIE]
    richer.sort(key=lambda fit: (len(fit.keys), fit.objective))
    return _different([*fits, *richer], system)


def _best_starts(scenes: PlainScenes, starts: Sequence[Geometry], most: int) -> list[Geometry]:
    """Return the starts that plain scenes fit best, none of them far worse than the best.

    Of those that are near each other, only the simplest is returned.
    """
    found = sorted((scenes.objective(start), k) for k, start in enumerate(starts))[:most]
    best = [starts[k] for value, k in found if value <= found[0][0] + 2 * _TIE]
    chosen: list[Geometry] = []
    for start in sorted(best, key=lambda each: len(each.dispersion)):
        if not any(are_near(start, other, scenes.system) for other in chosen):
            chosen.append(start)
    return chosen


def _objective(fit: Fit) -> float:
    return fit.objective


def _moved_ends(fit: Fit, system: SDCassi) -> float:
    """Return by how much a fit moves the outermost bands at most, pixels."""
    moved = moved_offsets(system, fit.geometry)[[0, -1]]
    return float((moved - torch.tensor(system.offsets)[[0, -1]].to(moved)).abs().max())


def _fit_shared(scenes: PlainScenes, radius: int, fit: Fit) -> list[Fit]:
    """Fit plain scenes with the mask between pixels too, and a tilt if they ask for it.

    The search begins with the mask half a pixel between: without that, bands between pixels have
    valleys beside each other, and the step that fits best is wrong.
    """
    halfway = Geometry(whole=0, interpolated=0.5)
    across = round(fit.geometry.split_shift(scenes.system.axis)[0])
    scenes.watch("masks between pixels")
    starts = search_start(scenes.frames, scenes.system, halfway, radius, across=across)
    starts = _best_starts(scenes, starts, _VALLEYS)
    fits = [scenes.fit(start, (*PLACE, *SHARED)) for start in starts]
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
    across: int | None = None,
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
        across: shift across the dispersion, whole pixels, where it is known.

    Returns:
        Different places, the best first; `start` alone where nothing is searched.
    """
    frames, system = _middle(frames, system)
    shifts = _shifts(radius, across)
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
    frames: Sequence[Frame],
    system: SDCassi,
    start: Geometry,
    radius: int,
    best: Geometry,
    across: int | None = None,
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
        across: as for `search_start`.

    Returns:
        Curves of third degree that fit the middle of the frames better, the best first.
    """
    frames, system = _middle(frames, system)
    parts = [Windows(frame, system, central=True, most=_SEARCHED) for frame in frames]
    parts = [part for part in parts if len(part)]
    if radius == 0 or system.bands < 4 or sum(len(part) for part in parts) < LEAST_WINDOWS:
        return []
    most = farthest_bend(system)
    shifts, found = _shifts(radius, across), []
    for bend in (sign * size for size in range(1, most + 1) for sign in (1, -1)):
        # The outermost bands stay where they are.
        slope = start.dispersion[0] + 2 * _THIRD * bend / (system.bands - 1)
        curve = replace(start, dispersion=(slope, float(bend), -_THIRD * bend))
        aside, along = start.split_shift(system.axis)
        curve = curve.with_shift(aside, along - bend, system.axis)
        found.append(_best_shift(parts, system, curve, shifts))
    scenes = PlainScenes(frames, system, central=True)
    chosen = sorted(found, key=lambda each: each[0])[:_TRIED]
    least = scenes.objective(best)
    fits = [scenes.fit(geometry) for value, geometry in chosen if value <= least + _WORSE]
    fits = sorted((fit for fit in fits if fit.objective < least), key=lambda fit: fit.objective)
    return [fit.geometry for fit in _different(fits, system)]


def farthest_bend(system: SDCassi) -> int:
    """Return the greatest bend that is searched, pixels at the last band, either way.

    With a larger one bands change places, as those of a prism do not.
    """
    return min(_BENDS, math.floor(abs(system.offsets[-1] - system.offsets[0]) / _LEAST_BENT))


def _shifts(radius: int, across: int | None) -> list[tuple[int, int]]:
    """Return the whole shifts that are searched, pixels across and along the dispersion."""
    side = range(-radius, radius + 1)
    return list(itertools.product(side if across is None else [across], side))


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
