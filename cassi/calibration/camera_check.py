"""Test a camera against a measurement, and against a cube that was reconstructed from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cassi.calibration.findings import CameraCheck
from cassi.calibration.frame_check import check_detector, check_light
from cassi.calibration.mask_check import check_mask
from cassi.calibration.spectra_check import check_spectra
from cassi.solvers.statistics import unit_of
from cassi.systems import System
from cassi.systems.arguments import as_measurement
from cassi.systems.coded import CodedSystem

_CALIBRATION_ADVICE = re.compile(
    r",? or (by )?calibrate=true( if it is 2 pixels at most)?| \(calibrate=true\)"
)


@torch.no_grad()
def check_camera(
    y: Tensor,
    system: System,
    x: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> CameraCheck:
    r"""Test a camera against a measurement.

    Along the dispersion the correlation of a frame with its mask is the mean spectrum; elsewhere it
    is chance (`Correlation`). The peaks of the correlation propose other orientations and places of
    the mask. A search proposes other steps. The function warns if the frame is significantly more
    probable under a proposed camera (`cassi.camera.evidence`).

    **The sign of the step is not identifiable from a frame.** If all bands have one mask,
    y = Σ_c S(o(c)) [m·x_c] is also the frame of the cube with its bands in reverse. Only the cube
    shows the sign, because spectra of ordinary scenes in reverse are unlike ordinary spectra.

    Args:
        y: measurement `(B, K, H', W')` of one camera, a tensor or an array.
        system: the camera; a camera that is no `cassi.SDCassi` gets fewer checks.
        x: cube `(1, C, H, W)` that was reconstructed; its spectra are checked, too. None: only the
            frame is checked.
        wavelengths: nm, one per band, increasing; None: the sign of the step is not checked.

    Returns:
        Warnings, each with the value to set; a note on the frame; numbers.

    Raises:
        ValueError: y does not fit the camera.

    >>> from cassi import SDCassi
    >>> mask = (torch.rand(96, 96, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    >>> camera = SDCassi(mask, bands=8, step=2)
    >>> y = camera(torch.ones(1, 8, 96, 96))
    >>> [each.about for each in check_camera(y, SDCassi(mask.flip(-1), bands=8, step=2)).warnings]
    ['mask']
    """
    y = as_measurement(y, system)
    camera, good_pixels = system.base_camera, system.good_pixels
    findings = check_detector(y, camera, good_pixels) + check_light(y, good_pixels)
    if isinstance(camera, CodedSystem):
        unit_y = system.without_bad_pixels(y)
        unit_y = unit_y / unit_of(unit_y).amax()
        findings += check_mask(unit_y, camera, good_pixels)
    if x is not None and not shows_another_mask(findings):
        findings += check_spectra(x, camera, wavelengths)
    return findings


def shows_another_mask(findings: CameraCheck) -> bool:
    """Tell whether a frame shows another mask than the camera's. Then the cube is meaningless."""
    return any(finding.about == "mask" for finding in findings.warnings)


def without_calibration_advice(findings: CameraCheck) -> CameraCheck:
    """Return the findings of a calibrated camera, without the advice to calibrate it."""
    warnings = tuple(
        replace(finding, message=_CALIBRATION_ADVICE.sub("", finding.message))
        for finding in findings.warnings
    )
    return replace(findings, warnings=warnings)
