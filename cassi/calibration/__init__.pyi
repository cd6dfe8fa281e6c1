from .alignment import Alignment
from .calibration import Calibration, Value
from .camera_check import check_camera
from .findings import CameraCheck, Finding
from .frame import Frame
from .mask import Light, fit_light, refine_mask
from .response import Patch, Response, White, find_white
from .spectra_check import check_spectra

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
