"""Judge a result: check its camera, measure its held-out error, and estimate its error bars."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration.camera_check import (
    check_camera,
    shows_another_mask,
    without_calibration_advice,
)
from cassi.calibration.findings import CameraCheck, Finding
from cassi.calibration.response import Response
from cassi.calibration.spectra_check import check_spectra
from cassi.pipeline.reconstruct import in_unit
from cassi.pipeline.snapshot import Result, Snapshot
from cassi.priors.subspace import Subspace
from cassi.solvers.base import Reconstructor
from cassi.solvers.heldout import measure_heldout
from cassi.solvers.solver import Solver
from cassi.solvers.statistics import relative_noise
from cassi.systems.dispersion import is_even, offsets_of
from cassi.threads import one_thread
from cassi.uncertainty.estimate import MAX_DARK_SHARE, dark_share, estimate

# A mask in its mount drifts by less than this, pixels. If an alignment shifts the mask by more,
# there is a warning: the mask's file probably belongs to another position or another mask.
_MAX_DRIFT_PIXELS = 1.5
# A warning is given if two standard errors of a wavelength are at least this, nm. The limit is half
# the width of a band-pass filter, because a frame through such a filter could remove the error.
_MAX_WAVELENGTH_ERROR_NM = 5.0
_FRAMES_REASON = "each band has its own mask and no band is moved, as for the frames of a video"


@dataclass(frozen=True)
class JudgeOptions:
    """What is estimated of a result, beside the findings on its camera.

    Attributes:
        heldout: fraction of the pixels that one more reconstruction predicts; None: no held-out
            error.
        uncertainty: whether to estimate error bars.
        samples: number of samples of the cube, even; 0: none. Samples come with error bars.
    """

    heldout: float | None = None
    uncertainty: bool = False
    samples: int = 0


def judge(result: Result, seed: int = 0, options: JudgeOptions | None = None) -> Result:
    """Return a result with findings, held-out error and error bars, in the unit of the settings.

    Args:
        result: a reconstruction.
        seed: seed of the choice of held-out pixels, and of the method's random numbers.
        options: what to estimate; None: the findings alone.
    """
    result, options = replace(result, findings=check(result)), options or JudgeOptions()
    if options.heldout is not None:
        torch.manual_seed(seed)
        snapshot = result.snapshot
        heldout_error = measure_heldout(
            snapshot.y, snapshot.camera.system, result.method, options.heldout
        )
        result = replace(result, heldout=heldout_error)
    if options.uncertainty or options.samples > 0:
        result = assess(result, seed, options.samples)
    return in_unit(result)


def assess(result: Result, seed: int = 0, samples: int = 0) -> Result:
    """Return a result with the standard deviation of every value, in the unit of the camera.

    Args:
        result: a reconstruction.
        seed: seed of the random numbers.
        samples: number of samples of the cube, even; 0: none.
    """
    snapshot, x, start = result.snapshot, result.solution.x, time.perf_counter()
    camera = snapshot.camera
    error_bars = estimate(
        snapshot.y,
        camera.system,
        result.method,
        x,
        statistics=result.statistics,
        seed=seed,
        # In a sensor's frame a band is as wide as the distance to the next one. The bands of the
        # camera's model have no width.
        wide=snapshot.is_raw,
        along=result.solution.along,
        samples=samples,
    )
    if camera.wavelengths_error is not None and camera.wavelengths is not None:
        error_bars = error_bars.with_names(x, camera.wavelengths, camera.wavelengths_error)
    messages = (*error_bars.warnings, *_warn_of_dark_parts(snapshot))
    warnings = tuple(Finding("uncertainty", message) for message in messages)
    seconds = time.perf_counter() - start
    return replace(
        result,
        uncertainty=replace(error_bars, seconds=seconds),
        findings=result.findings + CameraCheck(warnings),
    )


def check(result: Result) -> CameraCheck:
    """Return the findings for and against the camera of a result."""
    return check_snapshot(result.snapshot, result.solution.x, result.method, result.response)


@one_thread()
def check_snapshot(
    snapshot: Snapshot, x: Tensor, method: Reconstructor, response: Response | None = None
) -> CameraCheck:
    """Return the findings for and against the camera of a snapshot, and the seconds of the check.

    Args:
        snapshot: a measurement and its camera.
        x: the cube `(1, C, H, W)`; if it is large, a sample of its pixels is enough.
        method: the method that made the cube.
        response: response of the camera. If it is given, spectra are judged as reflectances.
    """
    start, camera = time.perf_counter(), snapshot.camera
    y, system = snapshot.y, camera.system
    findings = check_camera(y, system)
    # A cube in units of radiance keeps the colours of the illuminant, so its spectra are not judged
    # as reflectances.
    is_reflectance = camera.unit is not None and camera.unit.name != "radiance"
    if not shows_another_mask(findings):
        white = response if is_reflectance else None
        findings += check_spectra(x, system.base_camera, camera.wavelengths, white)
    findings = findings if camera.calibration is None else without_calibration_advice(findings)
    if not shows_another_mask(findings):
        findings += _check_alignment(snapshot)
    findings += check_wavelengths(snapshot)
    findings += _check_frames(snapshot, method)
    findings += _check_training(snapshot, method)
    return findings + CameraCheck(numbers={"seconds": time.perf_counter() - start})


def _warn_of_dark_parts(snapshot: Snapshot) -> list[str]:
    """Warn of dark parts. Error bars are too small there, because stray light is not modelled."""
    share = dark_share(snapshot.y, snapshot.camera.system) if snapshot.is_raw else 0.0
    message = (
        f"{share:.0%} of the frame has less than a twentieth of its mean light. Stray light of 1 % "
        "matters there. Error bars do not include it, so they are too small in the dark"
    )
    return [message] if share > MAX_DARK_SHARE else []


def _check_alignment(snapshot: Snapshot) -> CameraCheck:
    """Warn of an alignment that is larger than the drift of a mask."""
    alignment = snapshot.camera.alignment
    if alignment is None or math.hypot(alignment.down, alignment.right) < _MAX_DRIFT_PIXELS:
        return CameraCheck()
    message = (
        f"the mask was {alignment.down:+.1f} px down and {alignment.right:+.1f} px right of its "
        "file, and was moved there: move it in its file, or keep the camera that cassi-calibrate "
        "finds, if this is the camera's mask"
    )
    return CameraCheck((Finding("shift", message),))


def check_wavelengths(snapshot: Snapshot) -> CameraCheck:
    """Warn if the wavelengths of a sensor's frame are uncertain, and the offsets are even.

    In broadband light the offsets of the bands are not identifiable. If they are even, they were
    probably assumed, because even offsets are the default.
    """
    camera = snapshot.camera
    offsets = offsets_of(camera.system.base_camera)
    error = 2 * max(camera.wavelengths_error or (0.0,))
    if not snapshot.is_raw or error < _MAX_WAVELENGTH_ERROR_NM or not is_even(offsets):
        return CameraCheck()
    wavelengths = camera.wavelengths or (0.0,)
    step = (offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1)
    middle = round(wavelengths[len(wavelengths) // 2], -1)
    message = (
        "the offsets of the bands were not given, and this light does not show them: even "
        f"distances are assumed. Behind a prism the wavelengths are up to {error:.0f} nm off; the "
        "cube along the dispersion is right. Take a frame of the mask through a filter of a middle "
        "wavelength: cassi-calibrate with this camera and measurement, and "
        f"'monochromatic=[{{file: FILE, wavelength: {middle:g}}}]'. Behind a grating distances are "
        f"even: give 'system.offsets={{_target_: cassi.systems.Linear, step: {step:g}}}'"
    )
    return CameraCheck((Finding("wavelengths", message),))


def _check_frames(snapshot: Snapshot, method: Reconstructor) -> CameraCheck:
    """Warn of a method with a spectral prior if the bands seem to be frames of a video."""
    has_subspace = isinstance(method, Solver) and isinstance(method.prior, Subspace)
    is_spectral = has_subspace or method.network is not None
    if not (snapshot.camera.shows_frames and is_spectral):
        return CameraCheck()
    message = (
        f"set method=video, or wavelengths= for spectral bands: {_FRAMES_REASON}, and this "
        "method is made for spectra"
    )
    return CameraCheck((Finding("frames", message),))


@torch.no_grad()
def _check_training(snapshot: Snapshot, method: Reconstructor) -> CameraCheck:
    """Warn if the camera differs from the cameras that a network was trained with."""
    system, card = snapshot.camera.system, getattr(method.network, "shipped", None)
    if card is None or card.doubts is None:
        return CameraCheck()
    doubts = card.doubts(system, float(relative_noise(snapshot.y, system).max()))
    if not doubts:
        return CameraCheck()
    message = (
        f"the network was not trained with cameras like this one: {', '.join(doubts)}; compare "
        "with model=null solver=auto, by heldout=0.05"
    )
    return CameraCheck((Finding("weights", message),))
