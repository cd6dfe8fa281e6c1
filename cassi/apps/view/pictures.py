"""Pictures of a cube as the page draws them: colour, band, difference, ratio, index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cassi.apps.view.cubes import Shown
from cassi.viz import srgb
from cassi.viz.checks import white_level
from cassi.viz.color import band_colors, encode

_LEVELS = 1024
_WHITE = 0.12  # share of white in a tint: pure blue is too dark to see detail in
_DARK = 0.01  # of white: a ratio to less is none
_SIGNED = ("#2166ac", "#f7f7f7", "#b2182b")
_RISING = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
_NOTHING = "#808080"


@dataclass(frozen=True)
class Picture:
    """What is drawn, and what it shows in words.

    Attributes:
        rgb: `(H, W, 3)`, uint8.
        caption: what is seen, and its scale.
    """

    rgb: np.ndarray
    caption: str


def colour(shown: Shown, illuminant: str | None = None) -> Picture:
    """Return the cube in colour, as rgb.png has it."""
    kind = "true colour" if shown.wavelengths is not None else "false colour, bands in thirds"
    return Picture(srgb(shown.cube, shown.wavelengths, illuminant), kind)


def band(shown: Shown, number: int, white: float) -> Picture:
    """Return a band in the colour of its wavelength, all bands on one scale."""
    image = shown.cube[number]
    return Picture(
        _look_up(image, 0.0, white, _tint(shown.wavelengths, len(shown.cube), number)),
        f"{shown.band_name(number)}, white is {white:.3g}",
    )


def difference(shown: Shown, other: Shown, number: int | None) -> Picture:
    """Return |a − b| of a band, or the root mean square over all.

    Raises:
        ValueError: the cubes have different shapes.
    """
    if shown.cube.shape != other.cube.shape:
        raise ValueError(
            f"difference: expected cubes of one shape, got {shown.cube.shape} of {shown.name} and "
            f"{other.cube.shape} of {other.name}"
        )
    if number is None:
        away = np.sqrt(np.square(shown.cube - other.cube).mean(0))
        what = "root mean square over the bands"
    else:
        away, what = np.abs(shown.cube[number] - other.cube[number]), shown.band_name(number)
    level = white_level(away) if away.any() else 1.0
    caption = f"|{shown.name} − {other.name}|, {what}, yellow is {level:.3g}"
    return Picture(_look_up(away, 0.0, level, _ramp(_RISING)), caption)


def ratio(shown: Shown, above: int, below: int) -> Picture:
    """Return the quotient of two bands; grey where the lower one is dark."""
    quotient, dark = _quotient(shown.cube[above], shown.cube[below])
    known = quotient[~dark]
    low, high = np.percentile(known, (0.5, 99.5)) if known.size else (0.0, 1.0)
    picture = _look_up(quotient, float(low), float(high), _ramp(_RISING))
    names = f"{shown.band_name(above)} / {shown.band_name(below)}"
    caption = f"{names}, from {low:.3g} (violet) to {high:.3g} (yellow)"
    return Picture(_grey_where(picture, dark), caption)


def index(shown: Shown, first: int, second: int) -> Picture:
    """Return the normalised difference (a − b)/(a + b) of two bands; grey where both are dark."""
    a, b = shown.cube[first], shown.cube[second]
    quotient, dark = _quotient(a - b, a + b)
    picture = _look_up(quotient, -1.0, 1.0, _ramp(_SIGNED))
    one, two = shown.band_name(first), shown.band_name(second)
    caption = f"({one} − {two}) / ({one} + {two}), from −1 (blue) to 1 (red)"
    return Picture(_grey_where(picture, dark), caption)


def grey(image: np.ndarray, caption: str) -> Picture:
    """Return an image `(H, W)` in grey, its 99.5 % quantile white."""
    return Picture(_look_up(image, 0.0, white_level(image), _ramp_of_light()), caption)


def with_mask(
    frame: np.ndarray, mask: np.ndarray, offset: float, axis: int, strength: float = 0.5
) -> Picture:
    """Return a frame `(H', W')` in grey with a mask `(H, W)` in red where one band falls.

    Args:
        frame: of the detector.
        mask: of the camera.
        offset: of the band along the axis, pixels; between pixels the nearest is drawn.
        axis: of the dispersion.
        strength: of the mask, 0 to 1.
    """
    base = grey(frame, "").rgb.astype(np.float32)
    code = np.zeros(frame.shape, np.float32)
    start = round(offset)
    place = [slice(0, length) for length in mask.shape]
    there = [slice(0, length) for length in frame.shape]
    first, last = max(0, start), min(frame.shape[axis], start + mask.shape[axis])
    if first < last:
        there[axis], place[axis] = slice(first, last), slice(first - start, last - start)
        part = mask[tuple(place)]
        code[tuple(there)][: part.shape[0], : part.shape[1]] = part / max(float(mask.max()), 1e-6)
    share = (strength * code)[..., None]
    red = np.asarray((255.0, 70.0, 40.0), np.float32)
    return Picture((base * (1 - share) + red * share).astype(np.uint8), "frame, mask in red")


def as_rgba(rgb: np.ndarray) -> np.ndarray:
    """Return uint8 `(H, W, 3)` as one number a pixel, uint32 `(H, W)`."""
    full = np.full((*rgb.shape[:2], 4), 255, np.uint8)
    full[..., :3] = rgb
    packed: np.ndarray = full.view(np.uint32)[..., 0]
    return packed


def as_png(rgb: np.ndarray, longest: int | None = None) -> bytes:
    """Return a picture as PNG, made smaller where a side is longer than so many pixels."""
    import io

    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(rgb))
    if longest is not None:
        image.thumbnail((longest, longest))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _quotient(above: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    dark = below <= _DARK * white_level(below)
    return np.where(dark, 0.0, above / np.where(dark, 1.0, below)), dark


def _grey_where(picture: np.ndarray, where: np.ndarray) -> np.ndarray:
    picture[where] = _color(_NOTHING)
    return picture


def _look_up(image: np.ndarray, low: float, high: float, colors: np.ndarray) -> np.ndarray:
    scaled = (image - low) * ((_LEVELS - 1) / max(high - low, 1e-30))
    picked: np.ndarray = colors[np.clip(scaled, 0, _LEVELS - 1).astype(np.int16)]
    return picked


@lru_cache(maxsize=512)
def _tint(wavelengths: tuple[float, ...] | None, bands: int, number: int) -> np.ndarray:
    tint = (1 - _WHITE) * band_colors(wavelengths, bands)[number] + _WHITE
    return encode(np.linspace(0, 1, _LEVELS, dtype=np.float32)[:, None] * tint)


@lru_cache(maxsize=1)
def _ramp_of_light() -> np.ndarray:
    return encode(np.repeat(np.linspace(0, 1, _LEVELS, dtype=np.float32)[:, None], 3, 1))


@lru_cache(maxsize=4)
def _ramp(names: tuple[str, ...]) -> np.ndarray:
    anchors = np.stack([_color(name) for name in names]).astype(np.float64)
    at, places = np.linspace(0, 1, _LEVELS), np.linspace(0, 1, len(names))
    return np.stack([np.interp(at, places, channel) for channel in anchors.T], 1).astype(np.uint8)


def _color(name: str) -> np.ndarray:
    return np.asarray([int(name[k : k + 2], 16) for k in (1, 3, 5)], np.uint8)
