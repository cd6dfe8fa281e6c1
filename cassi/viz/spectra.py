"""Draw the spectra of points beside a picture that shows the points, or write them as a table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cassi.viz.canvas import INK, LEGEND, LIGHT, Canvas, choose_ticks, text_width
from cassi.viz.checks import Array, Wavelengths, as_cube, as_points, as_truth, as_wavelengths
from cassi.viz.color import band_colors, encode, exposure_of, srgb
from cassi.viz.points import COLORS, choose_points, correlation, region_spectrum
from cassi.viz.sheet import write_bytes

# All lengths of the layout are pixels.
_PANEL_SIDE = 460  # longer side of the picture
_CURVES_WIDTH = 660  # width of the axes
_STRIP_HEIGHT = 12  # height of the strip of colours that is the horizontal axis
_LEGEND_COLUMNS, _LEGEND_LINE = 3, 21  # entries in a line of the legend, and the line's height
_LEGEND_MARK = 40  # room for the mark before an entry
_ESTIMATE_WIDTH, _TRUTH_WIDTH, _TRUTH_DASH = 3.0, 2.0, (8.0, 3.5)  # of the curves
_DOT_RADIUS, _DISC_RADIUS, _RING_RADIUS, _INTERVAL_OPACITY = 2.2, 4.5, 5.5, 0.16
_GRID_COLOR = "#e3e6ea"
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
    return np.asarray(_draw(cube, wavelengths, None, truth, "D65", None).render())


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
) -> Canvas:
    """Draw the page of `save_spectra`; `grid` is its argument `along`."""
    estimate = as_cube(cube)
    true_cube = as_truth(truth, estimate)
    bands, height, width = estimate.shape
    values = as_wavelengths(wavelengths, bands)
    reference = estimate if true_cube is None else true_cube
    curves = _measure_curves(estimate, points, true_cube, bars)
    dots = [] if grid is None or values is None else _measure_dots(grid, values, curves)
    legend = _list_legend(curves, has_dots=bool(dots))

    factor = _PANEL_SIDE / max(height, width)
    panel_height, panel_width = max(1, round(factor * height)), max(1, round(factor * width))
    legend_height = _LEGEND_LINE * -(-len(legend) // _LEGEND_COLUMNS) + 6
    # Beside a flat picture, the page has 280 pixels for the curves and their axis.
    sheet_height = max(panel_height, 280 + legend_height)
    canvas, top = Canvas(), (sheet_height - panel_height) // 2
    picture = srgb(estimate, values, illuminant, exposure_of(reference, values, illuminant))
    canvas.image(picture, 0, top, panel_width, panel_height)
    for index, curve in enumerate(curves):
        mark_x, mark_y = factor * (curve.column + 0.5), top + factor * (curve.row + 0.5)
        # Near the right border the number is left of its mark, so that it stays in the picture.
        shift = 17 if mark_x < panel_width - 40 else -17
        _mark_point(canvas, str(index + 1), _color_of(index), mark_x, mark_y, shift)
    x = np.arange(1.0, bands + 1) if values is None else values
    plot = _Plot(canvas, x, curves, dots, legend_height, sheet_height - 44 - _STRIP_HEIGHT)
    left = plot.draw_frame(panel_width, unit or "value in the cube", values is not None)
    plot.draw_curves()
    _draw_legend(canvas, legend, left)
    return canvas


# A mark of the legend, and its colour. A disc and a ring stand for values of a single band.
_Mark = tuple[Literal["line", "dashes", "disc", "ring", "interval", "dots"], str]


def _color_of(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _list_legend(curves: list[_Curve], has_dots: bool) -> list[tuple[_Mark, str]]:
    """Return the entries of the legend: one per curve, and one per kind of line."""
    entries: list[tuple[_Mark, str]] = []
    estimate_mark: _Mark = "line", _KEY_COLOR
    truth_mark: _Mark = "dashes", _KEY_COLOR
    if len(curves[0].spectrum) == 1:
        estimate_mark, truth_mark = ("disc", _KEY_COLOR), ("ring", _KEY_COLOR)
    for index, (row, column, spectrum, true_spectrum, _) in enumerate(curves):
        label = f"{index + 1}  ({row:g}, {column:g})"
        r = None if true_spectrum is None else correlation(spectrum, true_spectrum)
        label += "" if r is None else f"  r = {r:.4f}"
        entries.append(((estimate_mark[0], _color_of(index)), label))
    if curves[0].half_width is not None:
        entries.append((("interval", _KEY_COLOR), "shaded: 90 % interval"))
    if has_dots:
        entries.append((("dots", _KEY_COLOR), "along the dispersion"))
    if curves[0].truth is not None:
        entries += [(estimate_mark, "estimate"), (truth_mark, "truth")]
    return entries


def _draw_legend(canvas: Canvas, entries: list[tuple[_Mark, str]], left: float) -> None:
    """Draw the legend in columns, its top left corner at (`left`, 0)."""
    n_rows = -(-len(entries) // _LEGEND_COLUMNS)
    for start in range(0, len(entries), n_rows):
        column = entries[start : start + n_rows]
        for row, ((kind, color), label) in enumerate(column):
            y = (row + 0.5) * _LEGEND_LINE
            _draw_mark(canvas, kind, color, left, y)
            canvas.text(label, left + _LEGEND_MARK, y, size=LEGEND, middle=True)
        left += _LEGEND_MARK + max(text_width(label, LEGEND) for _, label in column) + 18


def _draw_mark(canvas: Canvas, kind: str, color: str, left: float, y: float) -> None:
    """Draw a mark of the legend."""
    right = left + _LEGEND_MARK - 12
    center, ends = (left + right) / 2, np.array([[left, y], [right, y]])
    match kind:
        case "line":
            canvas.line(ends, color, _ESTIMATE_WIDTH)
        case "dashes":
            canvas.line(ends, color, _TRUTH_WIDTH, _TRUTH_DASH)
        case "disc":
            canvas.disc(center, y, _DISC_RADIUS, color)
        case "ring":
            canvas.disc(center, y, _RING_RADIUS, color, _TRUTH_WIDTH)
        case "dots":
            canvas.disc(center, y, _DOT_RADIUS, color)
        case "interval":
            corners = [[left, y - 5], [right, y - 5], [right, y + 5], [left, y + 5]]
            canvas.polygon(np.array(corners), color, 2 * _INTERVAL_OPACITY)


def _measure_dots(
    grid: tuple[Array, Sequence[float]], wavelengths: np.ndarray, curves: list[_Curve]
) -> list[np.ndarray]:
    """Return the spectra of the cube on the spectral grid, scaled to the bands: (G, 2) each.

    The first column of each is the wavelength, nm.
    """
    grid_cube, nm = as_cube(grid[0], "cube along the dispersion"), np.asarray(grid[1], np.float64)
    # A band holds the light of its interval of wavelengths, so its value grows with the interval.
    scale = np.interp(nm, wavelengths, np.gradient(wavelengths)) / np.gradient(nm)
    return [
        np.stack([nm, scale * region_spectrum(grid_cube, curve.row, curve.column)], axis=1)
        for curve in curves
    ]


def _mark_point(canvas: Canvas, name: str, color: str, x: float, y: float, shift: int) -> None:
    """Draw a ring around a point, and its number on a disc `shift` pixels to the right."""
    for ring_color, radius, width in ((LIGHT, 9.0, 4.4), (color, 8.0, 2.4)):
        canvas.disc(x, y, radius, ring_color, width)
    rise = -13 if y > 40 else 13  # near the upper border the disc stands below the ring
    radius = 10.0 if len(name) == 1 else 12.0
    x, y = x + shift, y + rise
    canvas.disc(x, y, radius + 1.4, LIGHT)
    canvas.disc(x, y, radius, color)
    canvas.text(name, x, y, size=LEGEND, color=LIGHT, align="center", middle=True, bold=True)


class _Plot:
    """Axes with the curves, between two heights of the page.

    Args:
        canvas: the page.
        x: wavelengths of the curves, nm, or the numbers of the bands.
        curves: the spectra of the points.
        dots: spectra of a finer cube, (G, 2) each.
        top: upper end of the axes, pixels.
        bottom: lower end of the axes, pixels. The strip of colours is below it.
    """

    def __init__(
        self,
        canvas: Canvas,
        x: np.ndarray,
        curves: list[_Curve],
        dots: list[np.ndarray],
        top: int,
        bottom: int,
    ) -> None:
        self._canvas, self._x, self._curves, self._dots = canvas, x, curves, dots
        self._top, self._bottom, self._left = top, bottom, 0.0
        y = np.concatenate([*map(_values_of, curves), *(dot[:, 1] for dot in dots)])
        all_x = np.concatenate([x, *(dot[:, 0] for dot in dots)])
        # A single band, or values of 0 alone, still get axes of some length.
        span = float(np.ptp(y)) or float(np.abs(y).max()) or 1.0
        self._low, self._high = min(0.0, y.min() - 0.06 * span), y.max() + 0.06 * span
        span = float(np.ptp(all_x)) or 0.1 * float(x[0])
        margin = 0.01 * span if np.ptp(all_x) else span / 2
        self._first, self._last = float(all_x.min() - margin), float(all_x.max() + margin)

    def draw_frame(self, picture_width: int, unit: str, has_wavelengths: bool) -> float:
        """Draw both axes to the right of the picture; return where they begin."""
        canvas, height = self._canvas, self._bottom - self._top
        label = f"{unit}, mean of 5×5 pixels"
        ticks, names, label = choose_ticks(self._low, self._high, height // 36, label)
        left = picture_width + 48 + round(max(text_width(name, LEGEND) for name in names))
        self._left = left
        for tick, name in zip(ticks, names, strict=True):
            _, y = self._place(np.array([[self._first, tick]]))[0]
            canvas.rectangle(left, y, _CURVES_WIDTH, 1, _GRID_COLOR)
            canvas.rectangle(left - 4, y, 4, 1, INK)
            canvas.text(name, left - 8, y, size=LEGEND, align="right", middle=True)
        canvas.rectangle(left, self._top, 1, height, INK)
        canvas.text(label, picture_width + 26, (self._top + self._bottom) / 2, upright=True)
        bottom = self._bottom
        if has_wavelengths:
            ends = max(self._first, 1.0), self._last
            ramp = encode(band_colors(np.linspace(*ends, _CURVES_WIDTH), _CURVES_WIDTH))
            canvas.image(ramp[None], left, bottom, _CURVES_WIDTH, _STRIP_HEIGHT)
        bottom += _STRIP_HEIGHT
        label = "wavelength / nm" if has_wavelengths else "band"
        ticks, names, label = choose_ticks(self._first, self._last, 9, label, not has_wavelengths)
        for tick, name in zip(ticks, names, strict=True):
            x, _ = self._place(np.array([[tick, 0.0]]))[0]
            canvas.rectangle(x, bottom, 1, 4, INK)
            canvas.text(name, x, bottom + 18, size=LEGEND, align="center")
        canvas.text(label, left + _CURVES_WIDTH / 2, bottom + 40, align="center")
        return left

    def draw_curves(self) -> None:
        """Draw the curves with their intervals, and the dots."""
        canvas = self._canvas
        for index, (_, _, spectrum, true_spectrum, half_width) in enumerate(self._curves):
            color, points = _color_of(index), self._place(np.stack([self._x, spectrum], axis=1))
            if true_spectrum is not None:
                true_points = self._place(np.stack([self._x, true_spectrum], axis=1))
                canvas.line(true_points, color, _TRUTH_WIDTH, _TRUTH_DASH)
            if half_width is not None:
                edges = [np.stack([self._x, spectrum + s * half_width], axis=1) for s in (-1, 1)]
                corners = self._place(np.concatenate([edges[0], edges[1][::-1]]))
                canvas.polygon(corners, color, _INTERVAL_OPACITY)
            canvas.line(points, color, _ESTIMATE_WIDTH)
            # A single band has no line, so its values are discs; that of the truth is a ring.
            if len(points) == 1:
                canvas.disc(points[0, 0], points[0, 1], _DISC_RADIUS, color)
                if true_spectrum is not None:
                    x, y = true_points[0]
                    canvas.disc(x, y, _RING_RADIUS, color, _TRUTH_WIDTH)
        for index, dots in enumerate(self._dots):
            for x, y in self._place(dots):
                canvas.disc(x, y, _DOT_RADIUS, _color_of(index))

    def _place(self, points: np.ndarray) -> np.ndarray:
        """Return the places of points (N, 2) of wavelength and value on the page."""
        share = (points - (self._first, self._low)) / (
            self._last - self._first,
            self._high - self._low,
        )
        return share * (_CURVES_WIDTH, self._top - self._bottom) + (self._left, self._bottom)


def _values_of(curve: _Curve) -> np.ndarray:
    """Return all values that are drawn of a curve."""
    width = 0.0 if curve.half_width is None else curve.half_width
    ends = [curve.spectrum - width, curve.spectrum + width]
    return np.concatenate(ends if curve.truth is None else [*ends, curve.truth])
