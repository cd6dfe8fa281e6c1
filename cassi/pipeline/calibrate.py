"""Find the camera from a measurement: with the right one, held-out pixels are predicted best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration import Calibration, Frame, fit_light, refine_mask
from cassi.calibration.calibration import Watch, describe, silent
from cassi.calibration.dual import place_dual, single_twin
from cassi.camera.displacement import NUISANCES, moved_mask
from cassi.camera.found import (
    can_be_placed,
    find_light,
    find_lines,
    is_off,
    place_bands,
)
from cassi.camera.moved import moved_camera, placed_camera
from cassi.camera.names import name_bands
from cassi.camera.place import Place
from cassi.methods.automatic import auto
from cassi.pipeline.align import CLOSE, misses, scaled
from cassi.solvers import Solver
from cassi.solvers.statistics import unit_of
from cassi.systems import DDCassi, SDCassi, System, TiltedCassi
from cassi.systems.taps import sharp_taps


def calibrate_on(
    y: Tensor,
    system: System,
    solver: Solver | None = None,
    *,
    known: Sequence[Frame] = (),
    wavelengths: Sequence[float] | None = None,
    radius: int = 2,
    seed: int = 0,
    watch: Watch = silent,
) -> Calibration:
    """Calibrate a camera on its own snapshots: what both commands and `cassi.calibrate` do.

    A sensor's frame, in light of all wavelengths, tells where the mask lies.
    Other frames are sums of bands, as simulations make them: they tell the dispersion too. Both go
    by the log evidence of the frame. A camera is refused where held-out pixels are not predicted
    better by 2 %, of a sensor's frame where they are predicted twice as badly. Frames of known
    light then give the mask pixel by pixel.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes.
        system: the nominal camera, a `SDCassi` or `DDCassi`, its bad pixels left out or not.
        solver: predicts the held-out pixels; None: `cassi.methods.auto`.
        known: frames of even scenes in known light; none for a `DDCassi`.
        wavelengths: nm, one per band.
        radius: of the search for the shift of sums of bands, pixels.
        seed: of what the solver draws, and of which pixels are held out.
        watch: is told what is being tried.

    Returns:
        What was found, the camera with all its pixels among it.
    """
    if not 0 <= radius <= 20:
        raise ValueError(f"radius: expected 0 to 20 pixels, got {radius}")
    nominal = system.plain if isinstance(system, System) else system
    torch.manual_seed(seed)
    if type(nominal) not in (SDCassi, DDCassi):
        raise ValueError(f"calibrate: expected SDCassi or DDCassi, got {type(nominal).__name__}")
    task = _Task(scaled(y, system), system, solver or auto(), wavelengths, watch)
    if isinstance(nominal, DDCassi):
        return _calibrate_dual(task, nominal, known, radius)
    assert isinstance(nominal, SDCassi)
    _check_frames(known, nominal)
    all_light = system.all_light
    if all_light and not any(frame.points for frame in known) and can_be_placed(nominal):
        found = _place_in_all_light(task, nominal)
        all_light = not found.told  # else it comes in lines
    else:
        found = _place_sums(task, nominal, known, radius)
    found = _in_known_light(found, nominal, known)
    found.system.all_light = all_light
    return found


@dataclass(frozen=True)
class _Task:
    """Snapshots in one unit, the camera as it was given, and what predicts held-out pixels."""

    y: Tensor
    system: System
    solver: Solver
    wavelengths: Sequence[float] | None
    watch: Watch

    @property
    def good(self) -> Tensor | None:
        """The pixels that count, shaped like y; None for all."""
        good = self.system.good_pixels
        return None if good is None else good.expand_as(self.y)

    def misses(self, camera: System) -> float:
        """Return the held-out error through a camera."""
        return misses(self.y, self.system, camera, self.solver)

    def judged(
        self,
        nominal: SDCassi | DDCassi,
        single: SDCassi,
        made: Sequence[tuple[Place, SDCassi | TiltedCassi | DDCassi]],
    ) -> Calibration:
        """Return the first camera that no later one is better than, or the nominal one."""
        before = self.misses(nominal)
        errors = [before if camera is nominal else self.misses(camera) for _, camera in made]
        at = 0
        for later, error in enumerate(errors):
            at = later if error < (1 - CLOSE) * errors[at] else at
        (place, camera), after = made[at], errors[at]
        values = describe(single, place.kept, place)
        found = Calibration(camera, values, place.kept, before, after, place)
        if camera is nominal or after <= (1 - CLOSE) * before:
            return found
        return found.refused(nominal, "mask and bands: held-out pixels are not predicted better")


def _in_known_light(found: Calibration, nominal: SDCassi, known: Sequence[Frame]) -> Calibration:
    """Return a calibration with the mask pixel by pixel that frames of known light show."""
    if not known:
        return found
    camera = found.system
    assert isinstance(camera, SDCassi | TiltedCassi)
    units = [unit_of(frame.y) for frame in known]
    shift = sharp_taps if nominal.photographed else Frame.shift
    frames = [replace(f, y=f.y / u, shift=shift) for f, u in zip(known, units, strict=True)]
    lights = [fit_light(frame, camera) for frame in frames]
    across = camera.across if isinstance(camera, TiltedCassi) else None
    refined = placed_camera(nominal, refine_mask(lights, camera), list(camera.offsets), across)
    levels = tuple(each.level * float(u) for each, u in zip(lights, units, strict=True))
    return replace(found, system=refined, levels=levels)


def _calibrate_dual(
    task: _Task, nominal: DDCassi, known: Sequence[Frame], radius: int
) -> Calibration:
    if known:
        raise ValueError(
            "calibrate: expected no frame of known light for a DDCassi; leave white out"
        )
    task.watch("mask and dispersion")
    made = place_dual(task.y, nominal, task.good, task.misses, radius)
    return task.judged(nominal, single_twin(nominal), [made])


def _check_frames(known: Sequence[Frame], nominal: SDCassi) -> None:
    if nominal.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    for frame in known:
        if tuple(frame.y.shape[1:]) != nominal.measurement_shape:
            raise ValueError(
                f"calibration: expected frames (B, K, H', W') = (B, "
                f"{', '.join(map(str, nominal.measurement_shape))}), got {tuple(frame.y.shape)}"
            )


def _place_sums(task: _Task, nominal: SDCassi, known: Sequence[Frame], radius: int) -> Calibration:
    """Place mask and bands by frames that are sums of bands, and by frames of known light."""
    task.watch("mask and bands")
    frames = [Frame.snapshot(task.y, nominal.bands, task.good)]
    frames += [replace(frame, y=frame.y / unit_of(frame.y)) for frame in known]
    places = [_place_frames(frames, nominal, task.wavelengths, radius)]
    task.watch("pixels held out")
    off = is_off(task.y, nominal, task.system.good_pixels) if can_be_placed(nominal) else None
    if off is not None:  # the evidence has many peaks, where bands move too
        places.append(replace(places[0], kept=off))
    made = [(each, moved_camera(nominal, each.kept)) for each in places]
    return task.judged(nominal, nominal, made)


def _place_frames(
    frames: Sequence[Frame], system: SDCassi, wavelengths: Sequence[float] | None, radius: int
) -> Place:
    """Place mask and bands by frames of any light, each sample by itself."""
    y = torch.cat([frame.y for frame in frames])
    points = [frame.points[0] if frame.points else None for frame in frames for _ in frame.y]
    good = None
    if any(frame.good is not None for frame in frames):
        whole = [
            torch.ones_like(f.y, dtype=torch.bool) if f.good is None else f.good for f in frames
        ]
        good = torch.cat([each.expand_as(f.y) for each, f in zip(whole, frames, strict=True)])
    return place_bands(y, system, good, wavelengths, points, radius)


_WORSE = 2.0
"""Times the held-out error of the nominal camera: of 15 cameras that were drawn by two generators
those with the right mask had 1.4 at most, for their dispersion was wrong as before."""


def _place_in_all_light(task: _Task, nominal: SDCassi) -> Calibration:
    """Place mask and bands by frames in light of all wavelengths.

    In that light a frame is an integral along the dispersion. It tells where the mask lies, and how
    much light there is at each offset, and not which wavelength falls there. Where the light ends
    abruptly, and held-out pixels are then predicted better, the outermost bands end there. A frame
    that is more probable with one line of light per band tells where each lies: they are taken if
    held-out pixels are predicted better.
    """
    task.watch("mask and light")
    place = find_light(task.y, nominal, task.system.good_pixels, task.wavelengths)
    values, mask = place.kept, nominal.mask
    if any(value for key, value in values.items() if key not in NUISANCES):
        mask = moved_mask(nominal, values)
    task.watch("pixels held out")
    before = task.misses(nominal)
    camera = placed = placed_camera(nominal, mask, list(nominal.offsets))
    after = task.misses(placed)
    names = name_bands(place.offsets, place.light, nominal.offsets)
    if names.told:
        named = placed_camera(nominal, mask, list(names.offsets))
        if (lower := task.misses(named)) < after:
            camera, after = named, lower
    estimates = describe(nominal, values, place, None if camera is placed else names)
    found = Calibration(camera, estimates, values, before, after, place, False, names=names)
    task.watch("lines")
    found = _with_lines(task, nominal, found)
    if found.after < _WORSE * before:
        return found
    return found.refused(nominal, "mask and bands: held-out pixels are predicted twice as badly")


def _with_lines(task: _Task, nominal: SDCassi, found: Calibration) -> Calibration:
    """Return what a frame tells in which light comes in lines, or what was found without."""
    place = find_lines(task.y, nominal, found.place, task.system.good_pixels, task.wavelengths)
    if place is None:
        return found
    # The mask takes what is sure. A band is moved at no cost, so it lies where it is likeliest.
    values = place.kept | {key: place.values[key] for key in ("step", "curve")}
    values |= {"along": 0.0, "bands": place.values["along"], "tilt": 0.0}
    camera = moved_camera(nominal, values)
    after = task.misses(camera)
    if after > (1 - CLOSE) * min(found.before, found.after):
        return found
    return Calibration(camera, describe(nominal, values, place), values, found.before, after, place)
