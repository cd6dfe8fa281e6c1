"""Draw montages of a cube's bands in their colours, or of the bands' standard deviations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cassi.viz.canvas import BODY, DARK, PALE, Canvas, Scale, text_width
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
from cassi.viz.color import band_colors, decode, encode, exposure_of, srgb
from cassi.viz.names import name_band
from cassi.viz.palettes import make_palette

# More than 32 bands would not fit on a screen. So of a larger cube 28 bands are shown, evenly
# spaced. If there is a truth, each band takes three tiles, so 8 bands are shown.
_MAX_BANDS_SHOWN_IN_FULL = 32
_BANDS_OF_LARGE_CUBES = 28
_BANDS_BESIDE_TRUTH = 8
# All lengths of the layout are pixels.
_TILE_SIDE = 200  # the longer side of a picture
_GAP, _CAPTION_HEIGHT = 8, 24
_MIN_PITCH = 84  # the least width of a column
_ROW_NAME_WIDTH = 30  # the column of the upright row names
_SCALE_WIDTH, _MIN_SCALE_HEIGHT = 14, 164  # a scale of less height could not hold its label
_TITLE_LINE_HEIGHT = 20
_DEFAULT_UNIT, _ROW_NAMES = "value in the cube", ("estimate", "truth", "error")
# Fraction of white in a tint. Without white, detail in a blue band is too dark to see.
_WHITE_FRACTION = 0.12

# A text and its colour.
Label = tuple[str, str]
# The number of a colour for every pixel, uint8 (h, w), and the colours, uint8 (256, 3).
Picture = tuple[np.ndarray, np.ndarray]


@dataclass
class _Montage:
    """Rows of pictures, with their labels, colour scales, row names and title."""

    rows: list[list[Picture]]
    labels: list[Label]  # the label of each picture that has one, in reading order
    scales: list[tuple[Scale, str, int]]  # from the top: colours, label, number of rows
    row_names: tuple[str, ...] = ()
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
    """Write a montage of bands as PNG, each tinted in the colour of its wavelength.

    All bands share one brightness scale, so their relative strength is visible. With the truth,
    three rows (estimate, truth, error) show some of the bands. Estimate and truth then share the
    truth's brightness scale, and the error scale is white at 0. The scales are to the right of the
    pictures. A measurement is to their left, above the estimate's sRGB rendering.

    Args:
        path: the PNG to write; it is complete or absent.
        cube: (C, H, W), any scale.
        wavelengths: (C,), nm, increasing; None numbers the bands and leaves them grey.
        truth: (C, H, W), on the cube's scale, or None.
        measurement: (K, H', W') or (H', W'), or None. The first shot is shown.
        count: number of bands to show. None: 8 if there is a truth; else all, or 28 if over 32.
        unit: unit of the cube, written beside its scale.
        errors: standard errors of the wavelengths, nm, if known; written above the bands.

    Raises:
        OSError: the folder is missing or cannot be written.
        TypeError: an array is not of real numbers.
        ValueError: a shape, the wavelengths or the count does not fit, or a NaN is found.
    """
    estimate = as_cube(cube)
    true_cube = as_truth(truth, estimate)
    values = as_wavelengths(wavelengths, len(estimate))
    snapshot = None if measurement is None else _take_first_shot(measurement)
    shown_bands = _choose_bands(len(estimate), count, beside_truth=true_cube is not None)
    colors = band_colors(values, len(estimate))[shown_bands]
    tints = (1 - _WHITE_FRACTION) * colors + _WHITE_FRACTION
    labels = _name_bands(shown_bands, values, errors, tints)
    cubes = [estimate] if true_cube is None else [estimate, true_cube]
    band_pictures = [[_reduce(x[band]) for band in shown_bands] for x in cubes]
    # Estimate and truth share the brightness scale of the truth, which is the last cube.
    white = white_level(*band_pictures[-1])
    rows = [_tint(pictures, white, tints) for pictures in band_pictures]
    brightness, unit = Scale(0, white, _make_greys()), unit or _DEFAULT_UNIT
    if true_cube is None:
        rows = _wrap(rows[0], estimate.shape)
        montage = _Montage(rows, labels, [(brightness, unit, len(rows))])
    else:
        differences = [e - t for e, t in zip(*band_pictures, strict=True)]
        peak = white_level(*map(np.abs, differences))
        error_colors = Scale(-peak, peak, make_palette("blue_red"))
        scales = [(brightness, unit, 2), (error_colors, "estimate − truth", 1)]
        montage = _Montage([*rows, _paint(differences, error_colors)], labels, scales, _ROW_NAMES)
    side_pictures = [] if snapshot is None else [_name_snapshot(snapshot)]
    if side_pictures:
        color = srgb(estimate, values, exposure=exposure_of(cubes[-1], values))
        side_pictures.append(("estimate in colour", color))
    _draw(montage, estimate.shape[1:], side_pictures).save(path)


def save_uncertainty(
    path: str | os.PathLike[str],
    std: Array,  # (C, H, W)
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    meaning: str,
    unit: str | None = None,
    errors: Sequence[float] | None = None,  # (C,), nm
) -> None:
    """Write the standard deviation σ of every value of a cube as PNG, band by band.

    All bands have one scale. The title says how bright the cube is. Exceptions are those of
    `save_bands`.

    Args:
        path: the PNG to write.
        std: standard deviations (C, H, W), on the cube's scale.
        cube: (C, H, W), any scale.
        wavelengths: (C,), nm, increasing; None numbers the bands.
        meaning: a line of the title that says what one σ means.
        unit: unit of the cube, written beside the scale.
        errors: standard errors of the wavelengths, nm, if known.
    """
    deviation = as_cube(std, "standard deviations")
    cube_level = white_level(as_cube(cube, shape=deviation.shape))
    values = as_wavelengths(wavelengths, len(deviation))
    shown_bands = _choose_bands(len(deviation), None, beside_truth=False)
    pictures = [_reduce(deviation[band]) for band in shown_bands]
    colors = Scale(0, white_level(*pictures), make_palette("inferno"))
    labels = _name_bands(shown_bands, values, errors, np.ones((len(shown_bands), 3)))
    rows = _wrap(_paint(pictures, colors), deviation.shape)
    title = f"{meaning}\n99.5 % of the values of the cube are below {cube_level:.2g}"
    montage = _Montage(
        rows, labels, [(colors, f"σ, {unit or _DEFAULT_UNIT}", len(rows))], title=title
    )
    _draw(montage, deviation.shape[1:], []).save(path)


def _name_bands(
    shown_bands: list[int],
    wavelengths: np.ndarray | None,
    errors: Sequence[float] | None,
    tints: np.ndarray,
) -> list[Label]:
    names = [name_band(band, wavelengths, errors) for band in shown_bands]
    colors = [f"#{bytes(color).hex()}" for color in encode(tints.copy())]
    return list(zip(names, colors, strict=True))


def _name_snapshot(snapshot: np.ndarray) -> tuple[str, np.ndarray]:
    height, width = snapshot.shape
    picture = _reduce(snapshot, 4 * _TILE_SIDE)
    return f"measurement, {height} × {width}", encode(picture / white_level(picture))


def _tint(pictures: list[np.ndarray], white: float, tints: np.ndarray) -> list[Picture]:
    levels = [encode(picture / white) for picture in pictures]
    # The colours of the 256 levels in each tint.
    greys = decode(np.arange(256) / 255)[:, None]
    return [(level, encode(greys * tint)) for level, tint in zip(levels, tints, strict=True)]


def _make_greys() -> np.ndarray:
    """Return the palette of the scale from black to white, which stands beside tinted pictures."""
    return encode(np.linspace(0, 1, 256)[:, None].repeat(3, 1))


def _paint(pictures: list[np.ndarray], scale: Scale) -> list[Picture]:
    return [(scale.levels(picture), scale.palette) for picture in pictures]


def _wrap(pictures: list[Picture], shape: tuple[int, ...]) -> list[list[Picture]]:
    """Put pictures in rows, in reading order; `shape` is the shape (C, H, W) of their cube."""
    count = len(pictures)
    # The montage should have the shape of a screen, about 16:9. Of the three numbers of columns
    # nearest to this shape, take the one that leaves the fewest holes in the last row.
    ideal_columns = np.sqrt(count * shape[1] / shape[2] * 16 / 9)
    candidates = range(max(1, round(ideal_columns) - 1), max(1, round(ideal_columns) + 1) + 1)
    n_columns = min(candidates, key=lambda n: (-count % n, abs(n - ideal_columns)))
    n_columns = min(count, n_columns)
    return [pictures[start : start + n_columns] for start in range(0, count, n_columns)]


def _choose_bands(bands: int, count: int | None, beside_truth: bool) -> list[int]:
    if count is None:
        count = bands if bands <= _MAX_BANDS_SHOWN_IN_FULL else _BANDS_OF_LARGE_CUBES
        if beside_truth:
            count = min(bands, _BANDS_BESIDE_TRUTH)
    if not 1 <= count <= bands:
        raise ValueError(f"expected a count of 1 to {bands} bands, got {count}: change it")
    return [int(band) for band in np.rint(np.linspace(0, bands - 1, count))]


def _take_first_shot(measurement: Array) -> np.ndarray:
    array = as_array(measurement, "measurement")
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(
            f"expected a measurement (K, H, W) or (H, W), got shape {array.shape}: "
            "take one scene of the batch, y[0]"
        )
    return array if array.ndim == 2 else array[0]


def _draw(
    montage: _Montage, shape: tuple[int, ...], side_pictures: list[tuple[str, np.ndarray]]
) -> Canvas:
    """Draw the montage, and to its left a column of named uint8 pictures."""
    height, width = (max(1, round(_TILE_SIDE * side / max(shape))) for side in shape)
    label_widths = (int(text_width(label, BODY)) + 1 for label, _ in montage.labels)
    pitch_x = max(width, _MIN_PITCH, *label_widths) + _GAP
    row_height = max(height, _MIN_SCALE_HEIGHT) if montage.row_names else height
    pitch_y = row_height + _GAP + (0 if montage.row_names else _CAPTION_HEIGHT)
    canvas, n_columns = Canvas(DARK), len(montage.rows[0])
    title_lines = montage.title.splitlines()
    for row_index, words in enumerate(title_lines, start=1):
        line_top = _TITLE_LINE_HEIGHT * (len(title_lines) - row_index)
        canvas.text(words, 0, -_CAPTION_HEIGHT - 7 - line_top, color=PALE)
    for row_index, row in enumerate(montage.rows):
        for column, (levels, palette) in enumerate(row):
            left = column * pitch_x + (pitch_x - _GAP - width) / 2
            top = row_index * pitch_y + (row_height - height) / 2
            canvas.image(levels, left, top, width, height, palette)
    for index, (label, color) in enumerate(montage.labels):
        row_index, column = divmod(index, n_columns)
        center = column * pitch_x + (pitch_x - _GAP) / 2
        canvas.text(label, center, row_index * pitch_y - 7, align="center", color=color)
    for row_index, name in enumerate(montage.row_names):
        middle = row_index * pitch_y + row_height / 2
        canvas.text(name, -_ROW_NAME_WIDTH / 2, middle, color=PALE, upright=True)
    top = 0
    for colors, label, n_rows in montage.scales:
        scale_height = max((n_rows - 1) * pitch_y + row_height, _MIN_SCALE_HEIGHT)
        canvas.scale(colors, label, n_columns * pitch_x, top, _SCALE_WIDTH, scale_height)
        top += n_rows * pitch_y
    bottom = max((len(montage.rows) - 1) * pitch_y + row_height, _MIN_SCALE_HEIGHT)
    # One row of bands is too low for a second picture beside it.
    side_pictures = side_pictures if len(montage.rows) > 1 else side_pictures[:1]
    height = (bottom - (len(side_pictures) - 1) * (_GAP + _CAPTION_HEIGHT)) // max(
        1, len(side_pictures)
    )
    widths = [height * picture.shape[1] / picture.shape[0] for _, picture in side_pictures]
    middle = -max(widths, default=0) / 2 - 3 * _GAP - (_ROW_NAME_WIDTH if montage.row_names else 0)
    for index, ((name, picture), side_width) in enumerate(zip(side_pictures, widths, strict=True)):
        top = index * (height + _GAP + _CAPTION_HEIGHT)
        canvas.text(name, middle, top - 7, align="center", color=PALE)
        canvas.image(picture, middle - side_width / 2, top, side_width, height)
    return canvas


def _reduce(picture: np.ndarray, side: int = 2 * _TILE_SIDE) -> np.ndarray:
    """Average square blocks, so that the longer side of the result is below twice `side`."""
    # Large pictures would take long to be tinted.
    factor = max(picture.shape) // side
    if factor < 2 or min(picture.shape) < factor:
        return picture
    return shrink(picture[None], factor)[0]
