"""Pictures of the detector: its frame in grey, and the mask over it."""

from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from cassi.apps.view.pages.parts import later, pane
from cassi.viz.checks import white_level
from cassi.viz.color import encode

_WIDTH, _TALLEST = 348, 620  # two beside each other fit on a tablet
_COLUMNS = ("image", "x", "y", "dw", "dh")

PAIR = 2 * (_WIDTH + 40)  # with an axis each
"""Pixels that two pictures take beside each other."""


def make_figure(width: int, height: int, **options: Any) -> figure:
    """Return a figure whose lines and letters are readable on the page's light and dark."""
    made = figure(
        width=width,
        height=height,
        tools="pan,wheel_zoom,reset,save",
        toolbar_location="above",
        **options,
    )
    made.toolbar.logo = None
    made.background_fill_color = made.border_fill_color = None  # the page's
    line = "#7b8794"
    made.axis.major_label_text_color = made.axis.axis_label_text_color = line
    made.axis.major_tick_line_color = made.axis.axis_line_color = made.outline_line_color = line
    made.axis.minor_tick_line_color = None
    made.grid.grid_line_color, made.grid.grid_line_alpha = line, 0.3
    return made


class PictureFigure:
    """A picture that can be moved and zoomed, pixels counted from the top left.

    Args:
        name: of what it shows, for those who do not see it.
        largest: pixels sent to the page; of more, every second or third is.
    """

    def __init__(self, name: str, largest: int = 2**22) -> None:
        self.figure = make_figure(_WIDTH, _WIDTH, x_range=Range1d(0, 1), y_range=Range1d(1, 0))
        self.figure.grid.visible = False
        self.largest = largest
        self._data = ColumnDataSource({name: [] for name in _COLUMNS})
        self.figure.image_rgba(**{name: name for name in _COLUMNS}, source=self._data)
        self.caption = pane(width=_WIDTH)
        self.name = name
        self.view = pn.Column(self.caption, pn.pane.Bokeh(self.figure), margin=0)

    def show(self, rgb: np.ndarray, caption: str) -> None:
        """Draw a picture, uint8 `(H, W, 3)`; the caption says what it shows."""
        height, width = rgb.shape[:2]
        every = max(1, round((height * width / self.largest) ** 0.5))
        thin = rgb[::every, ::every]
        full = np.full((*thin.shape[:2], 4), 255, np.uint8)
        full[..., :3] = thin
        said = escape(f"{self.name}: {caption}")
        self.caption.object = f'<p class="caption" role="status">{said}</p>'
        later(lambda: self._update(full.view(np.uint32)[..., 0], height, width))

    def _update(self, data: np.ndarray, height: int, width: int) -> None:
        x, y = self.figure.x_range, self.figure.y_range
        if (x.reset_end, y.reset_start) != (width, height):
            x.update(start=0, end=width, reset_start=0, reset_end=width)
            y.update(start=height, end=0, reset_start=height, reset_end=0)
            factor = min(_WIDTH / width, _TALLEST / height)
            self.figure.frame_width = max(round(factor * width), 60)
            self.figure.frame_height = max(round(factor * height), 60)
        values = ([data], [0], [0], [width], [height])
        self._data.data = dict(zip(_COLUMNS, values, strict=True))


def grey(image: np.ndarray) -> np.ndarray:
    """Return an image `(H, W)` in grey, uint8 `(H, W, 3)`, its 99.5 % quantile white."""
    return np.repeat(encode(image / white_level(image))[..., None], 3, axis=2)


def with_mask(
    frame: np.ndarray, mask: np.ndarray, offset: float, axis: int, strength: float = 0.5
) -> np.ndarray:
    """Return a frame `(H', W')` in grey with a mask `(H, W)` in red where one band falls.

    Args:
        frame: of the detector.
        mask: of the camera.
        offset: of the band along the axis, pixels; between pixels the nearest is drawn.
        axis: of the dispersion.
        strength: of the mask, 0 to 1.

    Returns:
        uint8 `(H', W', 3)`.
    """
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
    return (grey(frame) * (1 - share) + red * share).astype(np.uint8)
