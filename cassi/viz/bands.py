"""Montages of a cube's bands, each in the colour of its wavelength."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.viz.checks import (
    Array,
    Wavelengths,
    as_array,
    as_cube,
    as_truth,
    as_wavelengths,
    shrink,
    white_level,
)
from cassi.viz.color import band_colors, encode, exposure_of, srgb
from cassi.viz.names import name_band
from cassi.viz.sheet import DARK, PALE, Sheet

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap

_ALL = 32  # up to this many bands are all shown
_MOST = 28  # of more bands than that
_BESIDE_TRUTH = 8
_TILE = 200  # pixels along the longer side
_GAP, _CAPTION = 8, 24
_LETTER = 9  # width of a letter of a caption, about
_SIDE = 30  # column of the upright row names
_BAR, _BAR_HIGH = 14, 164  # of a scale: its width, and the least height for its label
_TITLE = 20  # a line of the title
_UNIT, _NAMES = "value in the cube", ("estimate", "truth", "error")
_WHITE = 0.12  # share of white in a tint: pure blue is too dark to see detail in


Label = tuple[str, np.ndarray]
"""A text and its colour."""


@dataclass
class _Montage:
    """Rows of pictures (h, w, 3), and what stands around them."""

    rows: list[list[np.ndarray]]
    labels: list[Label]  # above the first pictures
    scales: list[tuple[ScalarMappable, str, int]]  # from the top: colours, label, number of rows
    names: tuple[str, ...] = ()  # of the rows
    title: str = ""


def save_bands(
    path: str | os.PathLike[str],
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    truth: Array | None = None,  # (C, H, W)
    measurement: Array | None = None,  # (K, H', W') or (H', W')
    count: int | None = None,
    unit: str | None = None,
    errors: Sequence[float] | None = None,  # (C,), nm
) -> None:
    """Writes a montage of bands as PNG, each tinted in the colour of its wavelength.

    All bands share one brightness scale, so their relative strength shows. With the truth, three
    rows (estimate, truth, error) show some of the bands; estimate and truth share the truth's
    scale, the error's is white at 0. The scales stand to the right. A measurement stands to the
    left, above the estimate's sRGB rendering.

    Args:
        path: the PNG to write; it appears whole or not at all.
        cube: (C, H, W), any scale.
        wavelengths: (C,), nm, increasing; None numbers the bands and leaves them grey.
        truth: (C, H, W), on the cube's scale, or None.
        measurement: (K, H', W') or (H', W'), of which the first shot is shown, or None.
        count: number of bands shown, evenly chosen; None for all (28 of more than 32), or 8 with
            the truth.
        unit: of the cube, for its scale.
        errors: standard errors of the wavelengths, nm, if known: they stand above the bands.

    Raises:
        OSError: if the folder is missing or cannot be written.
        TypeError: if an array is not of real numbers.
        ValueError: if a shape, the wavelengths or the count does not fit, or a NaN is found.
    """
    estimate = as_cube(cube)
    true = as_truth(truth, estimate)
    values = as_wavelengths(wavelengths, len(estimate))
    snapshot = None if measurement is None else _first_shot(measurement)
    shown = _choose_bands(len(estimate), count, beside_truth=true is not None)

    tints = (1 - _WHITE) * band_colors(values, len(estimate))[shown] + _WHITE
    labels = _name_bands(shown, values, errors, tints)
    cubes = [estimate] if true is None else [estimate, true]
    small = [[_reduce(x[band]) for band in shown] for x in cubes]
    white = white_level(*small[-1])
    rows = [_tint(pictures, white, tints) for pictures in small]
    scale = _brightness(white), unit or _UNIT
    if true is None:
        rows = _wrap(rows[0], estimate.shape)
        montage = _Montage(rows, labels, [(*scale, len(rows))])
    else:
        off = [e - t for e, t in zip(*small, strict=True)]
        peak = white_level(*map(np.abs, off))
        signed = _colors(-peak, peak, "RdBu_r")
        scales = [(*scale, 2), (signed, "estimate − truth", 1)]
        montage = _Montage([*rows, _paint(off, signed)], labels, scales, _NAMES)
    aside = [] if snapshot is None else [_name_snapshot(snapshot)]
    if aside:
        color = srgb(estimate, values, exposure=exposure_of(cubes[-1], values))
        aside.append(("estimate in colour", color))
    _draw(montage, estimate.shape[1:], aside).save(path)


def save_uncertainty(
    path: str | os.PathLike[str],
    std: Array,  # (C, H, W)
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    meaning: str,
    unit: str | None = None,
    errors: Sequence[float] | None = None,  # (C,), nm
) -> None:
    """Writes the standard deviation σ of every value of a cube as PNG, band by band.

    All bands have one scale. Above stand what one σ means, in a line, and how bright the cube is.
    The other arguments and errors are those of ``save_bands``.
    """
    deviation = as_cube(std, "standard deviations")
    level = white_level(as_cube(cube, shape=deviation.shape))
    values = as_wavelengths(wavelengths, len(deviation))
    shown = _choose_bands(len(deviation), None, beside_truth=False)
    pictures = [_reduce(deviation[band]) for band in shown]
    colors = _colors(0, white_level(*pictures), "inferno")
    labels = _name_bands(shown, values, errors, np.ones((len(shown), 3)))
    rows = _wrap(_paint(pictures, colors), deviation.shape)
    title = f"{meaning}\nof the values of the cube 99.5 % are below {level:.2g}"
    montage = _Montage(rows, labels, [(colors, f"σ, {unit or _UNIT}", len(rows))], title=title)
    _draw(montage, deviation.shape[1:], []).save(path)


def _name_bands(
    shown: list[int],
    wavelengths: np.ndarray | None,
    errors: Sequence[float] | None,
    tints: np.ndarray,
) -> list[Label]:
    names = [name_band(band, wavelengths, errors) for band in shown]
    return list(zip(names, encode(tints.copy()) / 255, strict=True))


def _name_snapshot(snapshot: np.ndarray) -> tuple[str, np.ndarray]:
    height, width = snapshot.shape
    grey = _reduce(snapshot, 4 * _TILE)
    return f"measurement, {height} × {width}", encode(grey / white_level(grey))


def _tint(pictures: list[np.ndarray], white: float, tints: np.ndarray) -> list[np.ndarray]:
    levels = (np.clip(picture / white, 0, 1)[..., None] for picture in pictures)
    return [encode(level * tint) for level, tint in zip(levels, tints, strict=True)]


def _wrap(pictures: list[np.ndarray], shape: tuple[int, ...]) -> list[list[np.ndarray]]:
    """Put pictures of a cube of this shape in rows, in reading order."""
    count = len(pictures)
    # About 16:9 as a whole, and as few holes in the last line as that leaves possible.
    ideal = np.sqrt(count * shape[1] / shape[2] * 16 / 9)
    near = range(max(1, round(ideal) - 1), max(1, round(ideal) + 1) + 1)
    columns = min(count, min(near, key=lambda n: (-count % n, abs(n - ideal))))
    return [pictures[first : first + columns] for first in range(0, count, columns)]


def _choose_bands(bands: int, count: int | None, beside_truth: bool) -> list[int]:
    if count is None:
        count = min(bands, _BESIDE_TRUTH) if beside_truth else bands if bands <= _ALL else _MOST
    if not 1 <= count <= bands:
        raise ValueError(f"expected a count of 1 to {bands} bands, got {count}: change it")
    return [int(band) for band in np.rint(np.linspace(0, bands - 1, count))]


def _first_shot(measurement: Array) -> np.ndarray:
    array = as_array(measurement, "measurement")
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(
            f"expected a measurement (K, H, W) or (H, W), got shape {array.shape}: "
            "take one scene of the batch, y[0]"
        )
    return array if array.ndim == 2 else array[0]


def _colors(low: float, high: float, colors: str | Colormap) -> ScalarMappable:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), colors)


def _paint(pictures: list[np.ndarray], colors: ScalarMappable) -> list[np.ndarray]:
    return [colors.to_rgba(picture, bytes=True)[..., :3] for picture in pictures]


def _brightness(white: float) -> ScalarMappable:
    """Return the scale of tinted pictures."""
    from matplotlib.colors import ListedColormap

    grey = encode(np.linspace(0, 1, 256)[:, None].repeat(3, 1)) / 255
    return _colors(0, white, ListedColormap(grey))


def _draw(montage: _Montage, shape: tuple[int, ...], aside: list[tuple[str, np.ndarray]]) -> Sheet:
    """Draws the montage from the origin on, and to its left a column of named uint8 pictures."""
    height, width = (max(1, round(_TILE * side / max(shape))) for side in shape)
    # Room for "band 128" and "1234.5 nm", and for the longest name.
    pitch_x = max(width, 84, *(_LETTER * len(label) for label, _ in montage.labels)) + _GAP
    box = max(height, _BAR_HIGH) if montage.names else height
    pitch_y = box + _GAP + (0 if montage.names else _CAPTION)
    sheet, columns = Sheet(DARK), len(montage.rows[0])
    title = montage.title.splitlines()
    for line, words in enumerate(title, start=1):
        sheet.text(words, 0, -_CAPTION - 7 - _TITLE * (len(title) - line), color=PALE)
    for line, row in enumerate(montage.rows):
        for across, picture in enumerate(row):
            left, top = across * pitch_x + (pitch_x - _GAP) / 2, line * pitch_y + box / 2
            sheet.image(picture, left - width / 2, top - height / 2, width, height)
    for index, (label, color) in enumerate(montage.labels):
        line, across = divmod(index, columns)
        center = across * pitch_x + (pitch_x - _GAP) / 2
        sheet.text(label, center, line * pitch_y - 7, ha="center", color=color)
    upright: Any = {"rotation": 90, "ha": "center", "va": "center", "color": PALE}
    for line, name in enumerate(montage.names):
        sheet.text(name, -_SIDE / 2, line * pitch_y + box / 2, **upright)
    top = 0
    for colors, label, lines in montage.scales:
        high = max((lines - 1) * pitch_y + box, _BAR_HIGH)
        sheet.scale(colors, label, columns * pitch_x, top, _BAR, high)
        top += lines * pitch_y
    bottom = max((len(montage.rows) - 1) * pitch_y + box, _BAR_HIGH)
    # Beside one line of bands there is no height for the colour picture too.
    aside = aside if len(montage.rows) > 1 else aside[:1]
    high = (bottom - (len(aside) - 1) * (_GAP + _CAPTION)) // max(1, len(aside))
    wide = max((high * picture.shape[1] / picture.shape[0] for _, picture in aside), default=0)
    middle = -wide / 2 - 3 * _GAP - (_SIDE if montage.names else 0)
    for line, (name, picture) in enumerate(aside):
        top, own = line * (high + _GAP + _CAPTION), high * picture.shape[1] / picture.shape[0]
        sheet.text(name, middle, top - 7, ha="center", color=PALE)
        sheet.image(picture, middle - own / 2, top, own, high)
    return sheet


def _reduce(picture: np.ndarray, side: int = 2 * _TILE) -> np.ndarray:
    """Averages whole blocks until the longer side is below twice ``side``."""
    factor = max(picture.shape) // side
    if factor < 2 or min(picture.shape) < factor:
        return picture
    return shrink(picture[None], factor)[0]
