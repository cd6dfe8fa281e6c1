"""Figures for a paper: methods side by side, and their convergence, as PNG and PDF."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

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
from cassi.viz.sheet import BODY, INK, SMALL, Sheet, fitting, literal, paper, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRUTH = " "  # the key of the truth among the methods: none can be called that
_CELL = 1.45  # width of a picture, inches: five fit across two columns of a journal
_GAP, _SIDE = 0.05, 0.28
_CURVE, _CURVE_HIGH, _ENTRY = 1.5, 1.35, 0.125  # axes of a region; a line of its legend
_ENLARGED, _FRAME = 0.46, "#ffe000"  # side of an enlarged square, per cell; its frame
_DOTS = 10  # curves of up to so many points show them
_HANDLE = 2.4  # line and space before a name in a legend, in units of the letters' size


@dataclass(frozen=True)
class Layout:
    """What a comparison shows of a scene.

    Attributes:
        bands: wavelengths in nm whose nearest bands are shown, or numbers of bands, from 1, where
            there are no wavelengths. None: four, evenly.
        zoom: `(row, column, side)` of a square that every picture shows enlarged too, pixels;
            "auto": where the scene has most detail. None: no square.
        regions: (row, column) of the pixels whose spectra are drawn. None: four, see
            `cassi.viz.choose_points`.
    """

    bands: Sequence[float] | None = None
    zoom: tuple[int, int, int] | Literal["auto"] | None = None
    regions: Sequence[tuple[int, int]] | None = None

    def choose(self, cube: np.ndarray, wavelengths: Wavelengths) -> Chosen:
        """Return what is shown of a cube `(C, H, W)`."""
        return Chosen(self._bands(len(cube), wavelengths), self._zoom(cube), self._regions(cube))

    def _bands(self, count: int, wavelengths: Wavelengths) -> list[int]:
        if self.bands is None:
            shown = min(4, count)
            return [int(band) for band in np.unique((np.arange(shown) + 0.5) * count // shown)]
        places = np.arange(1.0, count + 1) if wavelengths is None else np.asarray(wavelengths)
        low, high = float(places[0]), float(places[-1])
        if not self.bands or not all(low <= float(band) <= high for band in self.bands):
            unit = "band numbers" if wavelengths is None else "nm"
            raise ValueError(
                f"figure.bands: expected {unit} from {low:g} to {high:g}, got {list(self.bands)}"
            )
        return [int(np.abs(places - float(band)).argmin()) for band in self.bands]

    def _zoom(self, cube: np.ndarray) -> tuple[int, int, int] | None:
        height, width = cube.shape[1:]
        if self.zoom is None:
            return None
        if self.zoom == "auto":
            return most_detail(cube, max(1, min(height, width) // 5))
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
        inside = all(0 <= row < height and 0 <= column < width for row, column in self.regions)
        if not self.regions or not inside:
            raise ValueError(
                f"figure.regions: expected [[row, column], …] inside of {height}×{width} pixels, "
                f"got {list(self.regions)}"
            )
        return list(self.regions)


@dataclass(frozen=True)
class Chosen:
    """Bands, square and regions of a `Layout`, of one cube."""

    bands: list[int]
    zoom: tuple[int, int, int] | None
    regions: list[tuple[int, int]]


def most_detail(cube: np.ndarray, side: int) -> tuple[int, int, int]:
    """Return `(row, column, side)` of the square with the strongest edges of a cube's mean band."""
    grey = cube.mean(axis=0)
    edges = np.zeros(grey.shape)
    edges[:, 1:] += np.diff(grey, axis=1) ** 2
    edges[1:] += np.diff(grey, axis=0) ** 2
    sums = np.pad(edges.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    inside = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    row, column = np.unravel_index(inside.argmax(), inside.shape)
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
    """Writes ``<name>.png`` and ``<name>.pdf``: the truth and every method side by side.

    From the top: true colour, all at the truth's exposure; bands, each at one brightness
    for all; the error of a pixel, √(mean over bands of (x − truth)²), at one scale, whose upper
    end is the 99.5th percentile of all methods; and below, the spectra of regions of 5×5
    pixels, with their correlation r to the truth. Without a truth there are no errors, no r, and
    the first method gives exposure, brightness and regions. Pictures of more than 400×400 pixels
    are averaged over blocks. "psnr" and "ssim" of a method's metrics stand above its column.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"expected a file name without a folder, got {name!r}: rename the scene")
    if not cubes:
        raise ValueError("expected the cube of at least one method, got none: pass one")
    first = as_cube(next(iter(cubes.values())), f"cube of {next(iter(cubes))}")
    arrays = {m: as_cube(cube, f"cube of {m}", first.shape) for m, cube in cubes.items()}
    true = as_truth(truth, first)
    values = as_wavelengths(wavelengths, len(first))
    shown = arrays if true is None else {TRUTH: true, **arrays}
    chosen = (layout or Layout()).choose(next(iter(shown.values())), values)
    _Comparison(shown, true, values, metrics, chosen).draw().save_both(folder, name)


def save_curves(
    folder: str | os.PathLike[str],
    name: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    label: str,
) -> None:
    """Writes ``<name>.png`` and ``<name>.pdf``: (value, PSNR in dB) of all methods.

    A method with one pair, such as a network, is a dot. The axis is logarithmic where its values
    are positive and span more than a factor of 30. What is not finite is left out.
    """
    pairs = {m: np.asarray(list(curve), float).reshape(-1, 2) for m, curve in curves.items()}
    known = {m: curve[np.isfinite(curve).all(axis=1)] for m, curve in pairs.items()}
    known = {m: curve for m, curve in known.items() if len(curve)}
    if not known:
        raise ValueError("expected (value, PSNR) of at least one method, got none: pass some")
    sheet = paper()
    axes = sheet.axes(0, 0, 4.0, 2.6)
    for index, (method, curve) in enumerate(known.items()):
        color, line = COLORS[index % len(COLORS)], ("-", "--", ":", "-.")[index // len(COLORS) % 4]
        marker, named = "o" if len(curve) <= _DOTS else None, literal(method)
        axes.plot(*curve.T, marker=marker, ms=4, lw=1.4, color=color, ls=line, label=named)
    values = np.concatenate([curve[:, 0] for curve in known.values()])
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
    """Writes ``<name>.png`` and ``<name>.pdf``: bars for the PSNR, dB, of cases and methods."""
    methods = list(dict.fromkeys(method for each in levels.values() for method in each))
    height, sheet = 0.8 / max(1, len(methods)), paper()
    axes = sheet.axes(0, 0, 4.0, 0.4 + 0.3 * len(levels) * max(1, len(methods)))
    found: list[float] = []
    for index, method in enumerate(methods):
        psnr = [each.get(method) for each in levels.values()]
        known = {place: value for place, value in enumerate(psnr) if value is not None}
        places = [place + (index - (len(methods) - 1) / 2) * height for place in known]
        color = COLORS[index % len(COLORS)]
        bars = axes.barh(places, list(known.values()), height, color=color, label=literal(method))
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=SMALL)
        found += known.values()
    axes.set_yticks(range(len(levels)), list(map(literal, levels)))
    axes.invert_yaxis()
    if found:
        axes.set_xlim(min(found) - 2, max(found) + 2)  # differences are what matters
    axes.set_xlabel("PSNR / dB", fontsize=BODY)
    axes.set_title(title, fontsize=BODY)
    tidy(axes)
    if len(methods) > 1:
        axes.legend(fontsize=SMALL + 0.5, frameon=False, labelcolor=INK)
    sheet.save_both(folder, name)


def _tinted(cube: np.ndarray, band: int, white: float, tint: np.ndarray) -> np.ndarray:
    return encode(np.clip(cube[band] / white, 0, 1)[..., None] * tint)


class _Comparison:
    """The figure of one scene; lengths in inches, from the top left."""

    def __init__(
        self,
        shown: Mapping[str, np.ndarray],
        truth: np.ndarray | None,
        wavelengths: np.ndarray | None,
        metrics: Mapping[str, Mapping[str, float | None]],
        chosen: Chosen,
    ) -> None:
        self.shown, self.truth, self.wavelengths = dict(shown), truth, wavelengths
        self.metrics, self.chosen = metrics, chosen
        self.clear = next(iter(self.shown.values()))
        height, width = self.clear.shape[1:]
        self.block = block_size(height, width)
        self.small = {key: shrink(cube, self.block) for key, cube in self.shown.items()}
        self.cell_high = _CELL * min(3.0, max(0.3, height / width))
        self.rows = 1 + len(chosen.bands) + (truth is not None)
        self.width = _SIDE + max(2, len(self.shown)) * (_CELL + _GAP)
        self.sheet = paper()

    def draw(self) -> Sheet:
        """Draws all rows."""
        exposure = exposure_of(self.clear, self.wavelengths, None)

        def color(cube: np.ndarray) -> np.ndarray:
            return srgb(cube, self.wavelengths, None, exposure)

        for key, axes in self._draw_row(0, "true colour", color).items():
            axes.set_title(self._head(key), fontsize=BODY, color=INK, pad=3, parse_math=False)
            if key == next(iter(self.shown)):
                self._mark(axes)
        tints = 0.88 * band_colors(self.wavelengths, len(self.clear)) + 0.12
        for row, band in enumerate(self.chosen.bands, start=1):
            white = white_level(next(iter(self.small.values()))[band])
            draw = partial(_tinted, band=band, white=white, tint=tints[band])
            self._draw_row(row, name_band(band, self.wavelengths), draw)
        if self.truth is not None:
            self._draw_errors(list(self.small.values()))
        # Four regions in one, two or four lines, never three beside one.
        fitting = max(1, int(self.width / _CURVE))
        across = min(len(self.chosen.regions), 4 if fitting >= 4 else 2 if fitting >= 2 else 1)
        above = 0.3 + _ENTRY * len(self.shown)
        for index, point in enumerate(self.chosen.regions):
            down, right = divmod(index, across)
            pitch = self.width / across
            top = self._corner(self.rows, 0)[1] + down * (above + _CURVE_HIGH + 0.42) + above
            axes = self.sheet.axes(right * pitch + 0.36, top, pitch - 0.46, _CURVE_HIGH)
            self._draw_region(axes, index, point, 72 * (pitch - 0.3) - _HANDLE * SMALL)
        return self.sheet

    def _draw_row(
        self, row: int, words: str, draw: Callable[[np.ndarray], np.ndarray]
    ) -> dict[str, Axes]:
        """Draw a picture of every cube, and the enlarged square in it."""
        found = {}
        for column, (key, cube) in enumerate(self.small.items()):
            found[key] = self._picture(row, column, draw(cube))
            if self.chosen.zoom is not None:
                top, left, side = self.chosen.zoom
                square = self.shown[key][:, top : top + side, left : left + side]
                self._enlarge(found[key], draw(square), self.chosen.zoom)
        self._label(row, words)
        return found

    def _enlarge(self, axes: Axes, picture: np.ndarray, zoom: tuple[int, int, int]) -> None:
        """Frame the square, and show it enlarged in the corner that is furthest from it."""
        from matplotlib.patches import Rectangle

        row, column, side = (value / self.block for value in zoom)
        height, width = self.clear.shape[1] / self.block, self.clear.shape[2] / self.block
        corner = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(corner, side, side, ec=_FRAME, fc="none", lw=0.8))
        # Of one side in inches, whatever the shape of the picture is.
        wide = _ENLARGED * min(1.0, self.cell_high / _CELL)
        high = wide * _CELL / self.cell_high
        right, low = column + side / 2 < width / 2, row + side / 2 < height / 2
        place = (1 - wide if right else 0, 0 if low else 1 - high, wide, high)
        inside = axes.inset_axes(place)
        inside.imshow(picture, interpolation="none", aspect="auto")
        inside.set(xticks=[], yticks=[])
        for spine in inside.spines.values():
            spine.set(color=_FRAME, linewidth=0.8)

    def _draw_errors(self, cubes: list[np.ndarray]) -> None:
        row = self.rows - 1
        errors = [np.sqrt(((cube - cubes[0]) ** 2).mean(axis=0)) for cube in cubes[1:]]
        scale = white_level(*errors)
        for column, error in enumerate(errors, start=1):
            image = self._picture(row, column, error, cmap="inferno", vmin=0, vmax=scale).images[0]
        self._label(row, "error")
        # Nothing is wrong with the truth: its cell is the place of the scale.
        left, top = self._corner(row, 0)
        bar = self.sheet.axes(left + _CELL - 0.16, top, 0.1, self.cell_high)
        self.sheet.figure.colorbar(image, cax=bar)
        bar.yaxis.set_ticks_position("left")
        bar.yaxis.set_label_position("left")
        bar.set_ylabel("√ mean over bands of\n(x − truth)²", fontsize=SMALL, color=INK)
        bar.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
        bar.spines["outline"].set_visible(False)

    def _draw_region(self, axes: Axes, index: int, point: tuple[int, int], room: float) -> None:
        """Draw the spectra of a region; `room` is up to the legend of the next one, points."""
        x = np.arange(1.0, len(self.clear) + 1) if self.wavelengths is None else self.wavelengths
        reference = None if self.truth is None else region_spectrum(self.truth, *point)
        marker = "o" if len(x) == 1 else None
        color = 0
        for key, cube in self.shown.items():
            spectrum = region_spectrum(cube, *point)
            if key == TRUTH:
                axes.plot(
                    *(x, spectrum, "--"), marker=marker, color=INK, lw=1.1, label="truth", zorder=3
                )
                continue
            r = None if reference is None else correlation(spectrum, reference)
            tail = "" if r is None else f"  {r:.3f}".replace("-", "−")
            label = literal(fitting(key, tail, room))
            own = COLORS[color % len(COLORS)]
            axes.plot(x, spectrum, color=own, lw=1.2, marker=marker, label=label)
            color += 1
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), max(1.04 * high, 0.0) or 1.0)
        tidy(axes)
        unit = "band" if self.wavelengths is None else "wavelength / nm"
        axes.set_xlabel(unit, fontsize=SMALL, labelpad=1)
        title = f"region {index + 1}" + (", r to the truth" if self.truth is not None else "")
        place = {"bbox_to_anchor": (-0.04, 1.0), "borderaxespad": 0.0, "alignment": "left"}
        spacing = {"labelspacing": 0.15, "handlelength": _HANDLE - 0.8, "handletextpad": 0.8}
        style = {"title_fontsize": SMALL + 0.5, "labelcolor": INK, "frameon": False}
        axes.legend(title=title, loc="lower left", fontsize=SMALL, **style, **place, **spacing)

    def _mark(self, axes: Axes) -> None:
        from matplotlib.patheffects import withStroke

        outline = [withStroke(linewidth=1.6, foreground="black")]  # white is lost on white
        for index, (row, column) in enumerate(self.chosen.regions):
            x, y = (column + 0.5) / self.block - 0.5, (row + 0.5) / self.block - 0.5
            axes.plot([x], [y], "s", ms=4, mfc="none", mec="white", mew=0.9, path_effects=outline)
            near = x > 0.85 * axes.get_xlim()[1]
            axes.annotate(
                *(str(index + 1), (x, y), (-4 if near else 4, 0)),
                textcoords="offset points",
                fontsize=SMALL,
                color="white",
                weight="bold",
                va="center",
                ha="right" if near else "left",
                path_effects=outline,
            )

    def _head(self, key: str) -> str:
        if key == TRUTH:
            rows = self.metrics.values()
            names = [n.upper() for n in ("psnr", "ssim") if any(row.get(n) for row in rows)]
            return "truth\n" + " / ".join(names)
        known = self.metrics.get(key, {})
        psnr, ssim = known.get("psnr"), known.get("ssim")
        words = [] if psnr is None else [f"{psnr:.2f} dB"]
        words += [] if ssim is None else [f"{ssim:.4f}"]
        return f"{fitting(key, '', 72 * _CELL, BODY)}\n{' / '.join(words)}"

    def _corner(self, row: int, column: int) -> tuple[float, float]:
        return _SIDE + column * (_CELL + _GAP), row * (self.cell_high + _GAP)

    def _picture(self, row: int, column: int, picture: np.ndarray, **style: Any) -> Axes:
        axes = self.sheet.axes(*self._corner(row, column), _CELL, self.cell_high)
        axes.imshow(picture, interpolation="none", **style)
        axes.set_axis_off()
        axes.autoscale(False)
        return axes

    def _label(self, row: int, words: str) -> None:
        style: Any = {"size": BODY, "rotation": 90, "ha": "center", "va": "center"}
        self.sheet.text(words, 0.5 * _SIDE, self._corner(row, 0)[1] + self.cell_high / 2, **style)
