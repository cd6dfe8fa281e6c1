"""A summary of a snapshot and its camera: a table, warnings, and two pictures."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from cassi.calibration import check_camera
from cassi.calibration.correlation import flatten
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import relative_noise
from cassi.systems import SDCassi, System
from cassi.systems.coded import CodedSystem

# The scene is assumed to be uniform in a window of this many pixels to each side of its centre. A
# larger window holds more structure of the scene. With a smaller one the prediction comes closer to
# the frame itself, whatever the camera is.
_WINDOW_RADIUS = 15
# Another step is reported only if its agreement is larger than that of the stated step by this
# factor. Frames of real cameras agree up to 2 % better with a wrong step of 1, see
# `find_better_step`.
_MIN_AGREEMENT_RATIO = 1.1
# First: largest step that is tried. Second: a step that makes fewer bands than this is not tried.
_MAX_STEP, _MIN_BANDS = 8, 4
# Where longer wavelengths lie, by (axis, whether the offsets increase).
_DIRECTIONS = {(-1, True): "right", (-1, False): "left", (-2, True): "down", (-2, False): "up"}


@dataclass(frozen=True)
class InputSummary:
    """A snapshot and its camera, for a person to check.

    Attributes:
        snapshot: the inputs of a reconstruction.
        rows: (name, value) pairs of the table.
        warnings: findings against the camera, a line each.
        frame: measurement of the first shot, `(H', W')`.
        predicted_frame: `(H', W')`, see `predict_frame`.
        agreement: correlation of the fine structure of both frames, −1 to 1.
        mask: mask of the first shot, `(H, W)`; the mean over the bands if every band has its own.
        offsets: offset of each band along the axis, pixels; None for a camera without a mask.
        axis: axis of the dispersion.
    """

    snapshot: Snapshot
    rows: list[tuple[str, str]]
    warnings: list[str]
    frame: np.ndarray
    predicted_frame: np.ndarray
    agreement: float
    mask: np.ndarray | None
    offsets: tuple[float, ...] | None
    axis: int


@torch.no_grad()
def summarize_inputs(snapshot: Snapshot) -> InputSummary:
    """Return the table, warnings and pictures of a snapshot and its camera."""
    camera = snapshot.camera.system.base_camera
    y, good_pixels = snapshot.y, snapshot.good_pixels
    camera_check = check_camera(y, snapshot.camera.system)
    predicted_frame = predict_frame(y, camera)
    fine_structure = flatten(y[0, :1].float(), None if good_pixels is None else good_pixels[0, :1])
    agreement = _correlate(fine_structure, flatten(predicted_frame[0, :1].float()))
    # The camera check comes first. It finds where the light begins and ends, but not how many bands
    # lie between. So a camera that passes the check is compared with other whole steps of the same
    # sign.
    step_warnings = (
        [] if camera_check.warnings else find_better_step(y, camera, fine_structure, agreement)
    )
    coded_camera = camera if isinstance(camera, CodedSystem) else None
    rows = [
        *_make_rows(snapshot, camera),
        ("Camera check", "" if step_warnings else camera_check.note or "nothing found"),
    ]
    rows += [("Files", note) for note in snapshot.notes]
    warnings = [f"{warning.about}: {warning.message}" for warning in camera_check.warnings]
    mask = None
    if coded_camera is not None and coded_camera.mask.ndim <= 4:
        mask = coded_camera.mask[0].mean(0).cpu().numpy()
    return InputSummary(
        snapshot=snapshot,
        rows=[(name, value) for name, value in rows if value],
        warnings=warnings + step_warnings,
        frame=y[0, 0].cpu().numpy(),
        predicted_frame=predicted_frame[0, 0].cpu().numpy(),
        agreement=agreement,
        mask=mask,
        offsets=None if coded_camera is None else tuple(coded_camera.offsets),
        axis=-1 if coded_camera is None else coded_camera.axis,
    )


@torch.no_grad()
def predict_frame(y: Tensor, system: System) -> Tensor:
    r"""Predict the frame of a uniform scene that has the local brightness of a measurement y.

        (A1) · (w * y) / (w * A1)

    with a window w of 31×31 pixels. The fine structure of the prediction comes from the camera
    alone. If mask and dispersion are right, y has the same fine structure wherever the scene is
    uniform.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera A.

    Returns:
        The predicted frame `(B, K, H', W')`.
    """
    white_frame = system(y.new_ones(1, *system.cube_shape))
    mean_white = _average_in_windows(white_frame)
    # The bound keeps noise at the dark border of the detector from being divided by almost zero.
    brightness = _average_in_windows(y) / mean_white.clamp_min(
        1e-3 * mean_white.max().clamp_min(1e-30)
    )
    predicted_frame: Tensor = white_frame * brightness
    return predicted_frame


@torch.no_grad()
def find_better_step(
    y: Tensor, camera: System, fine_structure: Tensor, agreement: float
) -> list[str]:
    """Return a warning if the frame agrees much better with another whole step.

    The widths of detector and mask also allow other steps, with other numbers of bands. Each step
    predicts a frame with another fine structure. In simulated snapshots of 8 scenes of CAVE, with
    two masks and steps of 1, 2 and 4, the right step always agreed best. Frames of real cameras,
    whose light fills the pixels between the bands, agree up to 2 % better with a step of 1.

    Args:
        y: measurement `(B, K, H', W')`.
        camera: the camera A.
        fine_structure: fine structure of the first shot of y.
        agreement: correlation of y with the frame that the camera predicts.

    Returns:
        One warning, or none.
    """
    if type(camera) is not SDCassi or not camera.step:
        return []
    length, detector = camera.cube_shape[camera.axis], camera.measurement_shape[camera.axis]
    extra_pixels, sign = detector - length, 1 if camera.step > 0 else -1
    if extra_pixels != abs(camera.step) * (camera.bands - 1) or camera.mask.shape[-3] > 1:
        return []
    best_agreement, best_step = agreement, abs(camera.step)
    for step in range(1, _MAX_STEP + 1):
        bands = extra_pixels // step + 1
        if extra_pixels % step or bands < _MIN_BANDS or step == best_step:
            continue
        other_camera = SDCassi(camera.mask, bands, step=sign * step, axis=camera.axis)
        other_structure = flatten(predict_frame(y, other_camera)[0, :1].float())
        other_agreement = _correlate(fine_structure, other_structure)
        best_agreement, best_step = max((best_agreement, best_step), (other_agreement, step))
    # An agreement near zero is noise. Without the bound of 0.05, any other step could be many times
    # as good.
    if best_agreement <= _MIN_AGREEMENT_RATIO * max(agreement, 0.05):
        return []
    return [
        f"step: the frame agrees better with a step of {sign * best_step}, "
        f"{extra_pixels // best_step + 1} bands (agreement {best_agreement:.2f}, with "
        f"{camera.step} and {camera.bands} bands {agreement:.2f}): set the step to "
        f"{sign * best_step}"
    ]


def _average_in_windows(image: Tensor) -> Tensor:
    padded_image = pad(image, (_WINDOW_RADIUS,) * 4, mode="replicate")
    mean: Tensor = avg_pool2d(padded_image, 2 * _WINDOW_RADIUS + 1, 1)
    return mean


def _correlate(a: Tensor, b: Tensor) -> float:
    norm = (a.square().sum() * b.square().sum()).sqrt().clamp_min(1e-30)
    return float((a * b).sum() / norm)


def _make_rows(snapshot: Snapshot, camera: System) -> list[tuple[str, str]]:
    shots, height, width = camera.measurement_shape
    bands, rows, columns = camera.cube_shape
    noise = float(relative_noise(snapshot.y, snapshot.camera.system).max())
    wavelengths, corrections = snapshot.camera.wavelengths, snapshot.corrections
    wavelength_range = "not known: bands have numbers, and colours are false"
    if wavelengths is not None:
        wavelength_range = f"{wavelengths[0]:g} to {wavelengths[-1]:g} nm"
    table = [
        ("Snapshot", f"{height} × {width} pixels" + (f", {shots} shots" if shots > 1 else "")),
        ("Cube", f"{bands} bands of {rows} × {columns} pixels"),
        ("Wavelengths", wavelength_range),
        ("Dispersion", _describe_dispersion(camera)),
        ("Noise", f"{100 * noise:.2g} % of the frame's root mean square"),
    ]
    if corrections is None:
        return [*table, ("Frame", "simulated from the truth")]
    dark, saturation = corrections["dark"], corrections["saturation"]
    bad_pixels = corrections["bad_pixels"]
    source = {"number": "as set", "edges": "of the edges"}.get(dark["source"], dark["source"])
    saturation_text, bad_pixel_text = "none found", "no pixel"
    if saturation:
        saturation_text = f"{saturation['pixels']} pixels, from {saturation['level']:.4g} on"
    if bad_pixels:
        fraction = 100 * bad_pixels["fraction"]
        bad_pixel_text = f"{bad_pixels['left_out']} pixels ({fraction:.3g} %)"
    return [
        *table,
        ("Dark level", f"{dark['level']:.4g}, {source}"),
        ("Saturation", saturation_text),
        ("Bad pixels", bad_pixel_text),
    ]


def _describe_dispersion(camera: System) -> str:
    if not isinstance(camera, CodedSystem) or camera.bands < 2:
        return ""
    axis, offsets = camera.axis, camera.offsets
    span = offsets[-1] - offsets[0]
    step = abs(span) / (len(offsets) - 1)
    direction = _DIRECTIONS[axis, span >= 0]
    caveat = " (as set: no frame shows the direction)" if camera.mask.shape[-3] == 1 else ""
    return f"{step:.4g} pixels per band, longer wavelengths further {direction}{caveat}"
