"""Find where mask and bands really fall on the detector, from what the camera measured."""

from cassi.calibration.calibrate import Calibration, calibrate
from cassi.calibration.camera_check import CameraCheck, Finding, check_camera, check_spectra
from cassi.calibration.fit import Fit, PlainScenes, fit_geometry
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.heldout import Prediction, Prepare, Reconstruct, WithheldPixels
from cassi.calibration.mask import Light, fit_light, refine_mask
from cassi.calibration.mask_alignment import Alignment, align
from cassi.calibration.parameters import PARAMETERS, Parameter
from cassi.calibration.refine import refine
from cassi.calibration.response import Patch, Response, White, find_white
from cassi.calibration.search import search_start
from cassi.calibration.selection import Stage
from cassi.calibration.windows import Frame, Windows

__all__ = [
    "PARAMETERS",
    "Alignment",
    "Calibration",
    "CameraCheck",
    "Finding",
    "Fit",
    "Frame",
    "Geometry",
    "Light",
    "Parameter",
    "Patch",
    "PlainScenes",
    "Prediction",
    "Prepare",
    "Reconstruct",
    "Response",
    "Stage",
    "White",
    "Windows",
    "WithheldPixels",
    "align",
    "calibrate",
    "check_camera",
    "check_spectra",
    "find_white",
    "fit_geometry",
    "fit_light",
    "moved_camera",
    "refine",
    "refine_mask",
    "search_start",
]
