"""Align a mask: move it to its estimated position if that lowers the held-out error."""

from torch import Tensor

from cassi.calibration.alignment import Alignment
from cassi.camera.displaced_camera import displaced_camera
from cassi.camera.search import ALIGNMENT_KEYS, can_be_placed, find_misalignment
from cassi.methods.automatic import auto
from cassi.solvers.heldout import measure_heldout
from cassi.solvers.linear_system import zero_bad_pixels
from cassi.solvers.solver import Solver
from cassi.solvers.statistics import unit_of
from cassi.systems.base import System
from cassi.systems.sd_cassi import SDCassi
from cassi.threads import one_thread

MIN_GAIN = 0.02
"""Least relative fall of the held-out error for which a change of the camera is used.

A moved mask is interpolated and shares light between pixels. This alone lowers the held-out error,
even if the move is wrong. In one camera a shift along the dispersion lowered the error from 0.048
to 0.027, but the cube was 1.7 dB worse (docs/development/experiments/calibration.md)."""


def align(y: Tensor, system: System) -> Alignment | None:
    """Estimate the alignment of the mask of a camera from a measurement.

    The alignment is estimated by the log evidence of a few windows of the frame. It is used if it
    differs significantly from the nominal one, and if it lowers the held-out error of
    `cassi.methods.auto`. Only the mask is moved: the offsets of the bands and the pixels of the
    cube do not change. The function corrects errors of up to one pixel. `calibrate_on` corrects
    larger errors, and those of the dispersion.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the nominal camera, `Weighted` or not.

    Returns:
        The alignment with the aligned camera; None if the mask is not moved. It can be moved only
        in an `SDCassi` with one mask for all bands and samples.
    """
    nominal = system.base_camera
    if not can_be_placed(nominal):
        return None
    assert isinstance(nominal, SDCassi)
    y = to_unit_scale(y, system)
    try:
        with one_thread():  # of windows, which are small
            values = find_misalignment(y, nominal, system.good_pixels)
    except ValueError:
        # The frame is too dark or too small for an estimate.
        return None
    # In broadband light a shift of the mask along the dispersion cannot be told from an error of
    # the wavelengths. So such shifts are left out. On random cameras of two generators, aligned
    # with them, the mean gains were 1.3 and 2.6 dB, and the worst camera lost 2.4 dB; without them
    # the mean gains were 0.8 and 2.9 dB, and the worst camera lost 0.6 dB
    # (docs/development/experiments/calibration.md).
    if values is not None and system.is_broadband:
        values = values | {"along": 0.0}
    if values is None or not any(values[key] for key in ALIGNMENT_KEYS):
        return None
    aligned_camera = displaced_camera(nominal, values)
    error_before, error_after = (
        heldout_error(y, system, candidate) for candidate in (nominal, aligned_camera)
    )
    if error_after > (1 - MIN_GAIN) * error_before:
        return None
    shift_across, shift_along = values["across"], values["along"]
    down, right = (shift_across, shift_along) if nominal.axis == -1 else (shift_along, shift_across)
    return Alignment(
        down,
        right,
        values["rotation"] if nominal.axis == -1 else -values["rotation"],
        1 + values["magnification"],
        values["blur"] ** 0.5,
        system.wrap_like_self(aligned_camera),
        error_before,
        error_after,
    )


def to_unit_scale(y: Tensor, system: System) -> Tensor:
    """Return y without bad pixels, divided by the power of two next to its largest value.

    The squares of the divided values are finite. Division by a power of two causes no rounding.
    """
    y = zero_bad_pixels(y, system)
    return y / unit_of(y).amax()


def heldout_error(y: Tensor, system: System, camera: System, solver: Solver | None = None) -> float:
    """Return the held-out error of a camera, with the good pixels of the sensor of `system`."""
    return measure_heldout(y, system.wrap_like_self(camera), solver or auto()).error
