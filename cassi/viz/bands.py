"""Montages of a cube's bands, each in the colour of its wavelength."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
_MARGIN, _GAP, _CAPTION = 18, 8, 24
_LETTER = 9  # width of a letter of a caption, about
_SIDE = 30  # column of the upright row names
_BAR, _BAR_ROOM, _BAR_HIGH = 14, 96, 164  # of a scale: its width, that with numbers and words, and
# the least height for "σ, value in the cube"
_TITLE, _TITLE_WIDE = 20, 530  # a line of the title, and the width that the longest takes
_UNIT = "value in the cube"
_WHITE = 0.12  # share of white in a tint: pure blue is too dark to see detail in


Label = tuple[str, np.ndarray]
"""A text and its colour."""


@dataclass
class _Bar:
    """A scale beside some lines of a montage."""

    colors: ScalarMappable
    label: str
    lines: int


@dataclass
class _Montage:
    """Pictures (h, w, 3) by row or in reading order, and what stands around them."""

    pictures: list[np.ndarray]
    labels: list[Label]  # above the first pictures
    columns: int
    names: list[str]  # of the rows; none for a montage in reading order
    bars: list[_Bar]  # from the top
    title: str = ""

    @property
    def lines(self) -> int:
        return -(-len(self.pictures) // self.columns)


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
    bands = [_reduce(estimate[band]) for band in shown]
    truths = [] if true is None else [_reduce(true[band]) for band in shown]
    white = white_level(*(truths or bands))
    pictures = [
        encode(np.clip(picture / white, 0, 1)[..., None] * tint)
        for picture, tint in zip(bands + truths, [*tints, *tints], strict=False)
    ]
    bar = _Bar(_brightness(white), unit or _UNIT, 2)
    if true is None:
        montage = _in_reading_order(pictures, labels, bar, estimate.shape)
    else:
        off = [e - t for e, t in zip(bands, truths, strict=True)]
        montage = _in_rows(pictures, labels, bar, off)
    aside = []
    if snapshot is not None:
        exposure = exposure_of(estimate if true is None else true, values)
        color = srgb(estimate, values, exposure=exposure)
        aside = [_name_snapshot(snapshot), ("estimate in colour", color)]
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
    bar = _Bar(_colors(0, white_level(*pictures), "inferno"), f"σ, {unit or _UNIT}", 1)
    labels = _name_bands(shown, values, errors, np.ones((len(shown), 3)))
    montage = _in_reading_order(_paint(pictures, bar.colors), labels, bar, deviation.shape)
    montage.title = f"{meaning}\nof the values of the cube 99.5 % are below {level:.2g}"
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


def _in_reading_order(
    pictures: list[np.ndarray], labels: list[Label], bar: _Bar, shape: tuple[int, ...]
) -> _Montage:
    count = len(pictures)
    # About 16:9 as a whole, and as few holes in the last line as that leaves possible.
    ideal = np.sqrt(count * shape[1] / shape[2] * 16 / 9)
    near = range(max(1, round(ideal) - 1), max(1, round(ideal) + 1) + 1)
    columns = min(count, min(near, key=lambda n: (-count % n, abs(n - ideal))))
    bar.lines = -(-count // columns)
    return _Montage(pictures, labels, columns, [], [bar])


def _in_rows(
    pictures: list[np.ndarray], labels: list[Label], bar: _Bar, off: list[np.ndarray]
) -> _Montage:
    """Put rows of the estimate, of the truth and of their difference below each other."""
    peak = white_level(*map(np.abs, off))
    signed = _Bar(_colors(-peak, peak, "RdBu_r"), "estimate − truth", 1)
    pictures = [*pictures, *_paint(off, signed.colors)]
    return _Montage(pictures, labels, len(off), ["estimate", "truth", "error"], [bar, signed])


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
    """Draws the montage, and to its left a column of named uint8 pictures."""
    height, width = (max(1, round(_TILE * side / max(shape))) for side in shape)
    # Room for "band 128" and "1234.5 nm", and for the longest name.
    pitch_x = max(width, 84, *(_LETTER * len(label) for label, _ in montage.labels)) + _GAP
    box = max(height, _BAR_HIGH) if montage.names else height
    pitch_y = box + _GAP + (0 if montage.names else _CAPTION)
    title = montage.title.splitlines()
    left, top = _MARGIN, _MARGIN + _CAPTION + _TITLE * len(title)
    bottom = max(top + (montage.lines - 1) * pitch_y + box, top + _BAR_HIGH)
    # Beside one line of bands there is no height for the colour picture too.
    aside = aside if montage.lines > 1 else aside[:1]
    high = (bottom - top - (len(aside) - 1) * (_GAP + _CAPTION)) // max(1, len(aside))
    wide = max((round(high * pic.shape[1] / pic.shape[0]) for _, pic in aside), default=0)
    left += (wide + 3 * _GAP if aside else 0) + (_SIDE if montage.names else 0)
    right = left + montage.columns * pitch_x
    width_with_title = 2 * _MARGIN + (_TITLE_WIDE if title else 0)
    sheet = Sheet(max(right + _BAR_ROOM, width_with_title), bottom + _MARGIN, DARK)
    for line, words in enumerate(title, start=1):
        sheet.text(words, _MARGIN, _TITLE * line, color=PALE)
    y = top
    for bar in montage.bars:
        end = max(y + (bar.lines - 1) * pitch_y + box, y + _BAR_HIGH)
        sheet.scale(bar.colors, bar.label, right, y, _BAR, end - y)
        y += bar.lines * pitch_y

    for line, (name, picture) in enumerate(aside):
        y = top + line * (high + _GAP + _CAPTION)
        own = high * picture.shape[1] / picture.shape[0]
        sheet.text(name, _MARGIN + wide / 2, y - 7, ha="center", color=PALE)
        sheet.image(picture, _MARGIN + (wide - own) / 2, y, own, high)
    for index, picture in enumerate(montage.pictures):
        down, across = divmod(index, montage.columns)
        x, y = left + across * pitch_x, top + down * pitch_y
        center = x + (pitch_x - _GAP) / 2
        middle = y + box / 2
        sheet.image(picture, center - width / 2, middle - height / 2, width, height)
        if index < len(montage.labels):
            label, color = montage.labels[index]
            sheet.text(label, center, y - 7, ha="center", color=color)
    for line, name in enumerate(montage.names):
        middle = top + line * pitch_y + box / 2
        style = {"rotation": 90, "ha": "center", "va": "center", "color": PALE}
        sheet.text(name, left - _SIDE / 2, middle, **style)
    return sheet


def _reduce(picture: np.ndarray, side: int = 2 * _TILE) -> np.ndarray:
    """Averages whole blocks until the longer side is below twice ``side``."""
    factor = max(picture.shape) // side
    if factor < 2 or min(picture.shape) < factor:
        return picture
    return shrink(picture[None], factor)[0]
