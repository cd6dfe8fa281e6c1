"""Find the camera from a measurement: with the right one, held-out pixels are predicted best."""

import math
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
from cassi.calibration.lines import SHADES
from cassi.calibration.mask import Light
from cassi.calibration.mask_alignment import KEYS
from cassi.calibration.parameters import FURTHER, PARAMETERS
from cassi.calibration.prism import bent_camera, find_valley
from cassi.calibration.search import NOMINAL
from cassi.calibration.windows import has_one_mask
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
    white: Tensor | None = None,
    seed: int = 0,
    shift: Shift = Frame.shift,
    **settings: Any,
) -> tuple[Calibration, SDCassi | TiltedCassi]:
    """Calibrate a camera on its own snapshots.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes.
        system: the nominal camera, a `SDCassi`, `WideCassi` or `DDCassi`, its bad pixels left out
            or not.
        solver: predicts the held-out pixels; None: `cassi.methods.auto`.
        white: `(1, 1, H', W')`, a frame of a white, evenly lit scene; or None, as for a `DDCassi`.
        seed: of what the solver draws, and of which pixels are held out.
        shift: interpolates bands, see `Frame`.
        settings: of `cassi.calibration.calibrate`.

    Returns:
        What was found, and the camera with all its pixels.

    Raises:
        ValueError: it is another camera, or the frames are too dark or small.
    """
    nominal = system.plain if isinstance(system, System) else system
    if type(nominal) is DDCassi:
        if white is not None:
            raise ValueError("calibrate: expected no white frame for a DDCassi; leave white out")
        return _calibrate_dual(y, system, nominal, settings.get("radius", 2))
    if isinstance(nominal, WideCassi):  # where the bands lie does not depend on their width
        narrow = system.around(nominal.narrow())
        found, camera = calibrate_on(
            y, narrow, solver, white=white, seed=seed, shift=shift, **settings
        )
        if isinstance(camera, SDCassi):
            camera = WideCassi.like(camera, nominal.band_width)
        return found, camera
    if type(nominal) is not SDCassi:
        raise ValueError(
            f"calibrate: expected SDCassi, WideCassi or DDCassi, got {type(nominal).__name__}"
        )
    good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
    y = _scaled(y, system)
    frames = [Frame.snapshot(y, nominal.bands, good, shift=shift)]
    if white is not None:
        white = white / unit_of(white)
        frames.append(Frame.snapshot(white, nominal.bands, shift=shift))
    torch.manual_seed(seed)
    found, camera, lights = find_camera(frames, nominal, solver or auto(), seed=seed, **settings)
    away = max(abs(a - b) for a, b in zip(camera.offsets, nominal.offsets, strict=True))
    aligned = None if lights or away > AWAY else align(y, system)
    if aligned is not None and _misses(y, system, camera) * (1 - _CLOSE) > aligned.after:
        return _as_aligned(found, aligned, nominal)
    return found, camera


def _calibrate_dual(
    y: Tensor, system: System, nominal: DDCassi, radius: int
) -> tuple[Calibration, SDCassi]:
    good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
    frame = Frame.snapshot(_scaled(y, system), nominal.bands, good)
    found = calibrate_dual(frame, nominal, lambda camera: _misses(y, system, camera), radius)
    assert isinstance(found.system, SDCassi)
    return found, found.system


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


def _as_aligned(
    found: Calibration, aligned: Alignment, nominal: SDCassi
) -> tuple[Calibration, SDCassi | TiltedCassi]:
    """Return a calibration whose camera is the aligned one.

    Along the dispersion a fraction of a pixel goes into bands that fall between pixels: a mask that
    is interpolated, and spread by them, is blurred twice.
    """
    geometry = placed(aligned.geometry, nominal)
    model = tuple(key for key in KEYS if PARAMETERS[key].distance(geometry) > 0)
    errors = {
        key: found.errors.get(key, math.inf) for key in {**found.errors, **dict.fromkeys(model)}
    }
    camera = moved_camera(nominal, geometry)
    kept = replace(found, geometry=geometry, model=model, errors=errors, system=camera)
    return replace(kept, before=aligned.before, after=aligned.after), camera


_PLACED = 0.1
"""Pixels, error of where light in lines has the bands of a prism."""


def calibrate_prism(
    y: Tensor,
    system: System,
    wavelengths: Sequence[float],
    solver: Solver | None = None,
    **settings: Any,
) -> tuple[Calibration, SDCassi | TiltedCassi, Bend] | None:
    """Calibrate a camera with even bands where light in lines shows the bend of a prism.

    The bent camera is calibrated: its step, and where mask and bands lie.

    Args:
        y: snapshots `(B, 1, H', W')`, as a sensor sees them.
        system: the nominal camera, with even bands.
        wavelengths: nm, one per band.
        solver: as for `calibrate_on`.
        settings: of `calibrate_on`.

    Returns:
        What was found, with the shift from the nominal camera, the camera, and the bend; None where
        no bend is shown.
    """
    nominal, good = system.plain, system.good_pixels
    narrow = nominal.narrow() if isinstance(nominal, WideCassi) else nominal
    if not has_one_mask(narrow):
        return None
    shift = settings.get("shift", Frame.shift)
    y, good = _scaled(y, system), None if good is None else good.expand_as(y)
    frame = Frame.snapshot(y, narrow.bands, good, shift=shift)
    valley = find_valley(frame, narrow, wavelengths, settings.get("radius", 2))
    if valley is None:
        return None
    bent = bent_camera(narrow, wavelengths, valley.bend, valley.shift)
    if isinstance(nominal, WideCassi):
        bent = WideCassi.like(bent, nominal.band_width)
    found, camera = calibrate_on(y, system.around(bent), solver, told=True, **settings)
    across, along = found.geometry.split_shift(narrow.axis)
    geometry = found.geometry.with_shift(across, along + valley.shift, narrow.axis)
    key = "right" if narrow.axis == -1 else "down"
    found = replace(
        found,
        geometry=geometry,
        model=tuple(dict.fromkeys((*found.model, key))),
        before=_misses(y, system, nominal),
        after=_misses(y, system, camera),
    )
    most = off_a_prism(narrow.offsets, wavelengths)
    likely = Bend(
        *(valley.bend, _PLACED / most, valley.shift, _PLACED),
        *(tuple(camera.offsets), _PLACED),
    )
    return found, camera, likely


def bend(
    found: Calibration,
    camera: SDCassi,
    y: Tensor,
    system: System,
    wavelengths: Sequence[float],
) -> tuple[Calibration, SDCassi, Bend | None]:
    """Bend the dispersion of a calibrated camera whose frame does not tell it.

    The bend is the likeliest for the light, and the bands are shifted to where light ends and where
    plain scenes in light of all wavelengths fit best. A mask
    was moved beside a wrong curve, and made up for it. So it is put back, unless pixels held out
    are predicted better by a fifth with it where calibration put it, both bent alike.

    Args:
        found: the calibration.
        camera: that it found, with even bands.
        y: the snapshots.
        system: the nominal camera, with the same bands.
        wavelengths: nm, one per band.

    Returns:
        The calibration with this shift, its camera, and the bend; None where nothing is likelier.
    """
    nominal, good = system.plain, system.good_pixels
    assert isinstance(nominal, SDCassi)
    y, good = _scaled(y, system), None if good is None else good.expand_as(y)
    axis = nominal.axis
    across, along = found.geometry.split_shift(axis)
    aside, key = ("down", "right") if axis == -1 else ("right", "down")
    narrow = nominal.narrow() if isinstance(nominal, WideCassi) else nominal
    likely = likely_bend(found.light, camera.offsets, wavelengths, find_end(y, camera, good))
    if likely is None:
        return found, camera, None
    scenes = PlainScenes([Frame.snapshot(y, narrow.bands, good, SHADES)], narrow)
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
    bent = placed_camera(narrow, moved_camera(narrow, geometry).mask, offsets, None)
    assert isinstance(bent, SDCassi)
    if isinstance(nominal, WideCassi):
        bent = WideCassi.like(bent, nominal.band_width)
    found = replace(
        found,
        geometry=geometry.with_shift(geometry.split_shift(axis)[0], shift, axis),
        model=(*model, key),
        errors=errors | {key: likely.shift_error},
        system=bent,
        before=_misses(y, system, nominal),
        after=_misses(y, system, bent),
    )
    return found, bent, likely


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


def find_camera(
    frames: Sequence[Frame], nominal: SDCassi, solver: Solver, **settings: Any
) -> tuple[Calibration, SDCassi | TiltedCassi, list[Light]]:
    """Calibrate a camera, and refine its mask where there are frames of known light.

    Args:
        frames: the snapshots, then those of known light.
        nominal: the camera as it is thought to be.
        solver: that predicts pixels which were withheld from it.
        settings: `radius`, `degree`, `gain`, `seed` and `watch` of `cassi.calibration.calibrate`.

    Returns:
        What was found, the camera, and the spectra of the frames of known light.
    """
    found = calibrate(frames, nominal, by_solver(solver), **settings)
    system = found.system
    lights = [fit_light(frame, system) for frame in frames[1:]]
    if lights:
        across = system.across if isinstance(system, TiltedCassi) else None
        system = placed_camera(nominal, refine_mask(lights, system), system.offsets, across)
    return found, system, lights


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
