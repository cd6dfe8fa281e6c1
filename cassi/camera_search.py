"""Find the camera from a measurement: with the right one, held-out pixels are predicted best."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cassi.calibration import (
    Alignment,
    Calibration,
    Frame,
    Prepare,
    Reconstruct,
    calibrate,
    fit_light,
    refine_mask,
)
from cassi.calibration import align as align_mask
from cassi.calibration.band_check import AWAY, Bands, find_bands
from cassi.calibration.bend import Bend, find_end, likely_bend
from cassi.calibration.combine import PLAIN
from cassi.calibration.dual import calibrate_dual
from cassi.calibration.fit import SURE, PlainScenes
from cassi.calibration.geometry import Geometry, moved_camera, placed, placed_camera
from cassi.calibration.lines import SHADES, comes_in_lines
from cassi.calibration.mask_alignment import KEYS
from cassi.calibration.parameters import FURTHER, PARAMETERS
from cassi.calibration.prism import Valley, bent_camera, find_valley
from cassi.calibration.search import NOMINAL
from cassi.calibration.selection import Stage
from cassi.calibration.windows import has_one_mask
from cassi.camera.found import can_be_placed, find_light
from cassi.camera.names import Names, name_bands
from cassi.camera.place import Place
from cassi.methods.auto import auto
from cassi.solvers import Solver
from cassi.solvers.heldout import measure_heldout
from cassi.solvers.linear_system import seen
from cassi.solvers.schedules import as_schedule
from cassi.solvers.statistics import relative_noise, unit_of
from cassi.systems import DDCassi, SDCassi, System, TiltedCassi, WideCassi
from cassi.systems.dispersion import off_a_prism
from cassi.systems.tilted import Shift


def align(y: Tensor, system: System) -> Alignment | None:
    """Return the camera with its mask where the measurement shows that it lies; None: as it is.

    Args:
        y: measurement `(B, K, H', W')`, all samples by one camera.
        system: the nominal camera.
    """
    found = find_place(y, system)
    return found if isinstance(found, Alignment) else None


def find_place(y: Tensor, system: System) -> Alignment | Bands | None:
    """Find where the mask lies, or that it is the bands which lie elsewhere; None: as it is.

    Where light in lines falls elsewhere than the bands, the mask stays: moved, it would make up for
    a wrong dispersion, and hide it from `check_camera`.

    `cassi.methods.auto` predicts the held-out pixels, whatever method reconstructs afterwards; see
    `cassi.calibration.align`.

    Args:
        y: measurement `(B, K, H', W')`, all samples by one camera.
        system: the nominal camera.
    """
    method, y = auto(), _scaled(y, system)
    found = align_mask(y, system, lambda camera: measure_heldout(y, camera, method).error)
    bands = None if found is None else find_bands(y, system)
    return found if bands is None or bands.away < AWAY else bands


def calibrate_on(
    y: Tensor,
    system: System,
    solver: Solver | None = None,
    *,
    known: Sequence[Frame] = (),
    prism: Sequence[float] = (),
    shift: Shift = Frame.shift,
    seed: int = 0,
    **settings: Any,
) -> Calibration:
    """Calibrate a camera on its own snapshots: what both commands and `cassi.calibrate` do.

    Where only the step was told (`prism`), the light along the dispersion is found first. Where it
    comes in one line per band, the dispersion is fitted, and a bend is searched that lines show.
    Other light does not tell it: it takes the likeliest bend. A mask that is moved alone takes the
    place of what was found if it predicts pixels held out better. Frames of known light then give
    the mask pixel by pixel.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes.
        system: the nominal camera, a `SDCassi`, `WideCassi` or `DDCassi`, its bad pixels left out
            or not.
        solver: predicts the held-out pixels; None: `cassi.methods.auto`.
        known: frames of even scenes in known light; none for a `DDCassi`.
        prism: nm, one per band, of a sensor's frames whose user told the step alone: bands at even
            distances may be those of a prism. Empty where their places were told.
        shift: interpolates bands, see `Frame`.
        seed: of what the solver draws, and of which pixels are held out.
        settings: of `cassi.calibration.calibrate`.

    Returns:
        What was found, the camera with all its pixels among it.

    Raises:
        ValueError: it is another camera, or the frames are too dark or small.
    """
    began, nominal = time.perf_counter(), system.plain if isinstance(system, System) else system
    if type(nominal) is DDCassi:
        if known:
            raise ValueError(
                "calibrate: expected no frame of known light for a DDCassi; leave white out"
            )
        return _calibrate_dual(y, system, nominal, settings.get("radius", 2))
    if isinstance(nominal, WideCassi):  # where the bands lie does not depend on their width
        system = system.around(nominal.narrow())
    narrow = system.plain if isinstance(system, System) else system
    if type(narrow) is not SDCassi:
        raise ValueError(
            f"calibrate: expected SDCassi, WideCassi or DDCassi, got {type(nominal).__name__}"
        )
    good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
    y, solver = _scaled(y, system), solver or auto()
    units = [unit_of(frame.y) for frame in known]
    known = [replace(f, y=f.y / u, shift=shift) for f, u in zip(known, units, strict=True)]
    frames = [Frame.snapshot(y, narrow.bands, good, shift=shift), *known]
    torch.manual_seed(seed)
    is_told = not prism or any(frame.points for frame in known)
    most = 0.0 if is_told else off_a_prism(narrow.offsets, prism)
    light = None if known else _find_light(y, narrow, good, prism)
    lines = light is None or light[1].told == "lines"
    valley = None
    if lines and most >= AWAY and has_one_mask(narrow):
        valley = find_valley(frames[0], narrow, prism, settings.get("radius", 2))
    start, told = narrow, valley is not None
    if valley is not None:
        start = bent_camera(narrow, prism, valley.bend, valley.shift)
    found = calibrate(
        frames, start, by_solver(solver), seed=seed, told=told, lines=lines, **settings
    )
    away = max(abs(a - b) for a, b in zip(found.system.offsets, start.offsets, strict=True))
    if not known and away <= AWAY:
        found = _or_aligned(found, y, system.around(start), start)
    if valley is not None:
        found = _from_valley(found, valley, y, system, narrow, most)
    elif most >= AWAY and not found.told and isinstance(found.system, SDCassi):
        found = bend(found, y, system, prism)
    taken = next(stage for stage in reversed(found.stages) if stage.taken)
    if (found.model, found.geometry) != (taken.model, taken.geometry):
        seconds = time.perf_counter() - began
        last = Stage(found.model, found.geometry, found.after, True, seconds)
        found = replace(found, stages=[*found.stages, last])
    camera = found.system
    lights = [fit_light(frame, camera) for frame in known]
    if lights:
        across = camera.across if isinstance(camera, TiltedCassi) else None
        camera = placed_camera(narrow, refine_mask(lights, camera), camera.offsets, across)
    if isinstance(nominal, WideCassi) and isinstance(camera, SDCassi):
        camera = WideCassi.like(camera, nominal.band_width)
    if most and found.told and comes_in_lines(y, system.around(camera)):
        most = 0.0
    elif found.bend is not None and not found.told:
        most = 2 * found.bend.most
    levels = tuple(each.level * float(u) for each, u in zip(lights, units, strict=True))
    spectrum, names = light or (None, None)
    return replace(found, system=camera, levels=levels, away=most, spectrum=spectrum, names=names)


def _find_light(
    y: Tensor, camera: SDCassi, good: Tensor | None, wavelengths: Sequence[float]
) -> tuple[Place, Names] | None:
    """Return the light of a sensor's frame along the dispersion, and what it tells of the bands.

    Where no line per band is seen, the frame does not tell its dispersion, and a fit would make one
    up. None where nothing can be seen: no wavelengths, two bands, a mask per band, few windows.
    """
    if not wavelengths or not can_be_placed(camera) or camera.bands < 3:
        return None
    try:
        found = find_light(y, camera, good, wavelengths)
    except ValueError:  # no window is lit
        return None
    return found, name_bands(found.offsets, found.light, camera.offsets, wavelengths)


def _calibrate_dual(y: Tensor, system: System, nominal: DDCassi, radius: int) -> Calibration:
    good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
    frame = Frame.snapshot(_scaled(y, system), nominal.bands, good)
    return calibrate_dual(frame, nominal, lambda camera: _misses(y, system, camera), radius)


def _scaled(y: Tensor, system: System) -> Tensor:
    """Return what the camera sees, all samples in one unit in which squares stay finite."""
    y = seen(y, system)
    return y / unit_of(y).amax()


_CLOSE = 0.02
"""Share of the held-out error by which a camera that is aligned must be better than a calibrated
one: it has its bands where they were, and shares light between pixels, which predicts better."""


def _misses(y: Tensor, system: System, camera: System) -> float:
    """Return the held-out error through a camera, of the sensor that another one has."""
    return measure_heldout(y, system.around(camera), auto()).error


def _or_aligned(found: Calibration, y: Tensor, system: System, start: SDCassi) -> Calibration:
    """Return a calibration, or one whose mask is moved alone where that predicts better.

    Along the dispersion a fraction of a pixel goes into bands that fall between pixels: a mask that
    is interpolated, and spread by them, is blurred twice.
    """
    aligned = align(y, system)
    if aligned is None or _misses(y, system, found.system) * (1 - _CLOSE) <= aligned.after:
        return found
    geometry = placed(aligned.geometry, start)
    model = tuple(key for key in KEYS if PARAMETERS[key].distance(geometry) > 0)
    errors = found.errors | {key: math.inf for key in model if key not in found.errors}
    return found.superseded(
        "the mask moved alone predicts held-out pixels better",
        geometry=geometry,
        model=model,
        errors=errors,
        system=moved_camera(start, geometry),
        before=aligned.before,
        after=aligned.after,
    )


_PLACED = 0.1
"""Pixels, error of where light in lines has the bands of a prism."""


def _from_valley(
    found: Calibration, valley: Valley, y: Tensor, system: System, narrow: SDCassi, most: float
) -> Calibration:
    """Return the calibration of a bent camera with its shift from the even one, and the bend."""
    across, along = found.geometry.split_shift(narrow.axis)
    places = tuple(found.system.offsets)
    return replace(
        found,
        geometry=found.geometry.with_shift(across, along + valley.shift, narrow.axis),
        model=tuple(dict.fromkeys((*found.model, "right" if narrow.axis == -1 else "down"))),
        before=_misses(y, system, narrow),
        after=_misses(y, system, found.system),
        bend=Bend(valley.bend, _PLACED / most, valley.shift, _PLACED, places, _PLACED),
    )


def bend(
    found: Calibration, y: Tensor, system: System, wavelengths: Sequence[float]
) -> Calibration:
    """Bend the dispersion of a calibrated camera whose frame does not tell it.

    The bend is the likeliest for the light, and the bands are shifted to where light ends and where
    plain scenes in light of all wavelengths fit best. A mask was moved beside a wrong curve, and
    made up for it. So it is put back, unless those plain scenes are sure that it lies elsewhere.

    Args:
        found: the calibration, its camera an `SDCassi` with even bands.
        y: the snapshots.
        system: the nominal camera, an `SDCassi` with the same bands.
        wavelengths: nm, one per band.

    Returns:
        The calibration with this shift, its camera and the bend; as it was where no bend is
        likelier.
    """
    nominal, good, camera = system.plain, system.good_pixels, found.system
    assert isinstance(nominal, SDCassi)
    assert isinstance(camera, SDCassi)
    y, good = _scaled(y, system), None if good is None else good.expand_as(y)
    axis = nominal.axis
    across, along = found.geometry.split_shift(axis)
    aside, key = ("down", "right") if axis == -1 else ("right", "down")
    likely = likely_bend(found.light, camera.offsets, wavelengths, find_end(y, camera, good))
    if likely is None:
        return found
    scenes = PlainScenes([Frame.snapshot(y, nominal.bands, good, SHADES)], nominal)
    likely = _placed(likely, scenes, replace(found.geometry, whole=0), key)
    model = (aside, "rotation", *(each for each in found.model if each in FURTHER))
    start = replace(found.geometry, whole=0).with_shift(across, 0.0, axis)
    fit = scenes.fit(start, model)
    geometry, errors = fit.geometry, found.errors | fit.errors
    if scenes.sureness(geometry, NOMINAL) <= SURE:
        geometry, errors, model = NOMINAL, found.errors, ()
    # Where calibration moved the mask, its offsets are counted from another place.
    shift = along + likely.shift
    first = nominal.offsets[0] + shift - likely.offsets[0]
    offsets = [first + value for value in likely.offsets]
    bent = placed_camera(nominal, moved_camera(nominal, geometry).mask, offsets, None)
    return found.superseded(
        "beside even bands the mask makes up for a bend, which this light makes likely",
        geometry=geometry.with_shift(geometry.split_shift(axis)[0], shift, axis),
        model=(*model, key),
        errors=errors | {key: likely.shift_error},
        system=bent,
        before=_misses(y, system, nominal),
        after=_misses(y, system, bent),
        bend=likely,
    )


_SHARED = 0.1
"""Pixels, error of a shift that plain scenes find in light of all wavelengths, beside their own."""


def _placed(likely: Bend, scenes: PlainScenes, start: Geometry, key: str) -> Bend:
    """Shift bands to the mean of where light ends and where plain scenes have them.

    Args:
        likely: by where light ends.
        scenes: in light of all wavelengths.
        start: of the camera, its mask where it lies.
        key: of the shift along the dispersion.
    """
    fit = scenes.fit(start, (key,))
    shift = PARAMETERS[key].read(fit.geometry) - PARAMETERS[key].read(start)
    error = math.hypot(PLAIN * fit.errors[key], _SHARED)
    trust = likely.shift_error**2 / (likely.shift_error**2 + error**2)
    apart = shift - likely.shift
    more = trust * apart
    return replace(
        likely,
        shift=likely.shift + more,
        shift_error=math.hypot(trust**0.5 * error, apart / 2),
        offsets=tuple(value + more for value in likely.offsets),
    )


_FIRST, _MORE = 80, 30
"""Iterations from nothing, and on from a cube of nearly the same camera. Fifteen leave a cube that
has not adapted to the camera, and the shift is off by 0.03 pixels; 60 give what 30 do."""
_RESUMED = 0.45  # of the schedule: where the strength of the prior begins again


def by_solver(solver: Solver) -> Prepare:
    """Return a solver as a calibration takes it: short runs, on from a cube where there is one."""
    strength, total = as_schedule(solver.sigma), solver.iterations

    def resumed(i: int, n: int) -> Any:
        done = _RESUMED + (1 - _RESUMED) * (i + 1) / n
        return strength(round(done * (total - 1)), total)

    def prepare(y: Tensor, camera: System) -> Reconstruct:
        noise = relative_noise(y, camera, solver.noise).mean().item()
        settled = replace(solver, noise=noise, consistent=False)
        first = replace(settled, iterations=min(_FIRST, total))
        more = replace(settled, iterations=min(_MORE, total), sigma=resumed)

        def reconstruct(y: Tensor, camera: System, start: Tensor | None) -> Tensor:
            chosen = first if start is None else more
            return chosen.run(y, camera, x0=start).checked().x

        return reconstruct

    return prepare
