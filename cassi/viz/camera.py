"""Draw where the bands of a camera fall on its detector."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cassi.viz.bands import Array
from cassi.viz.canvas import INK
from cassi.viz.color import band_colors
from cassi.viz.sheet import PAPER_DPI, SMALL, label_integers, make_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MASK_OPACITY = 0.45  # the frame stays visible below the mask
_MIN_FRAME_INCHES = 2.4  # a narrower frame would make the figure narrower than its title
_TITLE = "frame, with the mask where the middle band falls; lines: first, middle, last band"


def save_camera(
    path: str | os.PathLike[str],
    frame: Array,
    mask: Array,
    spans: Sequence[tuple[float, float]],
    axis: int,
    wavelengths: Sequence[float] | None = None,
) -> None:
    """Draw a frame, the mask where the middle band falls on it, and the span of every band.

    The frame is drawn with the rows and columns of the detector, whatever the dispersion's axis is.

    Args:
        path: the PNG to write.
        frame: a measurement `(H', W')`, or the camera's image of a white scene.
        mask: the mask `(H, W)`.
        spans: first and last pixel of each band along the dispersion, on the detector.
        axis: axis of the dispersion: -1 for columns, -2 for rows.
        wavelengths: wavelengths of the bands, nm. None draws them in the colours of 450 to 650 nm.
    """
    values = np.asarray(frame, np.float32)
    band_nm = np.linspace(450, 650, len(spans)) if wavelengths is None else wavelengths
    colors = band_colors(band_nm, len(spans)) ** (1 / 2.2)
    (height, width), is_horizontal = values.shape, axis == -1
    length, breadth = (width, height) if is_horizontal else (height, width)
    low, high = min(0, *(a for a, _ in spans)) - 0.5, max(length, *(b for _, b in spans)) + 0.5
    # The frame takes the whole page along the dispersion. Across the dispersion, it has the size
    # that its proportions ask for, within limits. The chart of the bands is below or beside the
    # frame.
    min_inches = 0.8 if is_horizontal else _MIN_FRAME_INCHES
    breadth_inches = min(max(6.0 * breadth / (high - low), min_inches), 5.0)
    ratios = (breadth_inches, 1.4)
    if is_horizontal:
        figure = make_figure(6.4, breadth_inches + 2.0)
        picture, chart = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
        draw_line, draw_border = picture.axvline, chart.axvline
        draw_bar, start_key = chart.barh, "left"
    else:
        figure = make_figure(breadth_inches + 2.0, 6.4)
        picture, chart = figure.subplots(1, 2, sharey=True, width_ratios=ratios)
        draw_line, draw_border = picture.axhline, chart.axhline
        draw_bar, start_key = chart.bar, "bottom"
    _draw_frame(picture, values)
    middle = len(spans) // 2
    first, last = spans[middle]
    extent = (first, last, height, 0) if is_horizontal else (0, width, last, first)
    tint = _tint(np.asarray(mask, np.float32), colors[middle])
    # Nearest-neighbour interpolation keeps the pixels of the mask as sharp squares.
    picture.imshow(tint, extent=extent, aspect="auto", interpolation="nearest")
    for band in sorted({0, middle, len(spans) - 1}):
        for edge in spans[band]:
            draw_line(edge, color=colors[band], lw=1.2)
    for band, (begin, end) in enumerate(spans):
        draw_bar(band + 1, end - begin, 0.8, **{start_key: begin}, color=colors[band])
    for edge in (0, length):
        draw_border(edge, color=INK, lw=0.8, ls="--")
    _label(picture, chart, is_horizontal, (low, high))
    figure.suptitle(_TITLE, size=SMALL, color=INK)
    figure.tight_layout(pad=0.6)
    figure.savefig(Path(path), dpi=PAPER_DPI)


def _draw_frame(axes: Axes, frame: np.ndarray) -> None:
    """Draw a frame (H', W') in grey, a pixel as a unit of the axes."""
    height, width = frame.shape
    # A few hot pixels would leave the rest of the frame black, so the brightest 0.5 % are clipped.
    level = float(np.percentile(frame, 99.5)) or 1.0
    edges = (0, width, height, 0)
    axes.imshow(frame, cmap="gray", vmin=0, vmax=level, extent=edges, aspect="auto")


def _tint(mask: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Return a mask (H, W) as a transparent layer of one colour, RGBA (H, W, 4)."""
    layer = np.empty((*mask.shape, 4), np.float32)
    layer[..., :3], layer[..., 3] = color, _MASK_OPACITY * mask / max(float(mask.max()), 1e-6)
    return layer


def _label(picture: Axes, chart: Axes, is_horizontal: bool, limits: tuple[float, float]) -> None:
    """Label both axes, and give the chart the same pixel range as the frame."""
    tidy(chart)
    picture.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    if is_horizontal:
        chart.set_xlim(limits)
        chart.invert_yaxis()
        label_integers(chart.yaxis)
        picture.set_ylabel("rows", size=SMALL)
        chart.set_ylabel("band", size=SMALL)
        chart.set_xlabel("columns of the detector, which ends at the dashed lines", size=SMALL)
    else:
        chart.set_ylim(limits[::-1])
        label_integers(chart.xaxis)
        picture.set_xlabel("columns", size=SMALL)
        chart.set_xlabel("band", size=SMALL)
        picture.set_ylabel("rows of the detector, which ends at the dashed lines", size=SMALL)
