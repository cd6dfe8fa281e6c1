"""A figure of how a calibration went."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.viz.sheet import INK, PAPER_DPI, SMALL, make_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_calibration(
    path: str | os.PathLike[str],
    errors: tuple[float, float],
    off: Sequence[tuple[str, float, float]],
    light: tuple[Sequence[float], Sequence[float]],
    bands: Sequence[float],
) -> None:
    """Draws held-out errors, what was found with its standard error, and the light.

    Args:
        path: of the PNG.
        errors: held-out ones, of the nominal and of the calibrated camera.
        off: of each parameter: name, distance from its nominal value, and standard error, in
            pixels by which it moves the border of the mask, or the outermost band.
        light: offsets along the dispersion, pixels, and the power of the light there.
        bands: offsets of the calibrated bands, pixels.
    """
    height = 0.9 + 0.2 * len(off)
    figure = make_figure(6.4, height + 1.6)
    grid = figure.add_gridspec(2, 2, height_ratios=(height, 1.6))
    left, right, below = (figure.add_subplot(grid[at]) for at in (0, 1, (1, slice(None))))
    for band in bands:
        below.axvline(band, color="#c9d6e6", lw=0.8)
    below.semilogy(*light, lw=1, color="#1f5aa6")
    below.minorticks_off()
    below.set_title("light over offset (px); pale: bands", size=SMALL, color=INK)
    left.barh(range(2), errors, color="#1f5aa6")
    left.set_yticks(range(2), ("nominal", "calibrated"))
    left.invert_yaxis()
    left.set_title("held-out error", size=SMALL, color=INK)
    keys, values, deviations = zip(*off, strict=True)
    finite = [value if math.isfinite(value) else 0.0 for value in deviations]
    right.axvline(0, color="#b0b0b0", lw=0.8)
    right.errorbar(
        values, range(len(keys)), xerr=finite, fmt="o", ms=3, lw=1, capsize=2, color="#1f5aa6"
    )
    right.set_yticks(range(len(keys)), keys)
    right.invert_yaxis()
    right.set_title("off by, ± standard error (px)", size=SMALL, color=INK)
    _save(figure, path)


def save_dispersion(
    path: str | os.PathLike[str],
    points: Sequence[tuple[float, float]],
    wavelengths: Sequence[float],
    offsets: Sequence[float],
    errors: Sequence[float],
) -> None:
    """Draws a curve of dispersion through what was measured, and its standard error.

    Args:
        path: of the PNG.
        points: wavelength in nm and offset in pixels of each filter.
        wavelengths: nm, of the bands.
        offsets: pixels, of the bands.
        errors: standard errors of these.
    """
    figure = make_figure(6.4, 2.4)
    left, right = figure.subplots(1, 2)
    left.plot(wavelengths, offsets, "o-", ms=2, lw=0.8, color="#1f5aa6")
    left.plot(*zip(*points, strict=True), "s", ms=5, mfc="none", color="#b5482a")
    left.set_title("offset (px) over wavelength (nm); squares: filters", size=SMALL, color=INK)
    right.plot(wavelengths, errors, lw=0.8, color="#1f5aa6")
    right.set_ylim(bottom=0)
    right.set_title("standard error (px) over wavelength (nm)", size=SMALL, color=INK)
    _save(figure, path)


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    for axes in figure.axes:
        tidy(axes)
    figure.tight_layout(pad=0.6)
    figure.savefig(Path(path), dpi=PAPER_DPI)
