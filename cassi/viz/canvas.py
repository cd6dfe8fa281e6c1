"""A page of pixels, with pictures, text, lines and colour scales, that Pillow draws."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from cassi.viz.png import save_png

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

DARK = "#101214"  # background of tinted bands
LIGHT = "#ffffff"  # background of pictures and curves
INK = "#22262b"  # text and lines on LIGHT
PALE = "#d7dbe0"  # text on DARK
BODY, TICK_LABEL, LEGEND = 15, 13, 14  # sizes of text, pixels
_MARGIN = 16  # pixels around the contents of a page
# Lines and filled shapes are drawn this many times larger, and then reduced to smooth edges.
_ENLARGEMENT = 4
# Tick labels have a common power of ten where the largest number is outside of this range.
_MIN_PLAIN, _MAX_PLAIN = 1e-3, 1e5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # spacings of ticks, times a power of ten
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Align = Literal["left", "center", "right"]


@dataclass(frozen=True)
class Scale:
    """Colours of the values from `low` to `high`.

    Attributes:
        low: value of the first colour.
        high: value of the last colour.
        palette: the colours, uint8 (256, 3).
    """

    low: float
    high: float
    palette: np.ndarray

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Return the number of the colour of each value, uint8; the values are cut at the ends."""
        levels = (values - self.low) / (self.high - self.low)
        return np.rint(255 * np.clip(levels, 0, 1, out=levels)).astype(np.uint8)


class _Layer(NamedTuple):
    """What covers a box of a page: a picture, or a colour with the opacity of its pixels."""

    left: int
    top: int
    right: int
    bottom: int
    source: Image | str
    mask: Image | None = None


class Canvas:
    """A page with its origin at the top left, as large as its contents. Lengths are pixels."""

    def __init__(self, background: str = LIGHT) -> None:
        self._background = background
        self._layers: list[_Layer] = []

    def image(
        self,
        picture: np.ndarray,
        left: float,
        top: float,
        width: float,
        height: float,
        palette: np.ndarray | None = None,
    ) -> None:
        """Place a uint8 picture in a box: (H, W, 3), or (H, W) with the colours of a palette.

        A picture that grows by a whole factor, or at least threefold, keeps its pixels as sharp
        squares.
        """
        from PIL import Image

        layer = Image.fromarray(np.ascontiguousarray(picture))
        size = max(1, round(width)), max(1, round(height))
        factors = [side / pixels for side, pixels in zip(size, layer.size, strict=True)]
        is_sharp = all(factor >= 3 or factor in (1, 2) for factor in factors)
        filter_ = Image.Resampling.NEAREST if is_sharp else Image.Resampling.HAMMING
        layer = layer.resize(size, filter_)
        if palette is not None:
            layer.putpalette(palette.tobytes())
            layer = layer.convert("RGB")
        self._add(left, top, size, layer)

    def text(
        self,
        content: str,
        x: float,
        y: float,
        *,
        size: int = BODY,
        color: str = INK,
        align: Align = "left",
        middle: bool = False,
        bold: bool = False,
        upright: bool = False,
    ) -> None:
        """Write a line of text on the base line `y`; with `middle`, `y` is the middle of digits.

        Text that is `upright` runs from bottom to top, and is centred at (x, y).
        """
        from PIL import Image, ImageDraw

        font, content = _load_font(size, bold), " ".join(content.splitlines())
        width, digit_height = font.getlength(content), -font.getbbox("0", anchor="ls")[1]
        left, top, right, bottom = map(int, font.getbbox(content, anchor="ls"))
        if right <= left or bottom <= top:
            return
        mask = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(mask).text((-left, -top), content, 255, font, anchor="ls")
        if upright:
            mask = mask.transpose(Image.Transpose.ROTATE_90)
            corner = x + top + digit_height / 2, y - (right - width / 2)
        else:
            shift = {"left": 0.0, "center": width / 2, "right": width}[align]
            corner = x + left - shift, y + top + (digit_height / 2 if middle else 0)
        self._add(*corner, mask.size, color, mask)

    def rectangle(self, left: float, top: float, width: float, height: float, color: str) -> None:
        """Fill a rectangle of whole pixels, at least one wide and high."""
        self._add(left, top, (max(1, round(width)), max(1, round(height))), color)

    def line(
        self, points: np.ndarray, color: str, width: float, dash: tuple[float, float] | None = None
    ) -> None:
        """Draw a line through points (N, 2) of x and y; `dash` has the lengths of dash and gap."""
        with self._shape(points, width, color) as (draw, place):
            radius, points = _ENLARGEMENT * width / 2, place(points)
            pieces = [points]
            if dash is not None:
                pieces = _cut_dashes(points, *(_ENLARGEMENT * length for length in dash))
            for piece in pieces:
                draw.line(piece.ravel().tolist(), 255, round(2 * radius))
                # Discs round the corners. A dash ends as it is cut.
                for x, y in (piece if dash is None else piece[1:-1]).tolist():
                    draw.ellipse((x - radius, y - radius, x + radius, y + radius), 255)

    def polygon(self, points: np.ndarray, color: str, opacity: float = 1.0) -> None:
        """Fill a polygon with the corners (N, 2)."""
        with self._shape(points, 0, color, opacity) as (draw, place):
            draw.polygon(place(points).ravel().tolist(), 255)

    def disc(
        self, x: float, y: float, radius: float, color: str, ring: float | None = None
    ) -> None:
        """Draw a disc; `ring` is the width of its border, inwards, that alone is drawn."""
        center = np.array([[x, y]])
        with self._shape(center, 2 * radius, color) as (draw, place):
            (column, row), r = place(center)[0], _ENLARGEMENT * radius
            box = (column - r, row - r, column + r, row + r)
            if ring is None:
                draw.ellipse(box, 255)
            else:
                draw.ellipse(box, None, 255, round(_ENLARGEMENT * ring))

    def scale(
        self, scale: Scale, label: str, left: float, top: float, width: float, height: float
    ) -> None:
        """Draw a colour scale in a box, with its numbers and its label to the right."""
        ramp = np.rint(np.linspace(255, 0, round(height))).astype(np.uint8)[:, None]
        self.image(ramp, left, top, width, height, scale.palette)
        ticks, names, label = choose_ticks(scale.low, scale.high, min(10, int(height / 28)), label)
        right, room = left + width, 0.0
        for tick, name in zip(ticks, names, strict=True):
            y = top + height * (scale.high - tick) / (scale.high - scale.low)
            self.rectangle(right, y, 3, 1, PALE)
            self.text(name, right + 7, y, size=TICK_LABEL, color=PALE, middle=True)
            room = max(room, text_width(name, TICK_LABEL))
        self.text(label, right + room + 21, top + height / 2, color=PALE, upright=True)

    def render(self) -> Image:
        """Return the page, with a margin around its contents."""
        from PIL import Image

        lefts, tops, rights, bottoms, *_ = zip(*self._layers, strict=True)
        x, y = min(lefts) - _MARGIN, min(tops) - _MARGIN
        size = max(rights) + _MARGIN - x, max(bottoms) + _MARGIN - y
        page = Image.new("RGB", size, self._background)
        for left, top, right, bottom, source, mask in self._layers:
            page.paste(source, (left - x, top - y, right - x, bottom - y), mask)
        return page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page as PNG."""
        save_png(path, np.asarray(self.render()))

    def _add(
        self,
        left: float,
        top: float,
        size: tuple[int, int],
        source: Image | str,
        mask: Image | None = None,
    ) -> None:
        x, y = round(left), round(top)
        self._layers.append(_Layer(x, y, x + size[0], y + size[1], source, mask))

    @contextmanager
    def _shape(
        self, points: np.ndarray, width: float, color: str, opacity: float = 1.0
    ) -> Iterator[tuple[ImageDraw, Callable[[np.ndarray], np.ndarray]]]:
        """Give a drawing of a layer around points, and the function that finds points on it."""
        from PIL import Image, ImageDraw

        reach = width / 2 + 1
        left, top = (int(low) for low in np.floor(points.min(0) - reach))
        right, bottom = (int(high) for high in np.ceil(points.max(0) + reach))
        size = _ENLARGEMENT * (right - left), _ENLARGEMENT * (bottom - top)
        large_mask = Image.new("L", size)

        def place(points: np.ndarray) -> np.ndarray:
            return _ENLARGEMENT * (points - (left, top))

        yield ImageDraw.Draw(large_mask), place
        mask = large_mask.reduce(_ENLARGEMENT)
        if opacity < 1:
            mask = mask.point([round(opacity * level) for level in range(256)])
        self._add(left, top, mask.size, color, mask)


def text_width(content: str, size: int) -> float:
    """Return the width of a line of text, pixels."""
    return _load_font(size, False).getlength(content)


def choose_ticks(
    low: float, high: float, count: int, label: str, integers: bool = False
) -> tuple[list[float], list[str], str]:
    """Choose round numbers from `low` to `high` for the ticks of an axis.

    Args:
        low: lower end of the axis.
        high: upper end.
        count: about the largest number of ticks.
        label: label of the axis.
        integers: the ticks are whole numbers.

    Returns:
        The numbers, their names, and the label. Where names would be long, the numbers have a
        power of ten in common, which the label then ends with.

    >>> choose_ticks(-0.1, 1.1, 3, "x")[:2]
    ([0.0, 0.5, 1.0], ['0.0', '0.5', '1.0'])
    >>> choose_ticks(-2e-6, 2.1e-6, 5, "x")[1:]
    (['−2', '−1', '0', '1', '2'], 'x (×10⁻⁶)')
    """
    min_step = max((high - low) / max(1, count), 1.0 if integers else 0.0)
    power = 10.0 ** math.floor(math.log10(min_step))
    steps = (factor * power for factor in _STEPS)
    step = next(
        step for step in steps if step >= min_step * (1 - 1e-9) and not (integers and step % 1)
    )
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ticks = [step * number for number in numbers]
    largest = max(abs(low), abs(high))
    exponent = 0
    if not _MIN_PLAIN <= largest < _MAX_PLAIN:
        exponent = math.floor(math.log10(largest))
        label = f"{label} (×10{str(exponent).translate(_SUPERSCRIPTS)})"
    unit = 10.0**exponent
    # As many decimals as the step has.
    places = next(n for n in range(20) if math.isclose(round(step / unit, n), step / unit))
    names = [f"{tick / unit:.{places}f}".replace("-", "−") for tick in ticks]
    return ticks, names, label


def _cut_dashes(points: np.ndarray, dash: float, gap: float) -> list[np.ndarray]:
    """Cut a line through points (N, 2) into dashes."""
    lengths = np.append(0, np.cumsum(np.hypot(*np.diff(points, axis=0).T)))
    starts = np.arange(0, lengths[-1], dash + gap)
    ends = np.minimum(starts + dash, lengths[-1])
    places = np.sort(np.concatenate([starts, ends, lengths[1:-1]]))
    corners = np.stack([np.interp(places, lengths, axis) for axis in points.T], axis=1)
    firsts, lasts = np.searchsorted(places, starts), np.searchsorted(places, ends, "right")
    return [corners[first:last] for first, last in zip(firsts, lasts, strict=True)]


@lru_cache(maxsize=16)
def _load_font(size: int, bold: bool) -> FreeTypeFont:
    """Load DejaVu Sans, which has Greek and signs of mathematics."""
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    # matplotlib brings the font. To find it takes no import of matplotlib.
    package = find_spec("matplotlib")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [Path(folder, "mpl-data", "fonts", "ttf", name) for folder in folders]
    for file in [*files, name]:  # by its name alone, where the system has it elsewhere
        try:
            return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)
        except OSError:
            continue
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
