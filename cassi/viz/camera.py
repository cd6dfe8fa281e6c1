"""A figure of where the bands of a camera fall on its detector."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cassi.viz.bands import Array
from cassi.viz.color import band_colors
from cassi.viz.sheet import INK, PAPER_DPI, SMALL, label_integers, make_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TINT = 0.45  # of the mask over the frame
_TITLE_WIDE = 2.4  # inches of a frame that leave room for the title


def save_camera(
    path: str | os.PathLike[str],
    frame: Array,
    mask: Array,
    spans: Sequence[tuple[float, float]],
    axis: int,
    wavelengths: Sequence[float] | None = None,
) -> None:
    """Draws the mask over a frame where the middle band falls, and the place of every band.

    The frame stands as the detector saw it, whatever way the bands are dispersed.

    Args:
        path: of the PNG.
        frame: `(H', W')`, a measurement, or what the camera shows of a white scene.
        mask: `(H, W)`.
        spans: where each band begins and ends along the dispersion, pixels of the detector.
        axis: -1 disperses along columns, -2 along rows.
        wavelengths: nm, one per band, for the colours.
    """
    light = np.asarray(frame, np.float32)
    nm = np.linspace(450, 650, len(spans)) if wavelengths is None else wavelengths
    colors = band_colors(nm, len(spans)) ** (1 / 2.2)
    height, width = light.shape
    in_columns = axis == -1
    length, other = (width, height) if in_columns else (height, width)
    low, high = min(0, *(a for a, _ in spans)) - 0.5, max(length, *(b for _, b in spans)) + 0.5
    # Along the dispersion as long as the page; the chart of the bands stands below or beside.
    across = min(max(6.0 * other / (high - low), 0.8 if in_columns else _TITLE_WIDE), 5.0)
    if in_columns:
        figure = make_figure(6.4, across + 2.0)
        parts = {"height_ratios": (across, 1.4)}
        picture, chart = figure.subplots(2, 1, sharex=True, gridspec_kw=parts)
        line, border, bar, start = picture.axvline, chart.axvline, chart.barh, "left"
    else:
        figure = make_figure(across + 2.0, 6.4)
        parts = {"width_ratios": (across, 1.4)}
        picture, chart = figure.subplots(1, 2, sharey=True, gridspec_kw=parts)
        line, border, bar, start = picture.axhline, chart.axhline, chart.bar, "bottom"
    level = float(np.percentile(light, 99.5)) or 1.0
    edges = (0, width, height, 0)
    picture.imshow(light, cmap="gray", vmin=0, vmax=level, extent=edges, aspect="auto")
    middle = len(spans) // 2
    first, last = spans[middle]
    place = (first, last, height, 0) if in_columns else (0, width, last, first)
    tint = _tint(np.asarray(mask, np.float32), colors[middle])
    picture.imshow(tint, extent=place, aspect="auto", interpolation="nearest")
    for band in sorted({0, middle, len(spans) - 1}):
        for end in spans[band]:
            line(end, color=colors[band], lw=1.2)
    for band, (begin, end) in enumerate(spans):
        bar(band + 1, end - begin, 0.8, **{start: begin}, color=colors[band])
    for edge in (0, length):
        border(edge, color=INK, lw=0.8, ls="--")
    _label(picture, chart, in_columns, (low, high))
    title = "frame, with the mask where the middle band falls; lines: first, middle, last band"
    figure.suptitle(title, size=SMALL, color=INK)
    figure.tight_layout(pad=0.6)
    figure.savefig(Path(path), dpi=PAPER_DPI)


def _tint(mask: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Gives a mask (H, W) as a see-through layer of one colour, (H, W, 4)."""
    layer = np.empty((*mask.shape, 4), np.float32)
    layer[..., :3], layer[..., 3] = color, _TINT * mask / max(float(mask.max()), 1e-6)
    return layer


def _label(picture: Axes, chart: Axes, in_columns: bool, limits: tuple[float, float]) -> None:
    tidy(chart)
    picture.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    if in_columns:
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
