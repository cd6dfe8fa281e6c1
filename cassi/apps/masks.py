"""Masks that no file holds as they are: drawn for a truth, or moved back from the detector."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from cassi import ops
from cassi.apps.camera import Wavelengths, dispersed, find_offsets, is_dual, whole_step
from cassi.config import build
from cassi.systems import MaskPattern, unshift_masks


def draw_mask(
    node: Any, system: DictConfig, truth: Tensor | None, wavelengths: Wavelengths
) -> Tensor:
    """Draw the mask that a node of a config describes, for a truth `(C, H, W)`.

    Raises:
        ValueError: it is no mask to draw, or there is no truth.
    """
    pattern = build(node)
    if not isinstance(pattern, MaskPattern):
        raise ValueError(f"mask: expected a mask to draw, got {type(pattern).__name__}")
    if truth is None:
        raise ValueError(
            "mask: expected the file of the mask that the measurement was made with, mask=FILE; "
            "masks are drawn for a truth"
        )
    bands, height, width = truth.shape
    extra = dispersed(system, bands, wavelengths) if is_dual(system) else 0
    rows = system.get("axis", -1) == -2
    return pattern.draw(height + extra * rows, width + extra * (not rows), bands)


def move_back(
    system: DictConfig, mask: Tensor, detector: int | None, wavelengths: Wavelengths
) -> tuple[Tensor, dict[str, Any], str | None]:
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
    offsets = find_offsets(system, bands, wavelengths)
    if offsets is None:
        offsets = list(ops.step_offsets(bands, whole_step(system)))
    whole = all(offset == int(offset) for offset in offsets)
    if not whole or min(offsets) != 0 or max(offsets) == 0:
        return mask, {}, None
    moved, shifts, length = unshift_masks(mask, [int(offset) for offset in offsets], axis)
    note = f"mask: one per band as it falls on the detector, moved back to {tuple(moved.shape)}"
    if min(shifts) == 0:
        return moved, {}, note
    note += "; it lets light through beside the windows, so the cube is wider than those"
    return moved, {"offsets": [float(shift) for shift in shifts], "detector": length}, note
