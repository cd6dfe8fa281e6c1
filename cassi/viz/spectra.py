"""Spectra at chosen points, beside the picture that shows where they are, and as a table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_points, as_truth, as_wavelengths
from cassi.viz.color import band_colors, encode, exposure_of, srgb
from cassi.viz.points import COLORS, choose_points, correlation, region_spectrum
from cassi.viz.sheet import INK, LIGHT, Sheet, label_integers, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = 460  # longer side of the picture, pixels
_CURVES = 660  # width of the axes, pixels
_STRIP = 12
_ACROSS, _LINE = 3, 21  # legend entries in a line, and its height
_KEY = "#7a828c"  # of an entry that stands for all curves


def save_spectra(
    path: str | os.PathLike[str],
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    points: Sequence[Sequence[float]] | None = None,
    truth: Array | None = None,  # (C, H, W)
    illuminant: str | None = "D65",
    bars: Callable[[float, float], Array] | None = None,
    unit: str | None = None,
    along: tuple[Array, Sequence[float]] | None = None,  # (G, H, W) and (G,), nm
) -> None:
    """Writes the spectra at some points as PNG, beside a picture with the points marked.

    A path that ends in `.csv` gets them as a table: a row a band, a column a spectrum.

    A point's spectrum is the mean of the 5×5 pixels around it, cut at the border; between pixels
    such means are interpolated linearly. With the truth,
    its spectra are dashed and the legend gives each point's correlation coefficient

        r = Σ(e−ē)(t−t̄) / (‖e−ē‖ ‖t−t̄‖)

    over the bands of estimate e and truth t. Where `bars` gives the half width (C,) of a
    90 % interval around the spectrum of a point (row, column), the interval is shaded.

    The points are (row, column) pairs, pixels from 0, whole or not; None for ``choose_points`` of
    the truth, or of the cube where there is none. The illuminant is that of ``srgb``: the light on
    a cube of reflectances, or None for radiance. The unit names the axis. The other
    arguments and errors are those of ``save_bands``.

    A cube along the dispersion, with its wavelengths, is drawn as dots, a dot a band. A dot is the
    light of its band times the distance of the cube's bands there over that of the dots, in nm.
    """
    if Path(path).suffix.lower() == ".csv":
        write_bytes(path, _table(cube, wavelengths, points, truth, bars).encode())
    else:
        _draw(cube, wavelengths, points, truth, illuminant, bars, unit, along).save(path)


def draw_spectra(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    truth: Array | None = None,  # (C, H, W)
) -> np.ndarray:  # (H', W', 3)
    """Draws what ``save_spectra`` writes, as an 8-bit RGB picture."""
    from PIL import Image

    png = _draw(cube, wavelengths, None, truth, "D65", None).encode()
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


class _Curve(NamedTuple):
    row: float
    column: float
    spectrum: np.ndarray  # (C,)
    truth: np.ndarray | None  # (C,)
    half: np.ndarray | None  # (C,), of the interval


def _curves(
    estimate: np.ndarray,
    points: Sequence[Sequence[float]] | None,
    true: np.ndarray | None,
    bars: Callable[[float, float], Array] | None,
) -> list[_Curve]:
    _, height, width = estimate.shape
    if points is None:
        points = choose_points(estimate if true is None else true, min(4, height * width))
    return [
        _Curve(
            row,
            column,
            region_spectrum(estimate, row, column),
            None if true is None else region_spectrum(true, row, column),
            None if bars is None else np.asarray(bars(row, column), np.float64),
        )
        for row, column in as_points(points, height, width)
    ]


def _table(
    cube: Array,
    wavelengths: Wavelengths,
    points: Sequence[Sequence[float]] | None,
    truth: Array | None,
    bars: Callable[[float, float], Array] | None,
) -> str:
    estimate = as_cube(cube)
    values = as_wavelengths(wavelengths, len(estimate))
    numbers = range(1, len(estimate) + 1) if values is None else values
    columns = {"band" if values is None else "wavelength_nm": numbers}
    for curve in _curves(estimate, points, as_truth(truth, estimate), bars):
        name = f"row {curve.row:g} column {curve.column:g}"
        more = {name: curve.spectrum, f"{name} +-": curve.half, f"{name} truth": curve.truth}
        columns |= {key: column for key, column in more.items() if column is not None}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(
        [f"{value:.7g}" for value in row] for row in zip(*columns.values(), strict=True)
    )
    return text.getvalue()


def _draw(
    cube: Array,
    wavelengths: Wavelengths,
    points: Sequence[Sequence[float]] | None,
    truth: Array | None,
    illuminant: str | None,
    bars: Callable[[float, float], Array] | None,
    unit: str | None = None,
    along: tuple[Array, Sequence[float]] | None = None,
) -> Sheet:
    estimate = as_cube(cube)
    true = as_truth(truth, estimate)
    bands, height, width = estimate.shape
    values = as_wavelengths(wavelengths, bands)
    clear = estimate if true is None else true
    curves = _curves(estimate, points, true, bars)

    factor = _PANEL / max(height, width)
    high, wide = max(1, round(factor * height)), max(1, round(factor * width))
    tall = max(high, 300 + _LINE * (len(curves) // _ACROSS))
    sheet, top = Sheet(), (tall - high) / 2
    picture = srgb(estimate, values, illuminant, exposure_of(clear, values, illuminant))
    sheet.image(picture, 0, top, wide, high)
    left, below = wide + 78, tall - 44  # room for the axis labels
    entries = len(curves) + 2 * (true is not None) + (bars is not None) + (along is not None)
    above = _LINE * -(-entries // _ACROSS) + 6
    axes = sheet.axes(left, above, _CURVES, below - _STRIP - above)
    x = np.arange(1.0, bands + 1) if values is None else values
    marker = "o" if bands == 1 else None
    for index, (row, column, spectrum, reference, half) in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        across, down = factor * (column + 0.5), top + factor * (row + 0.5)
        aside = 17 if across < wide - 40 else -17
        _mark(sheet, str(index + 1), color, across, down, aside)
        label = f"{index + 1}  ({row:g}, {column:g})"
        if reference is not None:
            axes.plot(x, reference, "--", color=color, lw=1.5, marker=marker)
            r = correlation(spectrum, reference)
            label += "" if r is None else f"  r = {r:.4f}"
        if half is not None:
            low, high = spectrum - half, spectrum + half
            axes.fill_between(x, low, high, color=color, alpha=0.16, lw=0)
        axes.plot(x, spectrum, "-", color=color, lw=2.2, marker=marker, label=label)
    if bars is not None:
        axes.fill_between([], [], color=_KEY, alpha=0.3, lw=0, label="shaded: 90 % interval")
    if along is not None and values is not None:
        _draw_dots(axes, along, values, curves)
    _finish(axes, true is not None, unit or "value in the cube")
    strip = sheet.axes(left, below - _STRIP, _CURVES, _STRIP)
    _draw_strip(strip, axes.get_xlim(), values)
    return sheet


def _draw_dots(
    axes: Axes, along: tuple[Array, Sequence[float]], wavelengths: np.ndarray, curves: list[_Curve]
) -> None:
    fine, nm = as_cube(along[0], "cube along the dispersion"), np.asarray(along[1], np.float64)
    scale = np.interp(nm, wavelengths, np.gradient(wavelengths)) / np.gradient(nm)
    for index, (row, column, *_) in enumerate(curves):
        light = scale * region_spectrum(fine, row, column)
        axes.plot(nm, light, ".", color=COLORS[index % len(COLORS)], ms=4)
    axes.plot([], [], ".", color=_KEY, label="along the dispersion")


def _mark(sheet: Sheet, name: str, color: str, x: float, y: float, aside: int) -> None:
    """Rings the point, with its number on a disc ``aside`` pixels to the right."""
    for edge, width in ((LIGHT, 3.2), (color, 1.8)):
        sheet.page.plot([x], [y], "o", ms=10, mfc="none", mec=edge, mew=width, clip_on=False)
    up = -13 if y > 40 else 13
    disc = {"boxstyle": "circle,pad=0.25", "fc": color, "ec": LIGHT, "lw": 1.0}
    style = {"ha": "center", "va": "center", "color": LIGHT, "size": 10, "weight": "bold"}
    sheet.text(name, x + aside, y + up, bbox=disc, **style)


def _finish(axes: Axes, compared: bool, unit: str) -> None:
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(INK)
    axes.margins(x=0.01, y=0.06)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y", color="#e3e6ea", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", labelsize=10, colors=INK)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.set_ylabel(f"{unit}, mean of 5×5 pixels", fontsize=11, color=INK)
    if compared:
        axes.plot([], [], "-", color=_KEY, lw=2.2, label="estimate")
        axes.plot([], [], "--", color=_KEY, lw=1.5, label="truth")
    room = {"columnspacing": 1.2, "handlelength": 1.8, "labelspacing": 0.4, "borderaxespad": 0.0}
    style = {"labelcolor": INK, "frameon": False, "bbox_to_anchor": (0.0, 1.0)}
    axes.legend(loc="lower left", fontsize=10, ncols=_ACROSS, **style, **room)


def _draw_strip(axes: Axes, limits: tuple[float, float], values: np.ndarray | None) -> None:
    """Draws the horizontal axis as a strip in the colours of the wavelengths."""
    axes.set_xlim(*limits)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="x", labelsize=10, colors=INK)
    if values is None:
        axes.set_xlabel("band", fontsize=11, color=INK)
        label_integers(axes.xaxis)
        return
    ramp = encode(band_colors(np.linspace(max(limits[0], 1.0), limits[1], 256), 256))
    axes.imshow(ramp[None], extent=(*limits, 0, 1), aspect="auto", interpolation="bilinear")
    axes.set_xlabel("wavelength / nm", fontsize=11, color=INK)
