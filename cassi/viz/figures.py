"""Draw figures for a paper as PNG and PDF: methods side by side, convergence and bars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cassi.viz.canvas import INK
from cassi.viz.checks import (
    Array,
    Wavelengths,
    as_cube,
    as_truth,
    as_wavelengths,
    shrink,
    white_level,
)
from cassi.viz.color import band_colors, encode, exposure_of, srgb
from cassi.viz.names import name_band
from cassi.viz.points import COLORS, choose_points, correlation, region_spectrum
from cassi.viz.report.codec import block_size
from cassi.viz.sheet import (
    BODY,
    SMALL,
    Sheet,
    escape_label,
    shorten_to_fit,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The key of the truth among the methods. No method can have this name.
TRUTH = " "
# Lengths are inches. Five pictures of this width fit across the two columns of a journal's page.
_CELL_WIDTH = 1.45
_GAP, _ROW_LABEL_WIDTH = 0.05, 0.28
# Width and height of the axes of a region's spectra, and height of a line of their legend.
_CURVE_WIDTH, _CURVE_HEIGHT, _LEGEND_LINE = 1.5, 1.35, 0.125
# Fraction of a picture's width that its enlarged square takes, and the colour of the square's
# frame.
_ENLARGED_FRACTION, _FRAME_COLOR = 0.46, "#ffe000"
# A curve of more points is drawn without markers, which would overlap.
_MAX_MARKED_POINTS = 10
# Length of the line before a name in a legend, with the gap after it, in units of the font's size.
_HANDLE_LENGTH = 2.4


@dataclass(frozen=True)
class Layout:
    """What a comparison shows of a scene.

    Attributes:
        bands: wavelengths in nm, whose nearest bands are shown; numbers of bands, from 1, if there
            are no wavelengths. None shows four bands, evenly spaced.
        zoom: `(row, column, side)`, pixels, of a square that every picture also shows enlarged.
            "auto" takes the square with the most detail. None takes no square.
        regions: (row, column) of the pixels whose spectra are drawn. None takes the four points of
            `cassi.viz.choose_points`.
    """

    bands: Sequence[float] | None = None
    zoom: tuple[int, int, int] | Literal["auto"] | None = None
    regions: Sequence[tuple[int, int]] | None = None

    def choose(self, cube: np.ndarray, wavelengths: Wavelengths) -> Selection:
        """Return the bands, square and regions of a cube `(C, H, W)` that are shown.

        Raises:
            ValueError: a band, the square or a region is outside the cube.
        """
        return Selection(self._bands(len(cube), wavelengths), self._zoom(cube), self._regions(cube))

    def _bands(self, count: int, wavelengths: Wavelengths) -> list[int]:
        if self.bands is None:
            # Each band that is shown lies in the middle of a quarter of the bands.
            n_shown = min(4, count)
            return [int(band) for band in np.unique((np.arange(n_shown) + 0.5) * count // n_shown)]
        values = np.arange(1.0, count + 1) if wavelengths is None else np.asarray(wavelengths)
        low, high = float(values[0]), float(values[-1])
        if not self.bands or not all(low <= float(band) <= high for band in self.bands):
            unit = "band numbers" if wavelengths is None else "nm"
            raise ValueError(
                f"figure.bands: expected {unit} from {low:g} to {high:g}, got {list(self.bands)}"
            )
        return [int(np.abs(values - float(band)).argmin()) for band in self.bands]

    def _zoom(self, cube: np.ndarray) -> tuple[int, int, int] | None:
        height, width = cube.shape[1:]
        if self.zoom is None:
            return None
        if self.zoom == "auto":
            return find_most_detail(cube, max(1, min(height, width) // 5))
        row, column, side = self.zoom
        if not (side >= 1 and 0 <= row <= height - side and 0 <= column <= width - side):
            raise ValueError(
                f"figure.zoom: expected [row, column, side] inside of {height}×{width} pixels, got "
                f"{[row, column, side]}"
            )
        return row, column, side

    def _regions(self, cube: np.ndarray) -> list[tuple[int, int]]:
        height, width = cube.shape[1:]
        if self.regions is None:
            return choose_points(cube, min(4, height * width))
        fits = all(0 <= row < height and 0 <= column < width for row, column in self.regions)
        if not self.regions or not fits:
            raise ValueError(
                f"figure.regions: expected [[row, column], …] inside of {height}×{width} pixels, "
                f"got {list(self.regions)}"
            )
        return list(self.regions)


@dataclass(frozen=True)
class Selection:
    """The bands, the square and the regions that a `Layout` takes from one cube."""

    bands: list[int]
    zoom: tuple[int, int, int] | None
    regions: list[tuple[int, int]]


def find_most_detail(cube: np.ndarray, side: int) -> tuple[int, int, int]:
    """Return `(row, column, side)` of the square with the strongest edges of a cube's mean band."""
    mean_band = cube.mean(axis=0)
    edges = np.zeros(mean_band.shape)
    edges[:, 1:] += np.diff(mean_band, axis=1) ** 2
    edges[1:] += np.diff(mean_band, axis=0) ** 2
    # The sum over any square follows from four values of the summed-area table.
    sums = np.pad(edges.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    detail = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    row, column = np.unravel_index(detail.argmax(), detail.shape)
    return int(row), int(column), side


def save_comparison(
    folder: str | os.PathLike[str],
    name: str,
    cubes: Mapping[str, Array],  # (C, H, W) each
    truth: Array | None,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    metrics: Mapping[str, Mapping[str, float | None]],
    layout: Layout | None = None,
) -> None:
    """Write `<name>.png` and `<name>.pdf`: the truth and every method side by side.

    From the top, the rows are:

    - true colour, all at the truth's exposure;
    - some bands, each with one brightness scale for all cubes;
    - the error of each pixel, √(mean over bands of (x − truth)²). All methods have one scale, up to
      the 99.5th percentile over all of them;
    - the spectra of regions of 5×5 pixels, with their correlation r to the truth.

    Without a truth there are no errors and no r. The first method then decides exposure, brightness
    and regions. Pictures of more than 400×400 pixels are averaged over blocks.

    Args:
        folder: folder of the two files.
        name: name of the files without suffix.
        cubes: cube (C, H, W) of each method.
        truth: (C, H, W), on the cubes' scale, or None.
        wavelengths: (C,), nm, increasing; None numbers the bands.
        metrics: numbers of each method; its "psnr" and "ssim" are written above its column.
        layout: bands, square and regions to show; None takes the default ones.

    Raises:
        TypeError: a cube is not of real numbers.
        ValueError: shapes differ, there is no cube, or name or layout do not fit.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"expected a file name without a folder, got {name!r}: rename the scene")
    if not cubes:
        raise ValueError("expected the cube of at least one method, got none: pass one")
    first = as_cube(next(iter(cubes.values())), f"cube of {next(iter(cubes))}")
    arrays = {m: as_cube(cube, f"cube of {m}", first.shape) for m, cube in cubes.items()}
    true_cube = as_truth(truth, first)
    values = as_wavelengths(wavelengths, len(first))
    columns = arrays if true_cube is None else {TRUTH: true_cube, **arrays}
    selection = (layout or Layout()).choose(next(iter(columns.values())), values)
    _Comparison(columns, true_cube, values, metrics, selection).draw().save_both(folder, name)


def save_curves(
    folder: str | os.PathLike[str],
    name: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    label: str,
) -> None:
    """Write `<name>.png` and `<name>.pdf`: a curve of (value, PSNR in dB) for every method.

    `label` names the value. A method with one pair, such as a network, is a dot. The axis is
    logarithmic if its values are positive and span more than a factor of 30. Pairs with a value
    that is not finite are left out.

    Raises:
        ValueError: no method has a finite pair.
    """
    pairs = {m: np.asarray(list(curve), float).reshape(-1, 2) for m, curve in curves.items()}
    finite_pairs = {m: curve[np.isfinite(curve).all(axis=1)] for m, curve in pairs.items()}
    finite_pairs = {m: curve for m, curve in finite_pairs.items() if len(curve)}
    if not finite_pairs:
        raise ValueError("expected (value, PSNR) of at least one method, got none: pass some")
    sheet = Sheet()
    axes = sheet.axes(0, 0, 4.0, 2.6)
    for index, (method, curve) in enumerate(finite_pairs.items()):
        color = COLORS[index % len(COLORS)]
        # The colours repeat after six methods. From there on, the style of the line differs.
        line = ("-", "--", ":", "-.")[index // len(COLORS) % 4]
        marker = "o" if len(curve) <= _MAX_MARKED_POINTS else None
        style: Any = {"marker": marker, "ms": 4, "lw": 1.4, "color": color, "ls": line}
        axes.plot(*curve.T, label=escape_label(method), **style)
    values = np.concatenate([curve[:, 0] for curve in finite_pairs.values()])
    if 0 < 30 * values.min() < values.max():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(label, fontsize=BODY)
    axes.set_ylabel("PSNR / dB", fontsize=BODY)
    tidy(axes)
    axes.legend(fontsize=SMALL + 0.5, frameon=False, labelcolor=INK)
    sheet.save_both(folder, name)


def save_bars(
    folder: str | os.PathLike[str],
    name: str,
    levels: Mapping[str, Mapping[str, float | None]],
    title: str,
) -> None:
    """Write `<name>.png` and `<name>.pdf`: bars for the PSNR, dB, of cases and methods.

    `levels` has the PSNR of every method, by case. A method without a PSNR for a case has no bar
    there.
    """
    methods = list(dict.fromkeys(method for case in levels.values() for method in case))
    height, sheet = 0.8 / max(1, len(methods)), Sheet()
    axes = sheet.axes(0, 0, 4.0, 0.4 + 0.3 * len(levels) * max(1, len(methods)))
    drawn_values: list[float] = []
    for index, method in enumerate(methods):
        psnr = [case.get(method) for case in levels.values()]
        bar_values = {row: value for row, value in enumerate(psnr) if value is not None}
        positions = [row + (index - (len(methods) - 1) / 2) * height for row in bar_values]
        style: Any = {"color": COLORS[index % len(COLORS)], "label": escape_label(method)}
        bars = axes.barh(positions, list(bar_values.values()), height, **style)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=SMALL)
        drawn_values += bar_values.values()
    axes.set_yticks(range(len(levels)), list(map(escape_label, levels)))
    axes.invert_yaxis()
    # The bars do not begin at 0 dB, because their differences would then be too small to see.
    if drawn_values:
        axes.set_xlim(min(drawn_values) - 2, max(drawn_values) + 2)
    axes.set_xlabel("PSNR / dB", fontsize=BODY)
    axes.set_title(title, fontsize=BODY)
    tidy(axes)
    if len(methods) > 1:
        axes.legend(fontsize=SMALL + 0.5, frameon=False, labelcolor=INK)
    sheet.save_both(folder, name)


def _tint_band(cube: np.ndarray, band: int, white: float, tint: np.ndarray) -> np.ndarray:
    return encode(np.clip(cube[band] / white, 0, 1)[..., None] * tint)


class _Comparison:
    """The figure of one scene; lengths in inches, from the top left.

    Args:
        cubes: the cube of every column, the truth first if there is one.
        truth: the truth (C, H, W), or None.
        wavelengths: (C,), nm, or None.
        metrics: numbers of every method, such as PSNR and SSIM.
        selection: the bands, the square and the regions.
    """

    def __init__(
        self,
        cubes: Mapping[str, np.ndarray],
        truth: np.ndarray | None,
        wavelengths: np.ndarray | None,
        metrics: Mapping[str, Mapping[str, float | None]],
        selection: Selection,
    ) -> None:
        self.cubes, self.truth, self.wavelengths = dict(cubes), truth, wavelengths
        self.metrics, self.selection = metrics, selection
        # The truth, or else the first method, decides exposure and brightness.
        self.reference = next(iter(self.cubes.values()))
        height, width = self.reference.shape[1:]
        self.block = block_size(height, width)
        self.reduced_cubes = {key: shrink(cube, self.block) for key, cube in self.cubes.items()}
        # Very wide and very high scenes are squeezed, because the page would be nearly empty.
        self.cell_height = _CELL_WIDTH * min(3.0, max(0.3, height / width))
        self.n_rows = 1 + len(selection.bands) + (truth is not None)
        self.width = _ROW_LABEL_WIDTH + max(2, len(self.cubes)) * (_CELL_WIDTH + _GAP)
        self.sheet = Sheet()

    def draw(self) -> Sheet:
        """Draw all rows."""
        exposure = exposure_of(self.reference, self.wavelengths, None)

        def color(cube: np.ndarray) -> np.ndarray:
            return srgb(cube, self.wavelengths, None, exposure)

        for key, axes in self._draw_row(0, "true colour", color).items():
            axes.set_title(self._make_title(key), fontsize=BODY, color=INK, pad=3, parse_math=False)
            if key == next(iter(self.cubes)):
                self._mark_regions(axes)
        # A tint has 12 % of white. Without white, detail in a blue band is too dark to see.
        tints = 0.88 * band_colors(self.wavelengths, len(self.reference)) + 0.12
        for row, band in enumerate(self.selection.bands, start=1):
            white = white_level(next(iter(self.reduced_cubes.values()))[band])
            draw = partial(_tint_band, band=band, white=white, tint=tints[band])
            self._draw_row(row, name_band(band, self.wavelengths), draw)
        if self.truth is not None:
            self._draw_errors(list(self.reduced_cubes.values()))
        # A row has 4, 2 or 1 regions. With 3 in a row, the fourth region would be alone below.
        per_row = next(n for n in (4, 2, 1) if n == 1 or self.width >= n * _CURVE_WIDTH)
        per_row = min(len(self.selection.regions), per_row)
        pitch = self.width / per_row
        legend_height = 0.3 + _LEGEND_LINE * len(self.cubes)
        region_height = legend_height + _CURVE_HEIGHT + 0.42
        for index, point in enumerate(self.selection.regions):
            row, column = divmod(index, per_row)
            top = self._find_corner(self.n_rows, 0)[1] + row * region_height + legend_height
            axes = self.sheet.axes(column * pitch + 0.36, top, pitch - 0.46, _CURVE_HEIGHT)
            # The width in points (72 per inch), without the line before each name.
            name_width = 72 * (pitch - 0.3) - _HANDLE_LENGTH * SMALL
            self._draw_region(axes, index, point, name_width)
        return self.sheet

    def _draw_row(
        self, row: int, words: str, draw: Callable[[np.ndarray], np.ndarray]
    ) -> dict[str, Axes]:
        """Draw a picture of every cube, with the enlarged square in it; return the axes by name."""
        row_axes = {}
        for column, (key, cube) in enumerate(self.reduced_cubes.items()):
            row_axes[key] = self._draw_picture(row, column, draw(cube))
            if self.selection.zoom is not None:
                top, left, side = self.selection.zoom
                # The square is cut from the full cube, because it has room for the pixels that the
                # picture averages over blocks.
                square = self.cubes[key][:, top : top + side, left : left + side]
                self._enlarge(row_axes[key], draw(square), self.selection.zoom)
        self._label(row, words)
        return row_axes

    def _enlarge(self, axes: Axes, picture: np.ndarray, zoom: tuple[int, int, int]) -> None:
        """Frame the square, and show it enlarged in the corner that is furthest from it."""
        from matplotlib.patches import Rectangle

        row, column, side = (value / self.block for value in zoom)
        height, width = self.reference.shape[1] / self.block, self.reference.shape[2] / self.block
        corner = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(corner, side, side, ec=_FRAME_COLOR, fc="none", lw=0.8))
        # Fractions of the picture's sides, such that the enlarged square is square on paper.
        inset_width = _ENLARGED_FRACTION * min(1.0, self.cell_height / _CELL_WIDTH)
        inset_height = inset_width * _CELL_WIDTH / self.cell_height
        at_right, at_bottom = column + side / 2 < width / 2, row + side / 2 < height / 2
        left, bottom = 1 - inset_width if at_right else 0, 0 if at_bottom else 1 - inset_height
        inset = axes.inset_axes((left, bottom, inset_width, inset_height))
        inset.imshow(picture, interpolation="none", aspect="auto")
        inset.set(xticks=[], yticks=[])
        for spine in inset.spines.values():
            spine.set(color=_FRAME_COLOR, linewidth=0.8)

    def _draw_errors(self, cubes: list[np.ndarray]) -> None:
        row = self.n_rows - 1
        errors = [np.sqrt(((cube - cubes[0]) ** 2).mean(axis=0)) for cube in cubes[1:]]
        scale = white_level(*errors)
        for column, error in enumerate(errors, start=1):
            image = self._draw_picture(
                row, column, error, cmap="inferno", vmin=0, vmax=scale
            ).images[0]
        self._label(row, "error")
        # The truth has no error, so its cell in this row is free for the scale.
        left, top = self._find_corner(row, 0)
        bar = self.sheet.axes(left + _CELL_WIDTH - 0.16, top, 0.1, self.cell_height)
        self.sheet.figure.colorbar(image, cax=bar)
        bar.yaxis.set_ticks_position("left")
        bar.yaxis.set_label_position("left")
        bar.set_ylabel("√ mean over bands of\n(x − truth)²", fontsize=SMALL, color=INK)
        bar.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
        bar.spines["outline"].set_visible(False)

    def _draw_region(
        self, axes: Axes, index: int, point: tuple[int, int], name_width: float
    ) -> None:
        """Draw the spectra of a region, with names of at most `name_width` points in the legend."""
        x = (
            np.arange(1.0, len(self.reference) + 1)
            if self.wavelengths is None
            else self.wavelengths
        )
        reference = None if self.truth is None else region_spectrum(self.truth, *point)
        marker = "o" if len(x) == 1 else None
        n_methods = 0
        for key, cube in self.cubes.items():
            spectrum = region_spectrum(cube, *point)
            if key == TRUTH:
                style: Any = {"color": INK, "lw": 1.1, "label": "truth", "zorder": 3}
                axes.plot(x, spectrum, "--", marker=marker, **style)
                continue
            r = None if reference is None else correlation(spectrum, reference)
            r_text = "" if r is None else f"  {r:.3f}".replace("-", "−")
            label = escape_label(shorten_to_fit(key, r_text, name_width))
            color = COLORS[n_methods % len(COLORS)]
            axes.plot(x, spectrum, color=color, lw=1.2, marker=marker, label=label)
            n_methods += 1
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), max(1.04 * high, 0.0) or 1.0)
        tidy(axes)
        unit = "band" if self.wavelengths is None else "wavelength / nm"
        axes.set_xlabel(unit, fontsize=SMALL, labelpad=1)
        title = f"region {index + 1}" + (", r to the truth" if self.truth is not None else "")
        # The legend stands above the axes, so that it hides no curve.
        place = {"bbox_to_anchor": (-0.04, 1.0), "borderaxespad": 0.0, "alignment": "left"}
        handle = _HANDLE_LENGTH - 0.8
        spacing = {"labelspacing": 0.15, "handlelength": handle, "handletextpad": 0.8}
        style = {"title_fontsize": SMALL + 0.5, "labelcolor": INK, "frameon": False}
        axes.legend(title=title, loc="lower left", fontsize=SMALL, **style, **place, **spacing)

    def _mark_regions(self, axes: Axes) -> None:
        from matplotlib.patheffects import withStroke

        # White markers need a black outline where the scene is bright.
        outline = [withStroke(linewidth=1.6, foreground="black")]
        for index, (row, column) in enumerate(self.selection.regions):
            x, y = (column + 0.5) / self.block - 0.5, (row + 0.5) / self.block - 0.5
            axes.plot([x], [y], "s", ms=4, mfc="none", mec="white", mew=0.9, path_effects=outline)
            # Near the right border the number is left of its marker, where it is not cut.
            at_border = x > 0.85 * axes.get_xlim()[1]
            axes.annotate(
                str(index + 1),
                (x, y),
                (-4 if at_border else 4, 0),
                textcoords="offset points",
                fontsize=SMALL,
                color="white",
                weight="bold",
                va="center",
                ha="right" if at_border else "left",
                path_effects=outline,
            )

    def _make_title(self, key: str) -> str:
        """Return the title of a column: a name, and the PSNR and SSIM of a method."""
        if key == TRUTH:
            rows = self.metrics.values()
            names = [n.upper() for n in ("psnr", "ssim") if any(row.get(n) for row in rows)]
            return "truth\n" + " / ".join(names)
        scores = self.metrics.get(key, {})
        psnr, ssim = scores.get("psnr"), scores.get("ssim")
        words = [] if psnr is None else [f"{psnr:.2f} dB"]
        words += [] if ssim is None else [f"{ssim:.4f}"]
        return f"{shorten_to_fit(key, '', 72 * _CELL_WIDTH, BODY)}\n{' / '.join(words)}"

    def _find_corner(self, row: int, column: int) -> tuple[float, float]:
        return _ROW_LABEL_WIDTH + column * (_CELL_WIDTH + _GAP), row * (self.cell_height + _GAP)

    def _draw_picture(self, row: int, column: int, picture: np.ndarray, **style: Any) -> Axes:
        axes = self.sheet.axes(*self._find_corner(row, column), _CELL_WIDTH, self.cell_height)
        axes.imshow(picture, interpolation="none", **style)
        axes.set_axis_off()
        axes.autoscale(False)
        return axes

    def _label(self, row: int, words: str) -> None:
        style: Any = {"size": BODY, "rotation": 90, "ha": "center", "va": "center"}
        self.sheet.text(
            words,
            0.5 * _ROW_LABEL_WIDTH,
            self._find_corner(row, 0)[1] + self.cell_height / 2,
            **style,
        )
