"""Find where mask and bands really fall on the detector, from what the camera measured."""

from cassi.calibration.alignment import Alignment
from cassi.calibration.calibration import Calibration, Value
from cassi.calibration.camera_check import check_camera
from cassi.calibration.findings import CameraCheck, Finding
from cassi.calibration.frame import Frame
from cassi.calibration.mask import Light, fit_light, refine_mask
from cassi.calibration.response import Patch, Response, White, find_white
from cassi.calibration.spectra_check import check_spectra

__all__ = [
    "Alignment",
    "Calibration",
    "CameraCheck",
    "Finding",
    "Frame",
    "Light",
    "Patch",
    "Response",
    "Value",
    "White",
    "check_camera",
    "check_spectra",
    "find_white",
    "fit_light",
    "refine_mask",
]
