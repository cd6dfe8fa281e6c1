"""Draw the map of an answer beside the half width of its interval."""

from __future__ import annotations

import os

import numpy as np
import torch

from cassi.viz.canvas import DARK, PALE, Canvas, Scale
from cassi.viz.checks import Array, as_array, quantile, shrink
from cassi.viz.palettes import make_palette

# All lengths of the layout are pixels.
_PANEL_SIDE = 480  # longer side of an enlarged map, to the nearest whole factor
_GAP, _SCALE_WIDTH, _LABEL_WIDTH = 12, 14, 90
_MIN_SCALE_HEIGHT = 164  # a scale of less height could not hold its label
_STRIPE_WIDTH = 3
_STRIPE_COLORS = np.array([[176, 176, 176], [104, 104, 104]], np.uint8)


def save_answer(
    path: str | os.PathLike[str],
    name: str,
    value: Array,  # (H, W)
    half_width: Array,  # (H, W)
    abstained: Array,  # (H, W)
    unit: str = "",
    truth: Array | None = None,  # (H, W)
) -> None:
    """Write the map of an answer as PNG, beside it the half width of the 90 % interval.

    With the truth, its map is between them, on the same scale as the answer's. A scale leaves out
    the highest and the lowest 0.5 % of the values. Pixels without an answer have grey stripes.

    Args:
        path: the PNG to write; it is complete or absent.
        name: name of the question, and of the part of its result if it has parts.
        value: the map (H, W).
        half_width: half width of the 90 % interval around every value, (H, W).
        abstained: bool, the pixels without an answer, (H, W).
        unit: unit of the values.
        truth: the true map (H, W), or None.

    Raises:
        OSError: the folder is missing or cannot be written.
        TypeError: the truth is not of real numbers.
        ValueError: a shape does not fit, or a value with an answer is NaN or infinite.
    """
    value, half_width, no_answer = as_answer(name, value, half_width, abstained)
    true_map = value if truth is None else as_array(truth, "truth")
    if true_map.shape != value.shape:
        raise ValueError(
            f"expected a truth of the map's shape {value.shape}, got {true_map.shape}: crop it"
        )
    lines = [name, f"stripes: no answer, {100 * no_answer.mean():.3g} % of the pixels"]
    lines = lines[: 1 + bool(no_answer.any())]
    block = max(1, max(value.shape) // _PANEL_SIDE)
    true_map = shrink(true_map[None], block)[0]
    value, half_width, no_answer = shrink_answer(value, half_width, no_answer, block)
    values = value[~no_answer] if truth is None else np.append(value[~no_answer], true_map)
    colors = Scale(*choose_range(values), make_palette("viridis"))
    width_colors = Scale(0, choose_range(half_width[~no_answer])[1], make_palette("inferno"))
    panels = {"answer": (value, colors), "truth": (true_map, colors)}
    if truth is None:
        del panels["truth"]
    panels["half of the 90 % interval"] = (half_width, width_colors)
    _draw(lines, panels, no_answer, unit).save(path)


def as_answer(
    name: str, value: Array, half_width: Array, no_answer: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an answer's map, half widths and abstained pixels as arrays; 0 where it abstained.

    Raises:
        ValueError: these are not three maps (H, W), or an answer is NaN or infinite.
    """
    value, half_width, no_answer = (
        torch.as_tensor(part).detach().cpu().numpy() for part in (value, half_width, no_answer)
    )
    no_answer = no_answer.astype(bool)
    if value.ndim != 2 or not value.size or not value.shape == half_width.shape == no_answer.shape:
        raise ValueError(
            f"{name}: expected a map (H, W) with half widths and abstained pixels of its shape, "
            f"got {value.shape}, {half_width.shape} and {no_answer.shape}: take one map"
        )
    value = as_array(np.where(no_answer, 0, value), f"answer {name}")
    half_width = as_array(np.where(no_answer, 0, half_width), f"half widths of {name}")
    return value, half_width, no_answer


def shrink_answer(
    value: np.ndarray, half_width: np.ndarray, no_answer: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means over the answers of square blocks; blocks with less than half of them abstain.

    The half widths are averaged too, as if the errors in a block were all alike. The interval of a
    block is then rather too wide than too narrow.
    """
    if block == 1:
        return value, half_width, no_answer
    share, *sums = shrink(
        np.stack([~no_answer, value * ~no_answer, half_width * ~no_answer]), block
    )
    value, half_width = (total / np.maximum(share, 1e-9) for total in sums)
    return value, half_width, share < 0.5


def choose_range(values: np.ndarray) -> tuple[float, float]:
    """Return the 0.5th and the 99.5th percentile, as ends of a scale that has some length."""
    if not values.size:
        return 0.0, 1.0
    low, high = quantile(values, 0.005), quantile(values, 0.995)
    return low, high if high > low else low + (abs(low) or 1.0)


def _draw(
    lines: list[str],
    panels: dict[str, tuple[np.ndarray, Scale]],
    no_answer: np.ndarray,
    unit: str,
) -> Canvas:
    """Draw lines of text above maps with their scales; neighbours on one scale share its bar."""
    factor, canvas = max(1, round(_PANEL_SIDE / max(no_answer.shape))), Canvas(DARK)
    height, width = (factor * side for side in no_answer.shape)
    for row, line in enumerate(reversed(lines)):
        canvas.text(line, 0, -38 - 20 * row, color=PALE)
    left = 0
    scales = [colors for _, colors in panels.values()]
    for (name, (values, colors)), next_scale in zip(
        panels.items(), [*scales[1:], None], strict=True
    ):
        stripes = np.zeros_like(no_answer) if name == "truth" else no_answer
        picture = _stripe(colors.palette[colors.levels(values)], stripes, factor)
        canvas.text(name, left + width / 2, -9, align="center", color=PALE)
        canvas.image(picture, left, 0, width, height)
        left += width + _GAP
        if colors is not next_scale:
            box = (left, 0, _SCALE_WIDTH, max(height, _MIN_SCALE_HEIGHT))
            canvas.scale(colors, unit, *box)
            left += _SCALE_WIDTH + _LABEL_WIDTH
    return canvas


def _stripe(picture: np.ndarray, no_answer: np.ndarray, factor: int) -> np.ndarray:
    """Return a picture (H, W, 3) enlarged by a whole factor, with stripes over no_answer pixels."""
    picture, no_answer = (part.repeat(factor, 0).repeat(factor, 1) for part in (picture, no_answer))
    row, column = np.ogrid[: no_answer.shape[0], : no_answer.shape[1]]
    stripes = _STRIPE_COLORS[(row + column) // _STRIPE_WIDTH % 2]
    return np.where(no_answer[..., None], stripes, picture)
