"""Draw the spectra of points beside a picture that shows the points, or write them as a table."""

from __future__ import annotations

import csv
import io
import math
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

# All lengths of the layout are pixels.
_PANEL_SIDE = 460  # longer side of the picture
_CURVES_WIDTH = 660  # width of the axes
_STRIP_HEIGHT = 12  # height of the strip of colours that is the horizontal axis
_LEGEND_COLUMNS, _LEGEND_LINE = 3, 21  # entries in a line of the legend, and the line's height
_KEY_COLOR = "#7a828c"  # colour of a legend entry that stands for all curves


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
    """Write the spectra at some points as PNG, beside a picture with the points marked.

    A path that ends in `.csv` gets a table in place of the picture: a row for each band, a column
    for each spectrum.

    A point's spectrum is the mean of the 5×5 pixels around the point, cut at the border. Between
    pixels, such means are interpolated linearly. The spectra of the truth are dashed, and the
    legend then gives each point's correlation coefficient

        r = Σ(e−ē)(t−t̄) / (‖e−ē‖ ‖t−t̄‖)

    over the bands of estimate e and truth t.

    Args:
        path: the file to write, PNG or `.csv`.
        cube: (C, H, W), any scale.
        wavelengths: (C,), nm, increasing; None numbers the bands.
        points: (row, column) pairs, pixels from 0, whole or not. None takes `choose_points` of
            the truth, or of the cube if there is no truth.
        truth: (C, H, W), on the cube's scale, or None.
        illuminant: light on a cube of reflectances, or None for radiance; see `srgb`.
        bars: a function that takes a point's row and column, and returns the half width (C,) of the
            90 % interval around its spectrum. The interval is shaded. None shades nothing.
        unit: unit of the cube, written on the axis.
        along: a cube (G, H, W) on the spectral grid, and its wavelengths (G,), nm. Each band of the
            grid is drawn as a dot. A band of the cube may be wider than a band of the grid, so the
            value of a dot is multiplied by the ratio of both widths. Then dots and curve agree.

    Raises:
        OSError, TypeError, ValueError: as `save_bands`, or if a point lies outside the cube.
    """
    if Path(path).suffix.lower() == ".csv":
        write_bytes(path, _format_table(cube, wavelengths, points, truth, bars).encode())
    else:
        _draw(cube, wavelengths, points, truth, illuminant, bars, unit, along).save(path)


def draw_spectra(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    truth: Array | None = None,  # (C, H, W)
) -> np.ndarray:  # (H', W', 3)
    """Draw the picture that `save_spectra` writes; returns it as uint8 RGB."""
    from PIL import Image

    png = _draw(cube, wavelengths, None, truth, "D65", None).encode()
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


class _Curve(NamedTuple):
    """The spectrum of a point, with the truth and the error bars if they are known."""

    row: float
    column: float
    spectrum: np.ndarray  # (C,)
    truth: np.ndarray | None  # (C,)
    half_width: np.ndarray | None  # (C,), of the interval around the spectrum


def _measure_curves(
    estimate: np.ndarray,
    points: Sequence[Sequence[float]] | None,
    true_cube: np.ndarray | None,
    bars: Callable[[float, float], Array] | None,
) -> list[_Curve]:
    _, height, width = estimate.shape
    if points is None:
        points = choose_points(estimate if true_cube is None else true_cube, min(4, height * width))
    return [
        _Curve(
            row,
            column,
            region_spectrum(estimate, row, column),
            None if true_cube is None else region_spectrum(true_cube, row, column),
            None if bars is None else np.asarray(bars(row, column), np.float64),
        )
        for row, column in as_points(points, height, width)
    ]


def _format_table(
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
    for curve in _measure_curves(estimate, points, as_truth(truth, estimate), bars):
        name = f"row {curve.row:g} column {curve.column:g}"
        point_columns = {
            name: curve.spectrum,
            f"{name} +-": curve.half_width,
            f"{name} truth": curve.truth,
        }
        columns |= {key: column for key, column in point_columns.items() if column is not None}
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
    grid: tuple[Array, Sequence[float]] | None = None,
) -> Sheet:
    """Draw the page of `save_spectra`; `grid` is its argument `along`."""
    estimate = as_cube(cube)
    true_cube = as_truth(truth, estimate)
    bands, height, width = estimate.shape
    values = as_wavelengths(wavelengths, bands)
    reference = estimate if true_cube is None else true_cube
    curves = _measure_curves(estimate, points, true_cube, bars)

    factor = _PANEL_SIDE / max(height, width)
    panel_height, panel_width = max(1, round(factor * height)), max(1, round(factor * width))
    # Beside a flat picture, the page has 300 pixels for the curves, and more for each legend line.
    sheet_height = max(panel_height, 300 + _LEGEND_LINE * (len(curves) // _LEGEND_COLUMNS))
    sheet, top = Sheet(), (sheet_height - panel_height) / 2
    picture = srgb(estimate, values, illuminant, exposure_of(reference, values, illuminant))
    sheet.image(picture, 0, top, panel_width, panel_height)
    left, bottom = panel_width + 78, sheet_height - 44  # room for the labels of both axes
    # The legend has an entry per curve, and entries for estimate, truth, interval and dots.
    n_entries = len(curves) + 2 * (true_cube is not None) + (bars is not None) + (grid is not None)
    legend_height = _LEGEND_LINE * math.ceil(n_entries / _LEGEND_COLUMNS) + 6
    axes_height = bottom - _STRIP_HEIGHT - legend_height
    axes = sheet.axes(left, legend_height, _CURVES_WIDTH, axes_height)
    x = np.arange(1.0, bands + 1) if values is None else values
    marker = "o" if bands == 1 else None
    for index, (row, column, spectrum, true_spectrum, half_width) in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        mark_x, mark_y = factor * (column + 0.5), top + factor * (row + 0.5)
        # Near the right border the number is left of its mark, so that it stays in the picture.
        number_shift = 17 if mark_x < panel_width - 40 else -17
        _mark_point(sheet, str(index + 1), color, mark_x, mark_y, number_shift)
        label = f"{index + 1}  ({row:g}, {column:g})"
        if true_spectrum is not None:
            axes.plot(x, true_spectrum, "--", color=color, lw=1.5, marker=marker)
            r = correlation(spectrum, true_spectrum)
            label += "" if r is None else f"  r = {r:.4f}"
        if half_width is not None:
            low, high = spectrum - half_width, spectrum + half_width
            axes.fill_between(x, low, high, color=color, alpha=0.16, lw=0)
        axes.plot(x, spectrum, "-", color=color, lw=2.2, marker=marker, label=label)
    if bars is not None:
        axes.fill_between([], [], color=_KEY_COLOR, alpha=0.3, lw=0, label="shaded: 90 % interval")
    if grid is not None and values is not None:
        _draw_dots(axes, grid, values, curves)
    _style_axes(axes, true_cube is not None, unit or "value in the cube")
    strip = sheet.axes(left, bottom - _STRIP_HEIGHT, _CURVES_WIDTH, _STRIP_HEIGHT)
    _draw_strip(strip, axes.get_xlim(), values)
    return sheet


def _draw_dots(
    axes: Axes, grid: tuple[Array, Sequence[float]], wavelengths: np.ndarray, curves: list[_Curve]
) -> None:
    """Draw the spectra of the cube on the spectral grid, scaled to the bands of the curves."""
    grid_cube, nm = as_cube(grid[0], "cube along the dispersion"), np.asarray(grid[1], np.float64)
    # A band holds the light of its interval of wavelengths, so its value grows with the interval.
    scale = np.interp(nm, wavelengths, np.gradient(wavelengths)) / np.gradient(nm)
    for index, (row, column, *_) in enumerate(curves):
        spectrum = scale * region_spectrum(grid_cube, row, column)
        axes.plot(nm, spectrum, ".", color=COLORS[index % len(COLORS)], ms=4)
    axes.plot([], [], ".", color=_KEY_COLOR, label="along the dispersion")


def _mark_point(sheet: Sheet, name: str, color: str, x: float, y: float, shift: int) -> None:
    """Draw a ring around a point, and its number on a disc `shift` pixels to the right."""
    for edge, width in ((LIGHT, 3.2), (color, 1.8)):
        sheet.page.plot([x], [y], "o", ms=10, mfc="none", mec=edge, mew=width, clip_on=False)
    rise = -13 if y > 40 else 13  # near the upper border the disc stands below the ring
    disc = {"boxstyle": "circle,pad=0.25", "fc": color, "ec": LIGHT, "lw": 1.0}
    style = {"ha": "center", "va": "center", "color": LIGHT, "size": 10, "weight": "bold"}
    sheet.text(name, x + shift, y + rise, bbox=disc, **style)


def _style_axes(axes: Axes, has_truth: bool, unit: str) -> None:
    """Give the axes of the curves their style, label and legend."""
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
    if has_truth:
        axes.plot([], [], "-", color=_KEY_COLOR, lw=2.2, label="estimate")
        axes.plot([], [], "--", color=_KEY_COLOR, lw=1.5, label="truth")
    room = {"columnspacing": 1.2, "handlelength": 1.8, "labelspacing": 0.4, "borderaxespad": 0.0}
    style = {"labelcolor": INK, "frameon": False, "bbox_to_anchor": (0.0, 1.0)}
    axes.legend(loc="lower left", fontsize=10, ncols=_LEGEND_COLUMNS, **style, **room)


def _draw_strip(axes: Axes, limits: tuple[float, float], values: np.ndarray | None) -> None:
    """Draw the horizontal axis as a strip in the colours of the wavelengths."""
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
