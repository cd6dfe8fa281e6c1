"""Find where mask and bands really fall on the detector, from what the camera measured."""

from cassi.calibration.calibrate import Calibration, Stage, calibrate
from cassi.calibration.camera_check import Finding, Verdict, check_camera, check_spectra
from cassi.calibration.fit import Fit, fit_geometry, objective, search_start
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.heldout import HeldOut, Prediction, Prepare, Reconstruct
from cassi.calibration.mask import Light, fit_light, refine_mask
from cassi.calibration.mask_alignment import Alignment, align
from cassi.calibration.parameters import PARAMETERS, Parameter
from cassi.calibration.refine import refine
from cassi.calibration.windows import Frame, Windows

__all__ = [
    "PARAMETERS",
    "Alignment",
    "Calibration",
    "Finding",
    "Fit",
    "Frame",
    "Geometry",
    "HeldOut",
    "Light",
    "Parameter",
    "Prediction",
    "Prepare",
    "Reconstruct",
    "Stage",
    "Verdict",
    "Windows",
    "align",
    "calibrate",
    "check_camera",
    "check_spectra",
    "fit_geometry",
    "fit_light",
    "moved_camera",
    "objective",
    "refine",
    "refine_mask",
    "search_start",
]
