"""Montages of a cube's bands, each in the colour of its wavelength."""

import os
from dataclasses import dataclass

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
from cassi.viz.sheet import DARK, PALE, Sheet

_ALL = 32  # up to this many bands are all shown
_MOST = 28  # of more bands than that
_BESIDE_TRUTH = 8
_TILE = 200  # pixels along the longer side
_MARGIN, _GAP, _CAPTION = 18, 8, 24
_SIDE = 30  # column of the upright row names
_WHITE = 0.12  # share of white in a tint: pure blue is too dark to see detail in


@dataclass
class _Montage:
    """Pictures (N, h, w) in [0, 1] by row or in reading order, and what stands around them."""

    pictures: list[np.ndarray]
    tints: list[np.ndarray]
    labels: list[str]  # above a picture, "" for none
    columns: int
    names: list[str]  # of the rows; none for a montage in reading order

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
) -> None:
    """Writes a montage of bands as PNG, each tinted in the colour of its wavelength.

    All bands share one brightness scale, so their relative strength shows. With the truth, three
    rows (estimate, truth, absolute error) show some of the bands; estimate and truth share the
    truth's scale, the error's own is written beside its row. A measurement stands to the left,
    above the estimate's sRGB rendering.

    Args:
        path: the PNG to write; it appears whole or not at all.
        cube: (C, H, W), any scale.
        wavelengths: (C,), nm, increasing; None numbers the bands and leaves them grey.
        truth: (C, H, W), on the cube's scale, or None.
        measurement: (K, H', W') or (H', W'), of which the first shot is shown, or None.
        count: number of bands shown, evenly chosen; None for all (28 of more than 32), or 8 with
            the truth.

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
    labels = [f"band {b + 1}" if values is None else f"{round(values[b], 1):g} nm" for b in shown]
    bands = [estimate[band] for band in shown]
    if true is None:
        ratio = estimate.shape[1] / estimate.shape[2]
        montage = _in_reading_order(bands, list(tints), labels, ratio)
    else:
        montage = _beside_truth(bands, [true[band] for band in shown], list(tints), labels)
    aside = []
    if snapshot is not None:
        name = f"measurement, {snapshot.shape[0]} × {snapshot.shape[1]}"
        grey = _reduce(snapshot, 4 * _TILE)
        exposure = exposure_of(estimate if true is None else true, values)
        aside = [
            (name, encode(grey / white_level(grey))),
            ("estimate in colour", srgb(estimate, values, exposure=exposure)),
        ]
    _draw(montage, estimate.shape[1:], aside).save(path)


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


def _in_reading_order(
    bands: list[np.ndarray], tints: list[np.ndarray], labels: list[str], ratio: float
) -> _Montage:
    """Arranges all bands; ``ratio`` is height / width of one."""
    pictures = [_reduce(band) for band in bands]
    scale = white_level(*pictures)
    count = len(bands)
    # About 16:9 as a whole, and as few holes in the last line as that leaves possible.
    ideal = np.sqrt(count * ratio * 16 / 9)
    near = range(max(1, round(ideal) - 1), max(1, round(ideal) + 1) + 1)
    columns = min(near, key=lambda n: (-count % n, abs(n - ideal)))
    return _Montage([p / scale for p in pictures], tints, labels, min(columns, count), [])


def _beside_truth(
    bands: list[np.ndarray], true: list[np.ndarray], tints: list[np.ndarray], labels: list[str]
) -> _Montage:
    """Arranges three rows: estimate, truth, error."""
    errors = [_reduce(np.abs(e - t)) for e, t in zip(bands, true, strict=True)]
    truths = [_reduce(t) for t in true]
    scale, peak = white_level(*truths), white_level(*errors)
    pictures = [_reduce(e) / scale for e in bands] + [t / scale for t in truths]
    pictures += [e / peak for e in errors]
    white = [np.ones(3, np.float32)] * len(bands)
    names = ["estimate", "truth", f"|error|, white = {peak:.2g}"]
    labels = labels + [""] * (2 * len(bands))
    return _Montage(pictures, [*tints, *tints, *white], labels, len(bands), names)


def _draw(montage: _Montage, shape: tuple[int, ...], aside: list[tuple[str, np.ndarray]]) -> Sheet:
    """Draws the montage, and to its left a column of named uint8 pictures."""
    height, width = (max(1, round(_TILE * side / max(shape))) for side in shape)
    pitch_x = max(width, 84) + _GAP  # room for "band 128" and "1234.5 nm"
    box = max(height, 164) if montage.names else height  # room for "|error|, white = 0.12"
    pitch_y = box + _GAP + (0 if montage.names else _CAPTION)
    left, top = _MARGIN, _MARGIN + _CAPTION
    bottom = top + (montage.lines - 1) * pitch_y + box
    # Beside one line of bands there is no height for the colour picture too.
    aside = aside if montage.lines > 1 else aside[:1]
    high = (bottom - top - (len(aside) - 1) * (_GAP + _CAPTION)) // max(1, len(aside))
    wide = max((round(high * pic.shape[1] / pic.shape[0]) for _, pic in aside), default=0)
    left += (wide + 3 * _GAP if aside else 0) + (_SIDE if montage.names else 0)
    sheet = Sheet(left + montage.columns * pitch_x - _GAP + _MARGIN, bottom + _MARGIN, DARK)

    for line, (name, picture) in enumerate(aside):
        y = top + line * (high + _GAP + _CAPTION)
        own = high * picture.shape[1] / picture.shape[0]
        sheet.text(name, _MARGIN + wide / 2, y - 7, ha="center", color=PALE)
        sheet.image(picture, _MARGIN + (wide - own) / 2, y, own, high)
    for index, (picture, tint) in enumerate(zip(montage.pictures, montage.tints, strict=True)):
        down, across = divmod(index, montage.columns)
        x, y = left + across * pitch_x, top + down * pitch_y
        center = x + (pitch_x - _GAP) / 2
        linear = np.clip(picture, 0, 1)[..., None] * tint
        middle = y + box / 2
        sheet.image(encode(linear), center - width / 2, middle - height / 2, width, height)
        color = encode(tint.copy()) / 255
        sheet.text(montage.labels[index], center, y - 7, ha="center", color=color)
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
