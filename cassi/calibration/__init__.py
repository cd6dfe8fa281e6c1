"""Find where mask and bands really fall on the detector, from what the camera measured."""

from cassi.calibration.calibrate import Calibration, Stage, calibrate
from cassi.calibration.fit import Fit, fit_geometry, objective, objective_curves, search_start
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.mask import Light, fit_light, refine_mask
from cassi.calibration.windows import Frame, Windows

__all__ = [
    "Calibration",
    "Fit",
    "Frame",
    "Geometry",
    "Light",
    "Stage",
    "Windows",
    "calibrate",
    "fit_geometry",
    "fit_light",
    "moved_camera",
    "objective",
    "objective_curves",
    "refine_mask",
    "search_start",
]
