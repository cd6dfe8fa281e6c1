"""Judge a result: whether its camera can be right, and how sure its values are."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from cassi.calibration.camera_check import check_camera, of_calibrated, shows_another_mask
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
from cassi.uncertainty.estimate import DARK, dark_share, estimate

_FAR_MOVED = 1.5
"""Pixels from which on a mask was not drifting, but lay elsewhere in its file."""
_FAR_NAMES = 5.0
"""nm by which a band may be another, from which on it is said: half of the width of a filter."""
FRAMES = "each band has its own mask and none is moved, as for the frames of a video"


def judge(
    result: Result, seed: int = 0, heldout: float | None = None, uncertainty: bool = False
) -> Result:
    """Return a result with all that is asked of it, in the unit that was asked for.

    `heldout` is the share of the pixels to predict in one more reconstruction; None: none.
    """
    result = replace(result, findings=check(result))
    if heldout is not None:
        torch.manual_seed(seed)
        snapshot = result.snapshot
        found = measure_heldout(snapshot.y, snapshot.camera.system, result.method, heldout)
        result = replace(result, heldout=found)
    return in_unit(assess(result, seed) if uncertainty else result)


def assess(result: Result, seed: int = 0) -> Result:
    """Return a result with the standard deviation of every value, in the unit of the camera."""
    snapshot, x, start = result.snapshot, result.solution.x, time.perf_counter()
    camera = snapshot.camera
    found = estimate(
        snapshot.y,
        camera.system,
        result.method,
        x,
        statistics=result.statistics,
        seed=seed,
        wide=snapshot.is_raw,  # bands are wider than a camera has them
        along=result.solution.along,
    )
    if camera.wavelengths_error is not None and camera.wavelengths is not None:
        found = found.with_names(x, camera.wavelengths, camera.wavelengths_error)
    doubts = (*found.warnings, *_doubt_the_dark(snapshot))
    warnings = tuple(Finding("uncertainty", message) for message in doubts)
    seconds = time.perf_counter() - start
    return replace(
        result,
        uncertainty=replace(found, seconds=seconds),
        findings=result.findings + CameraCheck(warnings),
    )


def check(result: Result) -> CameraCheck:
    """Return what speaks for and against the camera of a result."""
    return check_snapshot(result.snapshot, result.solution.x, result.method, result.response)


def check_snapshot(
    snapshot: Snapshot, x: Tensor, method: Reconstructor, response: Response | None = None
) -> CameraCheck:
    """Return what speaks for and against the camera of a snapshot, with the seconds it takes.

    Of a large cube every few pixels will do. Where a response is known spectra are judged as
    reflectances.
    """
    start, camera = time.perf_counter(), snapshot.camera
    y, system = snapshot.y, camera.system
    found = check_camera(y, system)
    white = response is not None and camera.unit is not None and camera.unit.name != "radiance"
    if not shows_another_mask(found):
        found += check_spectra(x, system.plain, camera.wavelengths, response if white else None)
    found = found if camera.calibration is None else of_calibrated(found)
    if not shows_another_mask(found):
        found += _check_move(snapshot)
    found += check_names(snapshot)
    found += _check_axis(snapshot, method)
    found += _check_weights(snapshot, method)
    return found + CameraCheck(numbers={"seconds": time.perf_counter() - start})


def _doubt_the_dark(snapshot: Snapshot) -> list[str]:
    """Say where stray light, which no camera has, makes error bars too small."""
    share = dark_share(snapshot.y, snapshot.camera.system) if snapshot.is_raw else 0.0
    message = (
        f"{share:.0%} of the frame has less than a twentieth of its mean light. Stray light of 1 % "
        "is much there, and error bars do not include it: in the dark they are too small"
    )
    return [message] if share > DARK else []


def _check_move(snapshot: Snapshot) -> CameraCheck:
    """Warn of a mask that was moved by more than a mask drifts."""
    moved = snapshot.camera.alignment
    if moved is None or math.hypot(moved.down, moved.right) < _FAR_MOVED:
        return CameraCheck()
    message = (
        f"the mask was {moved.down:+.1f} px down and {moved.right:+.1f} px right of its file, and "
        "was moved there: move it in its file, or keep the camera that cassi-calibrate finds, if "
        "this is the camera's mask"
    )
    return CameraCheck((Finding("shift", message),))


def check_names(snapshot: Snapshot) -> CameraCheck:
    """Warn of wavelengths that nobody gave places, where a frame of all light cannot show them."""
    camera = snapshot.camera
    offsets = offsets_of(camera.system.plain)
    off = 2 * max(camera.wavelengths_error or (0.0,))
    if not snapshot.is_raw or off < _FAR_NAMES or not is_even(offsets):
        return CameraCheck()
    wavelengths = camera.wavelengths or (0.0,)
    step = (offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1)
    middle = round(wavelengths[len(wavelengths) // 2], -1)
    message = (
        "nobody gave the places of the bands, and this light does not show them: even distances "
        f"are assumed. Behind a prism names are up to {off:.0f} nm off; the cube "
        "along the dispersion is not. Take a frame of the mask through a filter of a middle "
        "wavelength: cassi-calibrate with this camera and measurement, and "
        f"'monochromatic=[{{file: FILE, wavelength: {middle:g}}}]'. Behind a grating distances are "
        f"even: give 'system.offsets={{_target_: cassi.systems.Linear, step: {step:g}}}'"
    )
    return CameraCheck((Finding("wavelengths", message),))


def _check_axis(snapshot: Snapshot, method: Reconstructor) -> CameraCheck:
    components = isinstance(method, Solver) and isinstance(method.prior, Subspace)
    spectral = components or method.network is not None
    if not (snapshot.camera.shows_frames and spectral):
        return CameraCheck()
    message = (
        f"set method=video, or wavelengths= where the bands are bands: {FRAMES}, and this "
        "method is made for spectra"
    )
    return CameraCheck((Finding("frames", message),))


@torch.no_grad()
def _check_weights(snapshot: Snapshot, method: Reconstructor) -> CameraCheck:
    system, shipped = snapshot.camera.system, getattr(method.network, "shipped", None)
    if shipped is None or shipped.doubts is None:
        return CameraCheck()
    doubts = shipped.doubts(system, float(relative_noise(snapshot.y, system).max()))
    if not doubts:
        return CameraCheck()
    message = (
        f"the network has not seen cameras like this one: {', '.join(doubts)}; compare with "
        "model=null solver=auto, by heldout=0.05"
    )
    return CameraCheck((Finding("weights", message),))
