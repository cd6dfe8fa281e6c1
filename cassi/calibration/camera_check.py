"""Is the camera right? What a frame, and a cube made of it, say for and against it."""

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

_TO_CALIBRATE = re.compile(
    r",? or (by )?calibrate=true( if it is 2 pixels at most)?| \(calibrate=true\)"
)


@torch.no_grad()
def check_camera(
    y: Tensor,
    system: System,
    x: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> CameraCheck:
    r"""Ask a measurement whether its camera can be right.

    The correlation of a frame with its mask is the mean spectrum along the dispersion, and chance
    elsewhere (`Correlation`). So it proposes which way up the mask may be, where it may lie, and
    between which offsets light may fall. What is proposed is a camera. It is warned of where the
    frame is surely more probable under it (`cassi.camera.evidence`).

    **It cannot tell the sign of the step.** With one mask for all bands and the bands in reverse,
    y = Σ_c S(o(c)) [m·x_c] is the same frame of the same cube in reverse. What then speaks is the
    cube alone: spectra of ordinary scenes are not the same backwards.

    Args:
        y: measurement `(B, K, H', W')` of one camera, a tensor or an array.
        system: the camera; of one that is no `cassi.SDCassi` fewer things are asked.
        x: cube `(1, C, H, W)` that was reconstructed; its spectra are checked too.
        wavelengths: nm, one per band, increasing; without them x does not tell the sign.

    Returns:
        Warnings, each with the value to set; a line on what is seen; numbers.

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
    plain, good = system.plain, system.good_pixels
    found = check_detector(y, plain, good) + check_light(y, good)
    if isinstance(plain, CodedSystem):
        scaled = system.without_bad_pixels(y)
        scaled = scaled / unit_of(scaled).amax()
        found += check_mask(scaled, plain, good)
    if x is not None and not shows_another_mask(found):
        found += check_spectra(x, plain, wavelengths)
    return found


def shows_another_mask(found: CameraCheck) -> bool:
    """Tell whether a frame shows another mask than the camera's: then its cube has no spectra."""
    return any(each.about == "mask" for each in found.warnings)


def of_calibrated(found: CameraCheck) -> CameraCheck:
    """Return what was found without the advice to calibrate, of a camera that was calibrated."""
    warnings = tuple(
        replace(each, message=_TO_CALIBRATE.sub("", each.message)) for each in found.warnings
    )
    return replace(found, warnings=warnings)
