"""Draw the two figures of a calibration: its result, and the dispersion curve of filters."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from cassi.viz.canvas import INK
from cassi.viz.sheet import SMALL, Sheet, tidy


def save_calibration(
    path: str | os.PathLike[str],
    errors: tuple[float, float],
    deviations: Sequence[tuple[str, float, float]],
    light: tuple[Sequence[float], Sequence[float]],
    bands: Sequence[float],
) -> None:
    """Draw the held-out errors, the estimated parameters and the spectrum of the light.

    Args:
        path: the PNG to write.
        errors: held-out errors of the nominal and of the calibrated camera.
        deviations: for each parameter its name, its deviation from the nominal value, and its
            standard error. Both numbers are in pixels by which the parameter moves the border of
            the mask, or the outermost band.
        light: offsets along the dispersion, pixels, and the power of the light at these offsets.
        bands: offsets of the calibrated bands, pixels.
    """
    height, sheet = 0.5 + 0.2 * len(deviations), Sheet()
    left, right = sheet.axes(0, 0, 2.3, height), sheet.axes(3.3, 0, 2.3, height)
    below = sheet.axes(0, height + 0.6, 5.6, 1.1)
    for band in bands:
        below.axvline(band, color="#c9d6e6", lw=0.8)
    below.semilogy(*light, lw=1, color="#1f5aa6")
    below.minorticks_off()
    below.set_title("light over offset (px); pale: bands", size=SMALL, color=INK)
    left.barh(range(2), errors, color="#1f5aa6")
    left.set_yticks(range(2), ("nominal", "calibrated"))
    left.invert_yaxis()
    left.set_title("held-out error", size=SMALL, color=INK)
    keys, values, standard_errors = zip(*deviations, strict=True)
    # matplotlib refuses infinite error bars; a parameter without a standard error gets none.
    bar_lengths = [value if math.isfinite(value) else 0.0 for value in standard_errors]
    right.axvline(0, color="#b0b0b0", lw=0.8)
    right.errorbar(
        values, range(len(keys)), xerr=bar_lengths, fmt="o", ms=3, lw=1, capsize=2, color="#1f5aa6"
    )
    right.set_yticks(range(len(keys)), keys)
    right.invert_yaxis()
    right.set_title("off by, ± standard error (px)", size=SMALL, color=INK)
    for axes in (left, right, below):
        tidy(axes)
    sheet.save(path)


def save_dispersion(
    path: str | os.PathLike[str],
    points: Sequence[tuple[float, float]],
    wavelengths: Sequence[float],
    offsets: Sequence[float],
    errors: Sequence[float],
) -> None:
    """Draw a dispersion curve, the points of the filters, and the standard errors of the curve.

    Args:
        path: the PNG to write.
        points: wavelength, nm, and offset, pixels, of each filter.
        wavelengths: wavelengths of the bands, nm, (C,).
        offsets: offsets of the bands, pixels, (C,).
        errors: standard errors of the offsets, pixels, (C,).
    """
    sheet = Sheet()
    left, right = sheet.axes(0, 0, 2.6, 1.9), sheet.axes(3.1, 0, 2.6, 1.9)
    left.plot(wavelengths, offsets, "o-", ms=2, lw=0.8, color="#1f5aa6")
    left.plot(*zip(*points, strict=True), "s", ms=5, mfc="none", color="#b5482a")
    left.set_title("offset (px) over wavelength (nm); squares: filters", size=SMALL, color=INK)
    right.plot(wavelengths, errors, lw=0.8, color="#1f5aa6")
    right.set_ylim(bottom=0)
    right.set_title("standard error (px) over wavelength (nm)", size=SMALL, color=INK)
    for axes in (left, right):
        tidy(axes)
    sheet.save(path)
