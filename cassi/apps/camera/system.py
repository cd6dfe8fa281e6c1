"""The camera that a config describes, made to fit its mask and files; where its bands fall.

The order matters. A mask that is drawn needs the size of the truth. A mask per band may be stored
as it falls on the detector, which only the length of the measurement (or of the truth and its
dispersion) tells; it is moved back to where the camera has it. Only then do mask and measurement
say how many bands there are, and with them the camera is built.
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
_END = 2
"""Pixels by which a detector is taken to end elsewhere, and the camera to be right."""
_UNLIKE, _ALIKE, _STEPS = 0.2, 0.5, 8
"""Correlations of two bands' masks that differ and that are one, and steps that are tried."""
_FARTHEST = 2**20
"""Pixels between the first and the last band: what a camera measures takes as much memory."""


@dataclass(frozen=True)
class Fitted:
    """A camera made to fit its files, and how it was understood.

    Attributes:
        system: on the CPU.
        mask: `(K, 1|C, H, W)` as it was read or drawn.
        notes: one line each.
    """

    system: System
    mask: Tensor
    notes: list[str]


def _check_pattern(node: Node, mask: Tensor) -> None:
    """Refuse a mask of one number where nothing else codes the scene."""
    kind = str(node.get("_target_", "")).rpartition(".")[2]
    coded = kind in (SDCassi.__name__, DDCassi.__name__)
    if coded and mask.numel() > 1 and bool((mask == mask.flatten()[0]).all()):
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
    stated: Wavelengths = None,
) -> Fitted:
    """Make the camera of a scene.

    Args:
        node: of the config, `system`.
        mask: `(K, 1|C, H, W)`, or the node of a mask to draw.
        truth: `(C, H, W)`, if known.
        measurement: `(K, H', W')`, if one was taken.
        bands: C, if stated; else that of the truth, or what mask and measurement say.
        wavelengths: nm, one per band, if known: dispersion curves need them.
        stated: those that the user says, whose number must be that of the bands.
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
    given, axis = mask, node.get("axis", -1)
    along = axis in (-1, -2)  # what else it may be is for the camera to refuse
    length = truth.shape[axis] if truth is not None and along else None
    detector = None
    if measurement is not None and along:
        detector = measurement.shape[axis]
        length = detector if is_dual(node) else length
    elif length is not None:
        detector = length + dispersed(node, bands or 1, wavelengths)
    mask, more, note = move_back(node, mask, detector, wavelengths)
    if note is not None:
        notes.append(note)
    check_mask(mask)
    if bands is None and mask.shape[1] > 1:
        bands = mask.shape[1]
    if measurement is not None and not more:
        bands = fit_bands(node, mask, measurement, bands, stated)
    system = build_camera(node, mask, bands or mask.shape[1], wavelengths, length, **more)
    notes.append(f"system: {system}")
    places = find_places(system)
    check_places(places)
    if not more and (loss := describe_loss(places, axis)) is not None:
        notes.append(f"system: {loss}")
    return Fitted(system, given, notes)


def is_dual(system: Node) -> bool:
    """Tell whether a config's camera is the dual disperser, whose y is as large as the cube."""
    return str(system.get("_target_")).rpartition(".")[2] == "DDCassi"


def find_offsets(system: Node, bands: int, wavelengths: Wavelengths) -> list[float] | None:
    """Return one offset per band, of a list, a curve or a fractional step.

    None where there is a step of whole pixels.
    """
    node = system.get("offsets")
    if node is None:
        step = find_step(system)
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
            wavelengths = range(1, bands + 1)  # which it does not look at
        if wavelengths is None:
            raise ValueError(
                "system.offsets: expected wavelengths for a dispersion curve; give "
                "wavelengths=[…] in nm, one per band"
            )
        node = list(curve.offsets(wavelengths))
    numbers = isinstance(node, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in node
    )
    if not numbers:
        raise ValueError(f"system.offsets: expected a list of pixels or a curve, got {node!r}")
    if len(node) != bands:
        raise ValueError(f"system.offsets: expected {bands} values, one per band, got {len(node)}")
    return [float(value) for value in node]


def dispersed(system: Node, bands: int, wavelengths: Wavelengths) -> int:
    """Return by how many pixels the bands lie apart: ceil(max o), or (C-1)·|step|."""
    offsets = find_offsets(system, bands, wavelengths)
    if offsets is not None:
        return max(0, math.ceil(max(offsets)))
    return (bands - 1) * abs(int(find_step(system)))


def nominal_offsets(system: Node, bands: int, wavelengths: Wavelengths) -> list[float]:
    """Return the offset of each band, pixels: those that were given, or even ones."""
    offsets = find_offsets(system, bands, wavelengths)
    return list(spaced_offsets(bands, find_step(system))) if offsets is None else offsets


def find_step(system: Node) -> float:
    """Return the step of a config's camera, pixels per band, whole or not."""
    step = system.get("step", 0)
    if not is_number(step):
        raise ValueError(f"system.step: expected a number of pixels per band, got {step!r}")
    return float(step)


def build_camera(
    system: Node,
    mask: Tensor,
    bands: int,
    wavelengths: Wavelengths,
    length: int | None = None,
    **more: Any,
) -> System:
    """Build the camera of a config, with the offsets that its dispersion curve says.

    A curve needs wavelengths. `length` of the cube, pixels along the dispersion, is known where the
    mask of a dual disperser may be longer. Arguments in `more` win over all of these.
    """
    offsets = find_offsets(system, bands, wavelengths)
    if (reach := dispersed(system, bands, wavelengths)) > _FARTHEST:
        raise ValueError(
            f"system.step: expected at most {_FARTHEST} pixels along the dispersion, got {reach}"
        )
    if offsets is not None:
        more = {"offsets": offsets} | more
    if is_dual(system) and system.get("width") is None:
        more = {"width": length} | more
    if isinstance(file := system.get("response"), str):
        channels = count_filters(system.get("pattern", "RGGB"))
        curves = read_curves(Path(file), "system.response", channels, bands, wavelengths)
        more = {"response": torch.from_numpy(curves)} | more
    if isinstance(file := system.get("kernels"), str):
        more = {"kernels": load_cube(file, bands=bands).data[0]} | more
    camera: System = build(system, mask=mask, bands=bands, **more)
    return camera


def draw_mask(
    node: Any,
    system: Node,
    truth: Tensor | None,
    wavelengths: Wavelengths,
    measured: Sequence[int] | None = None,
    bands: int | None = None,
) -> Tensor:
    """Draw the mask that a node of a config describes, for a truth `(C, H, W)`.

    Args:
        node: of the mask.
        system: the camera's node.
        truth: the scene, if known.
        wavelengths: nm, if known.
        measured: (H', W') of a measurement. An open mask is drawn for it.
        bands: C, if known.
    """
    pattern = build(node)
    if not isinstance(pattern, MaskPattern):
        raise ValueError(f"mask: expected a mask to draw, got {type(pattern).__name__}")
    rows = system.get("axis", -1) == -2
    if truth is not None:
        bands, height, width = truth.shape
        extra = dispersed(system, bands, wavelengths) if is_dual(system) else 0
    elif isinstance(pattern, OpenMask) and measured is not None:
        bands = bands or len(wavelengths or ()) or 1
        height, width = measured
        extra = 0 if is_dual(system) else -dispersed(system, bands, wavelengths)
    else:
        raise ValueError(
            "mask: expected the file of the mask that the measurement was made with, mask=FILE; "
            "masks are drawn for a truth"
        )
    return pattern.draw(height + extra * rows, width + extra * (not rows), bands)


def move_back(
    system: Node, mask: Tensor, detector: int | None, wavelengths: Wavelengths
) -> tuple[Tensor, Node, str | None]:
    """Recognise masks per band on the detector's grid (`mask_3d_shift`), and move them back.

    Args:
        system: the node.
        mask: `(K, C, H, W or W')`.
        detector: W', of a measurement or of a truth and its dispersion.
        wavelengths: nm, if known.

    Returns:
        The mask of the camera, further arguments of the camera, and a note for the user, or None
        where the mask was what it seemed.
    """
    bands, axis = mask.shape[1], system.get("axis", -1)
    if bands == 1 or axis not in (-1, -2) or mask.shape[axis] != detector or is_dual(system):
        return mask, {}, None
    offsets = nominal_offsets(system, bands, wavelengths)
    whole = all(offset == int(offset) for offset in offsets)
    if not whole or min(offsets) != 0 or max(offsets) == 0:
        return mask, {}, None
    moved, shifts, length = unshift_masks(mask, [int(offset) for offset in offsets], axis)
    note = f"mask: one per band as it falls on the detector, moved back to {tuple(moved.shape)}"
    if min(shifts) == 0:
        return moved, {}, note
    if system.get("offsets") is None:
        _check_copies(mask, round(find_step(system)), axis)
    note += "; it lets light through beside the windows, so the cube is wider than those"
    return moved, {"offsets": [float(shift) for shift in shifts], "detector": length}, note


def _check_copies(mask: Tensor, step: int, axis: int) -> None:
    """Refuse masks per band that light passes everywhere and that the step does not move."""
    if likeness_of_bands(mask, step, axis) > _UNLIKE:
        return
    moves = [(other, to) for to in (axis, -3 - axis) for other in range(-_STEPS, _STEPS + 1)]
    likeness = {move: likeness_of_bands(mask, *move) for move in moves}
    moved, to = max(moves, key=likeness.__getitem__)
    if likeness[moved, to] <= _ALIKE:
        hint = "they are not alike; set system.step=0 where the bands are frames of a video"
    elif moved == 0:
        hint = "they do not move; set system.step=0"
    else:
        turn = f"system.axis={to} " * (to != axis)
        hint = f"they move along the {'rows' if to == -2 else 'columns'}; " * (to != axis)
        hint += f"set {turn}system.step={moved}"
    raise ValueError(
        "mask: expected each band's to be that of the band before it on the detector, moved by "
        f"system.step={step}; {hint}"
    )


def fit_bands(
    system: Node, mask: Tensor, measurement: Tensor, bands: int | None, wavelengths: Wavelengths
) -> int:
    """Return the number of bands that mask, measurement and wavelengths agree on."""
    step, axis = find_step(system), system.get("axis", -1)
    if axis not in (-1, -2):
        raise ValueError(f"system.axis: expected -1 (columns) or -2 (rows), got {axis!r}")
    _check_across(mask, measurement, axis)
    stated = any(system.get(name) is not None for name in ("offsets", "detector"))
    if stated or is_dual(system):
        return _stated_bands(system, mask, measurement, bands, wavelengths)
    length, detector = mask.shape[axis], measurement.shape[axis]
    if wavelengths is not None and system.get("bands") is None:
        try:
            found = infer_bands(length, detector, step)
        except ValueError:  # which says less than what is said below, of so many bands
            found, bands = len(wavelengths), len(wavelengths)
        if found != len(wavelengths):
            beyond = detector - length - (len(wavelengths) - 1) * abs(step)
            hint = ""
            if abs(beyond) <= _END:
                hint = f"; set system.detector={detector}, which {say_end(beyond)}"
            elif beyond > 0:
                hint = f"; set system.detector={detector} if it reaches beyond the bands"
            raise ValueError(
                f"wavelengths: expected {found} values, one per band that step {step:g} makes, "
                f"got {len(wavelengths)}{hint}"
            )
    found = infer_bands(length, detector, step, bands)
    if found == 1 and bands is None:
        raise ValueError(
            f"system.bands: expected more room for bands, mask and measurement have {length} "
            f"pixels each along the dispersion; give system.bands=C system.detector={detector} for "
            "a frame that was cut, truth=FILE for a cube, mask=FILE of the mask alone, which a "
            "frame in white light is not, or system.bands=1 for an image of one band"
        )
    return found


def _check_across(mask: Tensor, measurement: Tensor, axis: int) -> None:
    """Refuse a mask whose side across the dispersion is not that of the measurement."""
    across = -3 - axis  # the other axis
    if measurement.shape[across] == mask.shape[across]:
        return
    side = {-1: "width", -2: "height"}
    more = measurement.shape[across] - mask.shape[across]
    hints = []
    if measurement.shape[axis] == mask.shape[axis]:
        hints.append(f"system.axis={across} disperses along the other side")
    if measurement.shape[axis] == mask.shape[across]:
        hints.append("axes.measurement=WH reads a transposed file")
    if measurement.shape[across] == mask.shape[axis] <= measurement.shape[axis]:
        hints.append("axes.mask=WH reads a transposed mask")
    if more > 0:
        hints.append(f"window=[top,left,height,width] cuts the {more} pixels off the frame")
    elif not hints:
        hints.append(f"cut the mask to the part before the frame, {-more} pixels less")
    ratio = measurement.shape[across] / mask.shape[across]
    if len(hints) == 1 and mask.shape[axis] * ratio <= measurement.shape[axis]:
        hints.append(f"resample the mask by {ratio:.4g} if it shows all of the frame")
    raise ValueError(
        f"mask: expected a {side[across]} of {measurement.shape[across]} as the measurement's, "
        f"got {mask.shape[across]} (mask {tuple(mask.shape[-2:])}, measurement "
        f"{tuple(measurement.shape[-2:])}, dispersion along the {side[axis]}); "
        f"{'; '.join(hints)}"
    )


def _stated_bands(
    system: Node, mask: Tensor, measurement: Tensor, bands: int | None, wavelengths: Wavelengths
) -> int:
    # Sizes do not say how many bands there are.
    offsets = system.get("offsets")
    if bands is None and wavelengths is not None:
        bands = len(wavelengths)
    if bands is None and isinstance(offsets, list):
        bands = len(offsets)
    if bands is None:
        raise ValueError(
            "system.bands: expected the number of bands, which this camera's size leaves open, got "
            "none; give system.bands=C or wavelengths=[…]"
        )
    axis = system.get("axis", -1)
    extra = dispersed(system, bands, wavelengths)  # checks the offsets too
    got, detector = measurement.shape[axis], system.get("detector")
    if is_dual(system):
        expected = system.get("width") or got
        why = f"system.width says so; set system.width={got}"
    elif detector is not None:
        expected = detector
        why = f"system.detector says so; set system.detector={got} if the bands begin where they do"
        if got > expected:
            why += f", or window=[top,left,height,width] to the {expected} pixels that it means"
    else:
        expected = mask.shape[axis] + extra
        why = f"a mask of {mask.shape[axis]} and bands up to {extra} pixels apart say; set "
        why += f"system.detector={got} if the detector ends elsewhere"
    if got != expected:
        raise ValueError(
            f"measurement: expected {expected} pixels along the dispersion, got {got}: {why}"
        )
    return bands
