"""Move a mask to where a measurement shows it."""

from torch import Tensor

from cassi.calibration.alignment import Alignment
from cassi.camera.found import ALIGNED, can_be_placed, is_off
from cassi.camera.moved import moved_camera
from cassi.methods.automatic import auto
from cassi.solvers.heldout import measure_heldout
from cassi.solvers.linear_system import seen
from cassi.solvers.solver import Solver
from cassi.solvers.statistics import unit_of
from cassi.systems.base import System
from cassi.systems.sd_cassi import SDCassi

CLOSE = 0.02
"""Share by which the held-out error must fall: a mask that is interpolated shares light between
pixels, which predicts better whatever the camera."""


def align(y: Tensor, system: System) -> Alignment | None:
    """Return the camera with its mask where the measurement shows that it lies; None: as it is.

    The mask is placed by the log evidence of a few windows. The result is taken if it is surely
    elsewhere, and if `cassi.methods.auto` then predicts held-out pixels better, whatever method
    reconstructs afterwards. The bands stay where they are, and so does the scene. It finds errors
    of up to one pixel; `calibrate_on` finds larger ones, and those of the dispersion.

    Returns:
        None where the camera is right as it is, or none of those whose mask can be moved: an
        `SDCassi`, its pixels weighted or not, with one mask for all samples.
    """
    nominal = system.plain
    if not can_be_placed(nominal):
        return None
    assert isinstance(nominal, SDCassi)
    y = scaled(y, system)
    try:
        values = is_off(y, nominal, system.good_pixels)
    except ValueError:  # too dark or too small to say
        return None
    if values is not None and system.all_light:
        values = values | {"along": 0.0}
    if values is None or not any(values[key] for key in ALIGNED):
        return None
    camera = moved_camera(nominal, values)
    before, after = (misses(y, system, each) for each in (nominal, camera))
    if after > (1 - CLOSE) * before:
        return None
    across, along = values["across"], values["along"]
    down, right = (across, along) if nominal.axis == -1 else (along, across)
    return Alignment(
        down,
        right,
        values["rotation"] if nominal.axis == -1 else -values["rotation"],
        1 + values["magnification"],
        values["blur"] ** 0.5,
        system.around(camera),
        before,
        after,
    )


def scaled(y: Tensor, system: System) -> Tensor:
    """Return what the camera sees, all samples in one unit in which squares stay finite."""
    y = seen(y, system)
    return y / unit_of(y).amax()


def misses(y: Tensor, system: System, camera: System, solver: Solver | None = None) -> float:
    """Return the held-out error through a camera, of the sensor of another one."""
    return measure_heldout(y, system.around(camera), solver or auto()).error
