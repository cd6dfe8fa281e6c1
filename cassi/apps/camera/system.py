"""Build the camera that a config describes, to fit its mask, measurement and truth.

The order of the steps matters:

1. If no file has the mask, it is drawn. This needs the size of the truth.
2. A file may have a mask per band, each as it falls on the detector. Only the length of the
   measurement (or of the truth plus its dispersion) shows this. These masks are moved back.
3. Mask and measurement give the number of bands.
4. The camera is built with this number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi.checks import is_number
from cassi.config import Node, build
from cassi.data.formats.curves import read_curves
from cassi.data.io import load_cube
from cassi.systems import (
    DDCassi,
    Dispersion,
    Linear,
    MaskPattern,
    OpenMask,
    SDCassi,
    System,
    check_mask,
    infer_bands,
    spaced_offsets,
    unshift_masks,
)
from cassi.systems.band_numbers import say_end
from cassi.systems.band_positions import check_places, describe_loss, find_places
from cassi.systems.masks import likeness_of_bands
from cassi.systems.mosaic import count_filters

Wavelengths = Sequence[float] | None
# If the lengths of detector and bands differ by at most this many pixels, the message proposes
# `system.detector=`, and says where the detector then ends.
_MAX_END_PIXELS = 2
# Correlations of the masks of neighbouring bands after a shift. Above the first value, the masks
# count as moved by the stated step. Above the second value, the message proposes another step. True
# masks per band have a correlation of about 1 after the right shift, unrelated masks of about 0.
_MIN_STEP_CORRELATION = 0.2
_MIN_PROPOSAL_CORRELATION = 0.5
# Steps up to this one, in both directions and along both axes, are tried for a proposal.
_MAX_TRIAL_STEP = 8
# Largest distance of the first and the last band, pixels. The memory of a measurement grows with
# this distance, so a mistyped step could fill the memory.
_MAX_DISPERSION_PIXELS = 2**20


@dataclass(frozen=True)
class FittedCamera:
    """A camera that fits its files, with notes on how these were understood.

    Attributes:
        system: the operator A, on the CPU.
        mask: the mask `(K, 1|C, H, W)` as it was read or drawn.
        notes: notes for the user, one line each.
    """

    system: System
    mask: Tensor
    notes: list[str]


def _check_pattern(node: Node, mask: Tensor) -> None:
    """Raise ValueError for a mask of one value, in a camera that only its mask codes."""
    kind = str(node.get("_target_", "")).rpartition(".")[2]
    is_coded_by_mask = kind in (SDCassi.__name__, DDCassi.__name__)
    if is_coded_by_mask and mask.numel() > 1 and bool((mask == mask.flatten()[0]).all()):
        raise ValueError(
            f"mask: expected a pattern, all pixels are {float(mask.flatten()[0]):.4g}; is this the "
            "mask? Save its transmission as the grey level"
        )


def make_camera(
    node: Node,
    mask: Any,
    *,
    truth: Tensor | None = None,
    measurement: Tensor | None = None,
    bands: int | None = None,
    wavelengths: Wavelengths = None,
    user_wavelengths: Wavelengths = None,
) -> FittedCamera:
    """Make the camera of a scene.

    Args:
        node: node `system` of the config.
        mask: the mask `(K, 1|C, H, W)`, or the node of a mask to draw.
        truth: true cube `(C, H, W)`, if known.
        measurement: measurement `(K, H', W')`; None if it will be simulated.
        bands: number of bands, C, if stated. None takes the number of the truth, or the number that
            mask and measurement give.
        wavelengths: wavelengths in nm, one per band, if known. Dispersion curves need them.
        user_wavelengths: wavelengths that the user states, nm. Their number must be C.

    Raises:
        ValueError: mask, measurement, truth and node do not fit each other.
    """
    notes: list[str] = []
    if truth is not None:
        bands = bands or len(truth)
    if isinstance(mask, Tensor):
        _check_pattern(node, mask)
    else:
        size = None if measurement is None else measurement.shape[-2:]
        mask = draw_mask(mask, node, truth, wavelengths, size, bands)
        notes.append(f"mask: drawn, {tuple(mask.shape)}, mean {mask.mean():.3f}")
    file_mask, axis = mask, node.get("axis", -1)
    has_valid_axis = axis in (-1, -2)  # the class of the camera raises the error for others
    length = truth.shape[axis] if truth is not None and has_valid_axis else None
    detector = None
    if measurement is not None and has_valid_axis:
        detector = measurement.shape[axis]
        length = detector if is_dual(node) else length
    elif length is not None:
        detector = length + dispersion_length(node, bands or 1, wavelengths)
    mask, arguments, note = move_back(node, mask, detector, wavelengths)
    if note is not None:
        notes.append(note)
    check_mask(mask)
    if bands is None and mask.shape[1] > 1:
        bands = mask.shape[1]
    # If `move_back` returned offsets and a detector (`arguments`), the bands are known.
    if measurement is not None and not arguments:
        bands = fit_bands(node, mask, measurement, bands, user_wavelengths)
    system = build_camera(node, mask, bands or mask.shape[1], wavelengths, length, **arguments)
    notes.append(f"system: {system}")
    places = find_places(system)
    check_places(places)
    if not arguments and (loss := describe_loss(places, axis)) is not None:
        notes.append(f"system: {loss}")
    return FittedCamera(system, file_mask, notes)


def is_dual(system_node: Node) -> bool:
    """Tell whether a node is the dual disperser, whose measurement is as large as the cube."""
    return str(system_node.get("_target_")).rpartition(".")[2] == "DDCassi"


def find_offsets(system_node: Node, bands: int, wavelengths: Wavelengths) -> list[float] | None:
    """Return the offset of each band, pixels, from a list, a curve or a fractional step.

    Returns None for a step of whole pixels, which cameras take as it is.

    Raises:
        ValueError: the offsets are of another kind or number, or a curve lacks wavelengths.
    """
    node = system_node.get("offsets")
    if node is None:
        step = find_step(system_node)
        return None if step.is_integer() else list(spaced_offsets(bands, step))
    if isinstance(node, dict):
        if "_target_" not in node:
            raise ValueError(
                f"system.offsets: expected a curve, got {node!r}; choose which, "
                "dispersion@system.offsets=NAME, or give its _target_"
            )
        curve = build(node)
        if not isinstance(curve, Dispersion):
            raise ValueError(
                f"system.offsets: expected a dispersion curve, got {type(curve).__name__}"
            )
        if wavelengths is None and isinstance(curve, Linear):
            wavelengths = range(1, bands + 1)  # a linear curve needs only their number
        if wavelengths is None:
            raise ValueError(
                "system.offsets: expected wavelengths for a dispersion curve; give "
                "wavelengths=[…] in nm, one per band"
            )
        node = list(curve.offsets(wavelengths))
    are_numbers = isinstance(node, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in node
    )
    if not are_numbers:
        raise ValueError(f"system.offsets: expected a list of pixels or a curve, got {node!r}")
    if len(node) != bands:
        raise ValueError(f"system.offsets: expected {bands} values, one per band, got {len(node)}")
    return [float(value) for value in node]


def dispersion_length(system_node: Node, bands: int, wavelengths: Wavelengths) -> int:
    """Return the pixels between the first and the last band: ceil(max o), or (C-1)·|step|."""
    offsets = find_offsets(system_node, bands, wavelengths)
    if offsets is not None:
        return max(0, math.ceil(max(offsets)))
    return (bands - 1) * abs(int(find_step(system_node)))


def nominal_offsets(system_node: Node, bands: int, wavelengths: Wavelengths) -> list[float]:
    """Return the offset of each band, pixels, also for a step of whole pixels."""
    offsets = find_offsets(system_node, bands, wavelengths)
    return list(spaced_offsets(bands, find_step(system_node))) if offsets is None else offsets


def find_step(system_node: Node) -> float:
    """Return the step of a node, pixels per band."""
    step = system_node.get("step", 0)
    if not is_number(step):
        raise ValueError(f"system.step: expected a number of pixels per band, got {step!r}")
    return float(step)


def build_camera(
    system_node: Node,
    mask: Tensor,
    bands: int,
    wavelengths: Wavelengths,
    length: int | None = None,
    **arguments: Any,
) -> System:
    """Build the camera of a node, with its curves and files read.

    Args:
        system_node: node of the system.
        mask: the mask `(K, 1|C, H, W)`.
        bands: number of bands, C.
        wavelengths: wavelengths in nm, one per band. A dispersion curve needs them.
        length: length of the cube along the dispersion, pixels, if known. The mask of a dual
            disperser may be longer.
        arguments: arguments of the camera's class, which win over those of the node.

    Raises:
        ValueError: the node does not describe a camera of C bands.
    """
    offsets = find_offsets(system_node, bands, wavelengths)
    pixels = dispersion_length(system_node, bands, wavelengths)
    if pixels > _MAX_DISPERSION_PIXELS:
        raise ValueError(
            f"system.step: expected at most {_MAX_DISPERSION_PIXELS} pixels along the dispersion, "
            f"got {pixels}"
        )
    if offsets is not None:
        arguments = {"offsets": offsets} | arguments
    # The mask of a dual disperser may be wider than the scene, so its width must be stated.
    if is_dual(system_node) and system_node.get("width") is None:
        arguments = {"width": length} | arguments
    if isinstance(file := system_node.get("response"), str):
        channels = count_filters(system_node.get("pattern", "RGGB"))
        curves = read_curves(Path(file), "system.response", channels, bands, wavelengths)
        arguments = {"response": torch.from_numpy(curves)} | arguments
    if isinstance(file := system_node.get("kernels"), str):
        arguments = {"kernels": load_cube(file, bands=bands).data[0]} | arguments
    camera: System = build(system_node, mask=mask, bands=bands, **arguments)
    return camera


def draw_mask(
    node: Any,
    system_node: Node,
    truth: Tensor | None,
    wavelengths: Wavelengths,
    measurement_size: Sequence[int] | None = None,
    bands: int | None = None,
) -> Tensor:
    """Draw the mask that a node of a config describes.

    Args:
        node: node of the mask.
        system_node: node of the system.
        truth: true cube `(C, H, W)`, if known.
        wavelengths: wavelengths in nm, if known.
        measurement_size: (H', W'), if known. Only an open mask can be drawn for it.
        bands: number of bands, C, if known.

    Returns:
        The mask `(K, 1|C, H, W)`.

    Raises:
        ValueError: the node describes no mask, or the size of the mask is not known.
    """
    pattern = build(node)
    if not isinstance(pattern, MaskPattern):
        raise ValueError(f"mask: expected a mask to draw, got {type(pattern).__name__}")
    if truth is not None:
        bands, height, width = truth.shape
        extra_pixels = (
            dispersion_length(system_node, bands, wavelengths) if is_dual(system_node) else 0
        )
    elif isinstance(pattern, OpenMask) and measurement_size is not None:
        bands = bands or len(wavelengths or ()) or 1
        height, width = measurement_size
        extra_pixels = (
            0 if is_dual(system_node) else -dispersion_length(system_node, bands, wavelengths)
        )
    else:
        raise ValueError(
            "mask: expected the file of the mask that the measurement was made with, mask=FILE; "
            "masks are drawn for a truth"
        )
    if system_node.get("axis", -1) == -2:
        return pattern.draw(height + extra_pixels, width, bands)
    return pattern.draw(height, width + extra_pixels, bands)


def move_back(
    system_node: Node, mask: Tensor, detector: int | None, wavelengths: Wavelengths
) -> tuple[Tensor, Node, str | None]:
    """Move masks per band back, if they are stored as they fall on the detector.

    The data sets of this field call such masks `mask_3d_shift`.

    Args:
        system_node: node of the system.
        mask: the mask `(K, C, H, W or W')`.
        detector: length of the detector along the dispersion, W': of the measurement, or of the
            truth plus its dispersion.
        wavelengths: wavelengths in nm, if known.

    Returns:
        The mask of the camera, further arguments of the camera, and a note for the user. A mask
        that is not stored in this way stays as it is, without arguments and note.

    Raises:
        ValueError: the masks of the bands are not copies, each moved by the step.
    """
    bands, axis = mask.shape[1], system_node.get("axis", -1)
    if bands == 1 or axis not in (-1, -2) or mask.shape[axis] != detector or is_dual(system_node):
        return mask, {}, None
    offsets = nominal_offsets(system_node, bands, wavelengths)
    has_whole_offsets = all(offset == int(offset) for offset in offsets)
    if not has_whole_offsets or min(offsets) != 0 or max(offsets) == 0:
        return mask, {}, None
    camera_mask, shifts, length = unshift_masks(mask, [int(offset) for offset in offsets], axis)
    note = (
        f"mask: one per band as it falls on the detector, moved back to {tuple(camera_mask.shape)}"
    )
    if min(shifts) == 0:
        return camera_mask, {}, note
    if system_node.get("offsets") is None:
        _check_copies(mask, round(find_step(system_node)), axis)
    note += "; it also lets light through beside the shifted windows, so the cube is wider"
    return camera_mask, {"offsets": [float(shift) for shift in shifts], "detector": length}, note


def _check_copies(mask: Tensor, step: int, axis: int) -> None:
    """Raise ValueError if the masks of the bands are not copies, each moved by the step."""
    if likeness_of_bands(mask, step, axis) > _MIN_STEP_CORRELATION:
        return
    trials = [
        (trial_step, trial_axis)
        for trial_axis in (axis, -3 - axis)
        for trial_step in range(-_MAX_TRIAL_STEP, _MAX_TRIAL_STEP + 1)
    ]
    correlations = {move: likeness_of_bands(mask, *move) for move in trials}
    best_step, best_axis = max(trials, key=correlations.__getitem__)
    if correlations[best_step, best_axis] <= _MIN_PROPOSAL_CORRELATION:
        hint = "they are not alike; set system.step=0 if the bands are frames of a video"
    elif best_step == 0:
        hint = "they do not move; set system.step=0"
    elif best_axis == axis:
        hint = f"set system.step={best_step}"
    else:
        side = "rows" if best_axis == -2 else "columns"
        hint = f"they move along the {side}; set system.axis={best_axis} system.step={best_step}"
    raise ValueError(
        "mask: expected the mask of each band to be that of the band before, moved by "
        f"system.step={step} on the detector; {hint}"
    )


def fit_bands(
    system_node: Node,
    mask: Tensor,
    measurement: Tensor,
    bands: int | None,
    wavelengths: Wavelengths,
) -> int:
    """Return the number of bands that mask, measurement and wavelengths agree on.

    Raises:
        ValueError: these do not agree, or they do not determine the number.
    """
    step, axis = find_step(system_node), system_node.get("axis", -1)
    if axis not in (-1, -2):
        raise ValueError(f"system.axis: expected -1 (columns) or -2 (rows), got {axis!r}")
    _check_other_side(mask, measurement, axis)
    is_size_free = any(system_node.get(name) is not None for name in ("offsets", "detector"))
    if is_size_free or is_dual(system_node):
        return _find_stated_bands(system_node, mask, measurement, bands, wavelengths)
    length, detector = mask.shape[axis], measurement.shape[axis]
    if wavelengths is not None and system_node.get("bands") is None:
        try:
            n_bands = infer_bands(length, detector, step)
        except ValueError:
            # `infer_bands` is called again below, with this number of bands. Its message then says
            # more.
            n_bands, bands = len(wavelengths), len(wavelengths)
        if n_bands != len(wavelengths):
            extra_pixels = detector - length - (len(wavelengths) - 1) * abs(step)
            hint = ""
            if abs(extra_pixels) <= _MAX_END_PIXELS:
                hint = f"; set system.detector={detector}, which {say_end(extra_pixels)}"
            elif extra_pixels > 0:
                hint = f"; set system.detector={detector} if it reaches beyond the bands"
            raise ValueError(
                f"wavelengths: expected {n_bands} values, one per band that step {step:g} makes, "
                f"got {len(wavelengths)}{hint}"
            )
    n_bands = infer_bands(length, detector, step, bands)
    if n_bands == 1 and bands is None:
        raise ValueError(
            f"system.bands: expected more room for bands, mask and measurement have {length} "
            f"pixels each along the dispersion; give system.bands=C system.detector={detector} for "
            "a frame that was cut, truth=FILE for a cube, mask=FILE of the mask alone, which a "
            "frame in white light is not, or system.bands=1 for an image of one band"
        )
    return n_bands


def _check_other_side(mask: Tensor, measurement: Tensor, axis: int) -> None:
    """Raise ValueError unless mask and measurement are equally long across the dispersion."""
    other_axis = -3 - axis
    if measurement.shape[other_axis] == mask.shape[other_axis]:
        return
    side = {-1: "width", -2: "height"}
    extra_pixels = measurement.shape[other_axis] - mask.shape[other_axis]
    hints = []
    if measurement.shape[axis] == mask.shape[axis]:
        hints.append(f"system.axis={other_axis} disperses along the other side")
    if measurement.shape[axis] == mask.shape[other_axis]:
        hints.append("axes.measurement=WH reads a transposed file")
    if measurement.shape[other_axis] == mask.shape[axis] <= measurement.shape[axis]:
        hints.append("axes.mask=WH reads a transposed mask")
    if extra_pixels > 0:
        hints.append(f"window=[top,left,height,width] cuts the {extra_pixels} pixels off the frame")
    elif not hints:
        hints.append(f"cut {-extra_pixels} pixels off the mask, so that it covers the frame alone")
    ratio = measurement.shape[other_axis] / mask.shape[other_axis]
    if len(hints) == 1 and mask.shape[axis] * ratio <= measurement.shape[axis]:
        hints.append(f"resample the mask by {ratio:.4g} if it shows all of the frame")
    raise ValueError(
        f"mask: expected a {side[other_axis]} of {measurement.shape[other_axis]} as the "
        f"measurement's, got {mask.shape[other_axis]} (mask {tuple(mask.shape[-2:])}, measurement "
        f"{tuple(measurement.shape[-2:])}, dispersion along the {side[axis]}); "
        f"{'; '.join(hints)}"
    )


def _find_stated_bands(
    system_node: Node,
    mask: Tensor,
    measurement: Tensor,
    bands: int | None,
    wavelengths: Wavelengths,
) -> int:
    # If offsets or a detector are stated, or if the camera is a dual disperser, the sizes of mask
    # and measurement do not show how many bands there are. So the user has to state the number.
    offsets = system_node.get("offsets")
    if bands is None and wavelengths is not None:
        bands = len(wavelengths)
    if bands is None and isinstance(offsets, list):
        bands = len(offsets)
    if bands is None:
        raise ValueError(
            "system.bands: expected the number of bands, which the sizes of the files do not show, "
            "got none; give system.bands=C or wavelengths=[…]"
        )
    axis = system_node.get("axis", -1)
    reach = dispersion_length(system_node, bands, wavelengths)  # checks the offsets too
    length, detector = measurement.shape[axis], system_node.get("detector")
    if is_dual(system_node):
        expected = system_node.get("width") or length
        reason = f"system.width says so; set system.width={length}"
    elif detector is not None:
        expected = detector
        reason = f"system.detector says so; set system.detector={length} if the detector begins "
        reason += "where the bands begin"
        if length > expected:
            reason += f", or window=[top,left,height,width] cuts the frame to {expected} pixels"
    else:
        expected = mask.shape[axis] + reach
        reason = f"the mask has {mask.shape[axis]} and the bands are up to {reach} pixels apart; "
        reason += f"set system.detector={length} if the detector ends elsewhere"
    if length != expected:
        raise ValueError(
            f"measurement: expected {expected} pixels along the dispersion, got {length}: {reason}"
        )
    return bands
