"""A figure of where the bands of a camera fall on its detector."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.viz.bands import Array
from cassi.viz.color import band_colors
from cassi.viz.sheet import INK, PAPER_DPI, SMALL, make_figure, tidy

_TINT = 0.45  # of the mask over the frame


def save_camera(
    path: str | os.PathLike[str],
    frame: Array,
    mask: Array,
    spans: Sequence[tuple[float, float]],
    axis: int,
    wavelengths: Sequence[float] | None = None,
) -> None:
    """Draws the mask over a frame where the middle band falls, and the place of every band.

    Args:
        path: of the PNG.
        frame: `(H', W')`, a measurement, or what the camera shows of a white scene.
        mask: `(H, W)`.
        spans: where each band begins and ends along the dispersion, pixels of the detector.
        axis: -1 disperses along columns, -2 along rows.
        wavelengths: nm, one per band, for the colours.
    """
    light, code = np.asarray(frame, np.float32), np.asarray(mask, np.float32)
    if axis == -2:  # drawn along the dispersion, from left to right
        light, code = light.T, code.T
    nm = np.linspace(450, 650, len(spans)) if wavelengths is None else wavelengths
    colors = band_colors(nm, len(spans)) ** (1 / 2.2)
    height, width = light.shape
    left, right = min(0, *(a for a, _ in spans)), max(width, *(b for _, b in spans))
    tall = min(max(6.0 * height / (right - left), 0.8), 5.0)
    figure = make_figure(6.4, tall + 2.0)
    ratio = [tall, 1.4]
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": ratio})
    level = float(np.percentile(light, 99.5)) or 1.0
    edges = (0, width, height, 0)
    above.imshow(light, cmap="gray", vmin=0, vmax=level, extent=edges, aspect="auto")
    middle = len(spans) // 2
    start, stop = spans[middle]
    tint = np.zeros((*code.shape, 4), np.float32)
    tint[..., :3], tint[..., 3] = colors[middle], _TINT * code / max(float(code.max()), 1e-6)
    above.imshow(tint, extent=(start, stop, height, 0), aspect="auto", interpolation="nearest")
    for band in sorted({0, middle, len(spans) - 1}):
        for place in spans[band]:
            above.axvline(place, color=colors[band], lw=1.2)
    name, other = ("columns", "rows") if axis == -1 else ("rows", "columns")
    turned = "" if axis == -1 else ", transposed"
    title = f"frame{turned}, with the mask where the middle band falls; lines: first, middle, last"
    above.set_ylabel(other, size=SMALL)
    above.set_title(title, size=SMALL, color=INK)
    for band, (begin, end) in enumerate(spans):
        below.barh(band + 1, end - begin, left=begin, height=0.8, color=colors[band])
    for border in (0, width):
        below.axvline(border, color=INK, lw=0.8, ls="--")
    below.set_xlim(left - 0.5, right + 0.5)
    below.invert_yaxis()
    below.yaxis.get_major_locator().set_params(integer=True)
    above.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    below.set_xlabel(f"{name} of the detector, which ends at the dashed lines", size=SMALL)
    below.set_ylabel("band", size=SMALL)
    tidy(below)
    figure.tight_layout(pad=0.6)
    figure.savefig(Path(path), dpi=PAPER_DPI)
