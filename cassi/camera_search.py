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
from cassi.calibration.bend import find_end, likely_bend
from cassi.calibration.calibrate import check_search
from cassi.calibration.dual import calibrate_dual
from cassi.calibration.fit import Watch, silent
from cassi.calibration.geometry import Geometry, moved_camera, placed, placed_camera
from cassi.calibration.mask_alignment import KEYS
from cassi.calibration.parameters import PARAMETERS
from cassi.calibration.selection import Stage
from cassi.camera.displacement import NUISANCES, moved_mask
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
    wavelengths: Sequence[float] | None = None,
    all_light: bool = False,
    step_alone: bool = False,
    shift: Shift = Frame.shift,
    seed: int = 0,
    **settings: Any,
) -> Calibration:
    """Calibrate a camera on its own snapshots: what both commands and `cassi.calibrate` do.

    A sensor's frame, in light of all wavelengths, tells where the mask lies, see `place_camera`.
    Other frames are sums of bands, as simulations make them: they tell the dispersion too. There a
    mask that is moved alone takes the place of what was found if it predicts pixels held out
    better. Frames of known light then give the mask pixel by pixel.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes.
        system: the nominal camera, a `SDCassi`, `WideCassi` or `DDCassi`, its bad pixels left out
            or not.
        solver: predicts the held-out pixels; None: `cassi.methods.auto`.
        known: frames of even scenes in known light; none for a `DDCassi`.
        wavelengths: nm, one per band.
        all_light: the snapshots are a sensor's.
        step_alone: nobody gave more of the dispersion than its step: it may be that of a prism.
        shift: interpolates bands, see `Frame`.
        seed: of what the solver draws, and of which pixels are held out.
        settings: of `cassi.calibration.calibrate`.

    Returns:
        What was found, the camera with all its pixels among it.

    Raises:
        ValueError: it is another camera, or the frames are too dark or small.
    """
    nominal = system.plain if isinstance(system, System) else system
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
    torch.manual_seed(seed)
    watch = settings.pop("watch", silent)
    check_search(**settings)
    tells_dispersion = any(frame.points for frame in known)
    if all_light and not tells_dispersion and can_be_placed(narrow):
        found = place_camera(y, system, wavelengths, step_alone, watch)
    else:
        frames = [Frame.snapshot(y, narrow.bands, good, shift=shift), *known]
        found = calibrate(frames, narrow, by_solver(solver), seed=seed, watch=watch, **settings)
        if not known:
            found = _or_aligned(found, y, system, narrow)
    camera = found.system
    lights = [fit_light(frame, camera) for frame in known]
    if lights:
        across = camera.across if isinstance(camera, TiltedCassi) else None
        camera = placed_camera(narrow, refine_mask(lights, camera), camera.offsets, across)
    if isinstance(nominal, WideCassi) and isinstance(camera, SDCassi):
        camera = WideCassi.like(camera, nominal.band_width)
    levels = tuple(each.level * float(u) for each, u in zip(lights, units, strict=True))
    return replace(found, system=camera, levels=levels)


def place_camera(
    y: Tensor,
    system: System,
    wavelengths: Sequence[float] | None,
    step_alone: bool = False,
    watch: Watch = silent,
) -> Calibration:
    """Place mask and bands by frames in light of all wavelengths.

    In that light a frame is an integral along the dispersion. It tells where the mask lies, and how
    much light there is at each offset, and not which wavelength falls there. Where the light ends
    abruptly, and held-out pixels are then predicted better, the outermost bands end there. Behind a
    prism the bands between them take the bend that this light makes likely.

    Args:
        y: snapshots.
        system: the camera, see `can_be_placed`; its bad pixels left out or not.
        wavelengths: nm, one per band.
        step_alone: nobody gave more of the dispersion than its step.
        watch: is told what is being tried.

    Raises:
        ValueError: too few windows are lit, by light that has passed the mask.
    """
    began, nominal = time.perf_counter(), system.plain
    assert isinstance(nominal, SDCassi)
    watch("mask and light")
    place = find_light(y, nominal, system.good_pixels, wavelengths)
    values, mask = place.significant(), nominal.mask
    if any(value for key, value in values.items() if key not in NUISANCES):
        mask = moved_mask(nominal, values)
    watch("pixels held out")
    before = _misses(y, system, nominal)
    camera, after, names = _end_bands(y, system, _with(nominal, mask, nominal.offsets), place)
    likely = None
    if step_alone and wavelengths is not None and nominal.bands > 2:
        good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
        light, covariance = place.light_of(camera.offsets)
        end = find_end(y, camera, good)
        likely = likely_bend(light, camera.offsets, wavelengths, end, covariance)
        if likely is not None:
            camera = _with(nominal, mask, likely.offsets)
            after = _misses(y, system, camera)
    geometry, errors = _describe(nominal, camera, place, names)
    model = tuple(key for key in errors if PARAMETERS[key].distance(geometry) > 0)
    seconds = time.perf_counter() - began
    stages = [
        Stage((), Geometry(), before, True, 0.0),
        Stage(model, geometry, after, True, seconds),
    ]
    found = Calibration(
        geometry, model, errors, camera, stages, before, after, place.windows, False
    )
    found = replace(found, place=place, names=names, bend=likely)
    if after < _WORSE * before:
        return found
    found = found.superseded(
        "", geometry=Geometry(), model=(), system=nominal, after=before, bend=None
    )
    return replace(found, dropped=("mask and bands: held-out pixels are predicted twice as badly",))


_WORSE = 2.0
"""Times the held-out error of the nominal camera: of 15 cameras that were drawn by two generators
those with the right mask had 1.4 at most, for their dispersion was wrong as before."""


def _end_bands(
    y: Tensor, system: System, camera: SDCassi, place: Place
) -> tuple[SDCassi, float, Names]:
    """Return a camera whose bands end where the light does, if that predicts held-out pixels.

    Returns:
        The camera, its held-out error, and where the bands end in this light.
    """
    names = name_bands(place.offsets, place.light, camera.offsets)
    error = _misses(y, system, camera)
    if names.told:
        named = _with(camera, camera.mask, names.offsets)
        if (lower := _misses(y, system, named)) < error:
            camera, error = named, lower
    return camera, error, names


def _with(nominal: SDCassi, mask: Tensor, offsets: Sequence[float]) -> SDCassi:
    """Return a camera with another mask and other offsets; the same one where both are its own."""
    if mask is nominal.mask and tuple(offsets) == tuple(nominal.offsets):
        return nominal
    where: dict[str, Any] = {"offsets": offsets, "axis": nominal.axis}
    where["detector"] = nominal.measurement_shape[nominal.axis]
    return SDCassi(mask, nominal.bands, **where)


def _describe(
    nominal: SDCassi, camera: SDCassi, place: Place, names: Names
) -> tuple[Geometry, dict[str, float]]:
    """Return by how much a camera is off, and standard errors by the keys of `PARAMETERS`."""
    values, bands = place.significant(), nominal.bands
    aside, beside = ("down", "right") if nominal.axis == -1 else ("right", "down")
    first, last = (camera.offsets[k] - nominal.offsets[k] for k in (0, -1))
    geometry = Geometry(
        # Its degrees are those of the mask as displayed, and 0 has no sign.
        rotation=(values["rotation"] if nominal.axis == -1 else -values["rotation"]) + 0.0,
        dispersion=((last - first) / max(bands - 1, 1),),
        magnification=1 + values["magnification"],
        variance=values["blur"],
    ).with_shift(values["across"], (first + last) / 2, nominal.axis)
    errors = {aside: place.errors["across"]}
    if camera.offsets != nominal.offsets:
        # Both ends may err alike, so that their mean is no surer than one of them.
        error = (names.errors[0] + names.errors[-1]) / 2
        errors |= {beside: error, "dispersion": 2 * error / max(bands - 1, 1)}
    errors |= {key: place.errors[key] for key in ("rotation", "magnification", "blur")}
    return geometry, errors


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
