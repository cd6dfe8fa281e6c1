"""Calibrate a camera on its own snapshots, by log evidence and by held-out pixels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration import Calibration, Frame, fit_light, refine_mask
from cassi.calibration.calibration import Watch, describe, watch_nothing
from cassi.calibration.dual import equivalent_single_disperser, place_dual
from cassi.camera.band_offsets import estimate_offsets
from cassi.camera.displaced_camera import displaced_camera, placed_camera
from cassi.camera.displacement import LIGHT_PARAMETERS, moved_mask
from cassi.camera.place import MaskPlacement
from cassi.camera.search import (
    can_be_placed,
    find_light,
    find_lines,
    find_misalignment,
    place_bands,
)
from cassi.methods.automatic import auto
from cassi.pipeline.align import MIN_GAIN, heldout_error, to_unit_scale
from cassi.solvers import Solver
from cassi.solvers.statistics import unit_of
from cassi.systems import DDCassi, SDCassi, System, TiltedCassi
from cassi.systems.taps import sharp_taps

# A calibration in broadband light is refused if its held-out error is at least this many times that
# of the nominal camera. It is not refused for a ratio just above 1: even if the mask becomes right,
# the error may rise, because the dispersion stays wrong. Of 15 random cameras of two generators,
# those with the right mask had a ratio of 1.4 at most.
_MAX_ERROR_RATIO = 2.0


def calibrate_on(
    y: Tensor,
    system: System,
    solver: Solver | None = None,
    *,
    light_frames: Sequence[Frame] = (),
    wavelengths: Sequence[float] | None = None,
    radius: int = 2,
    seed: int = 0,
    watch: Watch = watch_nothing,
) -> Calibration:
    """Calibrate a camera on its own snapshots. Both commands and `cassi.calibrate` use this.

    Parameters are estimated by the log evidence of the frame. In a sensor's frame, in broadband
    light, the position of the mask is identifiable. The calibrated camera is then refused only if
    it doubles the held-out error. In sums of bands, as simulations make them, the dispersion is
    identifiable, too. The calibrated camera is then refused unless it lowers the held-out error by
    2 %. Last, frames of known light refine the mask pixel by pixel.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes.
        system: the nominal camera, a `SDCassi` or `DDCassi`, with or without bad pixels.
        solver: predicts the held-out pixels; None: `cassi.methods.auto`.
        light_frames: frames of even scenes in known light; none for a `DDCassi`.
        wavelengths: nm, one per band.
        radius: radius of the search for shifts in sums of bands, pixels, 0 to 20.
        seed: seed of the solver's random numbers, and of the choice of the held-out pixels.
        watch: function that is called with the name of each stage when the stage begins.

    Returns:
        The calibration. Its camera is not weighted: bad pixels count as good ones.

    Raises:
        ValueError: the radius is out of range, the camera is of another class, or the frames do not
            fit the camera.
    """
    if not 0 <= radius <= 20:
        raise ValueError(f"radius: expected 0 to 20 pixels, got {radius}")
    nominal = system.base_camera if isinstance(system, System) else system
    torch.manual_seed(seed)
    if type(nominal) not in (SDCassi, DDCassi):
        raise ValueError(f"calibrate: expected SDCassi or DDCassi, got {type(nominal).__name__}")
    task = _CalibrationTask(to_unit_scale(y, system), system, solver or auto(), wavelengths, watch)
    if isinstance(nominal, DDCassi):
        return _calibrate_dual(task, nominal, light_frames, radius)
    assert isinstance(nominal, SDCassi)
    _check_frames(light_frames, nominal)
    is_broadband = system.is_broadband
    if is_broadband and not any(frame.points for frame in light_frames) and can_be_placed(nominal):
        calibration = _place_in_broadband(task, nominal)
        # `told`: the dispersion was identifiable, so the light has one line per band.
        is_broadband = not calibration.told
    else:
        calibration = _place_mask_and_bands(task, nominal, light_frames, radius)
    calibration = _refine_by_known_light(calibration, nominal, light_frames)
    calibration.system.is_broadband = is_broadband
    return calibration


@dataclass(frozen=True)
class _CalibrationTask:
    """Data that the steps of a calibration share; y is scaled by `to_unit_scale`."""

    y: Tensor
    system: System
    solver: Solver
    wavelengths: Sequence[float] | None
    watch: Watch

    @property
    def good_pixels(self) -> Tensor | None:
        """The good pixels, shaped like y; None for all."""
        good_pixels = self.system.good_pixels
        return None if good_pixels is None else good_pixels.expand_as(self.y)

    def measure_heldout_error(self, camera: System) -> float:
        """Return the held-out error of a camera."""
        return heldout_error(self.y, self.system, camera, self.solver)

    def choose_calibration(
        self,
        nominal: SDCassi | DDCassi,
        base: SDCassi,
        candidates: Sequence[tuple[MaskPlacement, SDCassi | TiltedCassi | DDCassi]],
    ) -> Calibration:
        """Return the candidate with the lowest held-out error, or the nominal camera.

        A candidate replaces an earlier one only if its error is lower by the share `MIN_GAIN`. The
        best candidate replaces the nominal camera only if its error is lower by this share.

        Args:
            nominal: the nominal camera.
            base: the camera whose mask and bands the placements displace.
            candidates: placements and the cameras that follow from them.
        """
        nominal_error = self.measure_heldout_error(nominal)
        errors = [
            nominal_error if camera is nominal else self.measure_heldout_error(camera)
            for _, camera in candidates
        ]
        best = 0
        for candidate, error in enumerate(errors):
            best = candidate if error < (1 - MIN_GAIN) * errors[best] else best
        (place, camera), error = candidates[best], errors[best]
        values = describe(base, place.significant, place)
        calibration = Calibration(camera, values, place.significant, nominal_error, error, place)
        if camera is nominal or error <= (1 - MIN_GAIN) * nominal_error:
            return calibration
        return calibration.refused(
            nominal, "mask and bands: held-out pixels are not predicted better"
        )


def _refine_by_known_light(
    calibration: Calibration, nominal: SDCassi, light_frames: Sequence[Frame]
) -> Calibration:
    """Return a calibration whose mask is refined, pixel by pixel, by frames of known light."""
    if not light_frames:
        return calibration
    camera = calibration.system
    assert isinstance(camera, SDCassi | TiltedCassi)
    units = [unit_of(frame.y) for frame in light_frames]
    shift = sharp_taps if nominal.measured_mask else Frame.shift
    frames = [
        replace(frame, y=frame.y / unit, shift=shift)
        for frame, unit in zip(light_frames, units, strict=True)
    ]
    lights = [fit_light(frame, camera) for frame in frames]
    offsets_across = camera.across if isinstance(camera, TiltedCassi) else None
    refined_camera = placed_camera(
        nominal, refine_mask(lights, camera), list(camera.offsets), offsets_across
    )
    levels = tuple(light.level * float(unit) for light, unit in zip(lights, units, strict=True))
    return replace(calibration, system=refined_camera, levels=levels)


def _calibrate_dual(
    task: _CalibrationTask, nominal: DDCassi, light_frames: Sequence[Frame], radius: int
) -> Calibration:
    if light_frames:
        raise ValueError(
            "calibrate: expected no frame of known light for a DDCassi; leave white out"
        )
    task.watch("mask and dispersion")
    candidate = place_dual(task.y, nominal, task.good_pixels, task.measure_heldout_error, radius)
    return task.choose_calibration(nominal, equivalent_single_disperser(nominal), [candidate])


def _check_frames(light_frames: Sequence[Frame], nominal: SDCassi) -> None:
    if nominal.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    for frame in light_frames:
        if tuple(frame.y.shape[1:]) != nominal.measurement_shape:
            raise ValueError(
                f"calibration: expected frames (B, K, H', W') = (B, "
                f"{', '.join(map(str, nominal.measurement_shape))}), got {tuple(frame.y.shape)}"
            )


def _place_mask_and_bands(
    task: _CalibrationTask, nominal: SDCassi, light_frames: Sequence[Frame], radius: int
) -> Calibration:
    """Place mask and bands by frames that are sums of bands, and by frames of known light."""
    task.watch("mask and bands")
    frames = [Frame.snapshot(task.y, nominal.bands, task.good_pixels)]
    frames += [replace(frame, y=frame.y / unit_of(frame.y)) for frame in light_frames]
    places = [_place_frames(frames, nominal, task.wavelengths, radius)]
    task.watch("pixels held out")
    alignment = None
    if can_be_placed(nominal):
        alignment = find_misalignment(task.y, nominal, task.system.good_pixels)
    # If bands move, too, the evidence has many maxima. An alignment moves only the mask, so it
    # is one more candidate.
    if alignment is not None:
        places.append(replace(places[0], significant=alignment))
    candidates = [(place, displaced_camera(nominal, place.significant)) for place in places]
    return task.choose_calibration(nominal, nominal, candidates)


def _place_frames(
    frames: Sequence[Frame], system: SDCassi, wavelengths: Sequence[float] | None, radius: int
) -> MaskPlacement:
    """Place mask and bands by frames of any light."""
    y = torch.cat([frame.y for frame in frames])
    points = [frame.points[0] if frame.points else None for frame in frames for _ in frame.y]
    good_pixels = None
    if any(frame.good is not None for frame in frames):
        masks = [
            torch.ones_like(frame.y, dtype=torch.bool) if frame.good is None else frame.good
            for frame in frames
        ]
        good_pixels = torch.cat(
            [mask.expand_as(frame.y) for mask, frame in zip(masks, frames, strict=True)]
        )
    return place_bands(y, system, good_pixels, wavelengths, points, radius)


def _place_in_broadband(task: _CalibrationTask, nominal: SDCassi) -> Calibration:
    """Place mask and bands by frames in broadband light.

    A frame in this light is an integral along the dispersion. The position of the mask and the
    light at each offset are identifiable, but not the wavelength at an offset. If the light ends
    abruptly, the outermost bands are moved to end there, provided that this lowers the held-out
    error. A frame may be more probable with one line of light per band. Then the offset of each
    band is identifiable, and the estimated offsets are used if they lower the held-out error.
    """
    task.watch("mask and light")
    place = find_light(task.y, nominal, task.system.good_pixels, task.wavelengths)
    values, mask = place.significant, nominal.mask
    if any(value for key, value in values.items() if key not in LIGHT_PARAMETERS):
        mask = moved_mask(nominal, values)
    task.watch("pixels held out")
    nominal_error = task.measure_heldout_error(nominal)
    camera = camera_with_mask = placed_camera(nominal, mask, list(nominal.offsets))
    error = task.measure_heldout_error(camera_with_mask)
    band_offsets = estimate_offsets(place.offsets, place.light, nominal.offsets)
    if band_offsets.visible_ends:
        camera_with_bands = placed_camera(nominal, mask, list(band_offsets.offsets))
        if (error_with_bands := task.measure_heldout_error(camera_with_bands)) < error:
            camera, error = camera_with_bands, error_with_bands
    used_offsets = None if camera is camera_with_mask else band_offsets
    estimates = describe(nominal, values, place, used_offsets)
    calibration = Calibration(
        camera, estimates, values, nominal_error, error, place, False, names=band_offsets
    )
    task.watch("lines")
    calibration = _try_lines(task, nominal, calibration)
    if calibration.after < _MAX_ERROR_RATIO * nominal_error:
        return calibration
    return calibration.refused(
        nominal, "mask and bands: held-out pixels are predicted twice as badly"
    )


def _try_lines(task: _CalibrationTask, nominal: SDCassi, calibration: Calibration) -> Calibration:
    """Return a calibration for light of one line per band if it is better, else the given one."""
    place = find_lines(
        task.y, nominal, calibration.place, task.system.good_pixels, task.wavelengths
    )
    if place is None:
        return calibration
    # Interpolation lowers the contrast of the mask, so the mask is moved by significant values
    # only. Moving a band has no such cost, so bands get their likeliest offsets.
    values = place.significant | {key: place.values[key] for key in ("step", "curve")}
    values |= {"along": 0.0, "bands": place.values["along"], "tilt": 0.0}
    camera = displaced_camera(nominal, values)
    error = task.measure_heldout_error(camera)
    if error > (1 - MIN_GAIN) * min(calibration.before, calibration.after):
        return calibration
    return Calibration(
        camera, describe(nominal, values, place), values, calibration.before, error, place
    )
