"""Figures of the pages: plots, pictures that can be zoomed, and a mask drawn over its frame."""

from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from cassi.apps.view.pages.parts import make_html_pane, schedule
from cassi.viz.checks import white_level
from cassi.viz.color import encode

# Two figures of this width fit beside each other on a tablet.
_FIGURE_WIDTH, _MAX_FIGURE_HEIGHT = 348, 620
_IMAGE_COLUMNS = ("image", "x", "y", "dw", "dh")

PAIR_WIDTH = 2 * (_FIGURE_WIDTH + 40)  # 40 pixels for the axis of each
"""Pixels that two pictures take beside each other."""


def make_figure(width: int, height: int, **options: Any) -> figure:
    """Return a figure whose lines and letters are readable on a light and on a dark page."""
    plot = figure(
        width=width,
        height=height,
        tools="pan,wheel_zoom,reset,save",
        toolbar_location="above",
        **options,
    )
    plot.toolbar.logo = None
    plot.background_fill_color = plot.border_fill_color = None  # the page's
    line_color = "#7b8794"
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = line_color
    plot.axis.major_tick_line_color = plot.axis.axis_line_color = plot.outline_line_color = (
        line_color
    )
    plot.axis.minor_tick_line_color = None
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = line_color, 0.3
    return plot


class PictureFigure:
    """A picture that can be moved and zoomed. Its axes count pixels from the top left.

    Args:
        name: name of the picture, which a screen reader speaks.
        max_pixels: about the largest number of pixels that is sent to the page. Rows and columns
            of a larger picture are left out evenly.
    """

    def __init__(self, name: str, max_pixels: int = 2**22) -> None:
        self.figure = make_figure(
            _FIGURE_WIDTH, _FIGURE_WIDTH, x_range=Range1d(0, 1), y_range=Range1d(1, 0)
        )
        self.figure.grid.visible = False
        self.max_pixels = max_pixels
        self._data = ColumnDataSource({name: [] for name in _IMAGE_COLUMNS})
        self.figure.image_rgba(**{name: name for name in _IMAGE_COLUMNS}, source=self._data)
        self.caption = make_html_pane(width=_FIGURE_WIDTH)
        self.name = name
        self.view = pn.Column(self.caption, pn.pane.Bokeh(self.figure), margin=0)

    def show(self, rgb: np.ndarray, caption: str) -> None:
        """Draw a picture, uint8 `(H, W, 3)`, with a caption."""
        height, width = rgb.shape[:2]
        stride = max(1, round((height * width / self.max_pixels) ** 0.5))
        small_picture = rgb[::stride, ::stride]
        # Bokeh takes a picture as one 32-bit number for each pixel, with alpha as its last byte.
        rgba = np.full((*small_picture.shape[:2], 4), 255, np.uint8)
        rgba[..., :3] = small_picture
        line = escape(f"{self.name}: {caption}")
        self.caption.object = f'<p class="caption" role="status">{line}</p>'
        schedule(lambda: self._update(rgba.view(np.uint32)[..., 0], height, width))

    def _update(self, data: np.ndarray, height: int, width: int) -> None:
        x, y = self.figure.x_range, self.figure.y_range
        # A picture of the same size keeps the part that the user has zoomed into.
        if (x.reset_end, y.reset_start) != (width, height):
            x.update(start=0, end=width, reset_start=0, reset_end=width)
            y.update(start=height, end=0, reset_start=height, reset_end=0)
            factor = min(_FIGURE_WIDTH / width, _MAX_FIGURE_HEIGHT / height)
            self.figure.frame_width = max(round(factor * width), 60)
            self.figure.frame_height = max(round(factor * height), 60)
        values = ([data], [0], [0], [width], [height])
        self._data.data = dict(zip(_IMAGE_COLUMNS, values, strict=True))


def make_grey(image: np.ndarray) -> np.ndarray:
    """Return an image `(H, W)` in grey, uint8 `(H, W, 3)`; its 99.5 % quantile becomes white."""
    return np.repeat(encode(image / white_level(image))[..., None], 3, axis=2)


def overlay_mask(
    frame: np.ndarray, mask: np.ndarray, offset: float, axis: int, strength: float = 0.5
) -> np.ndarray:
    """Return a frame in grey, with the mask in red where one band falls.

    Args:
        frame: frame of the detector, `(H', W')`.
        mask: mask of the camera, `(H, W)`.
        offset: offset of the band along the axis, pixels; rounded to whole ones.
        axis: axis of the dispersion.
        strength: opacity of the mask, 0 to 1.

    Returns:
        A picture `(H', W', 3)`, uint8.
    """
    mask_values = np.zeros(frame.shape, np.float32)
    start = round(offset)
    mask_slices = [slice(0, length) for length in mask.shape]
    frame_slices = [slice(0, length) for length in frame.shape]
    # A band may lie partly or wholly outside of the detector.
    first, last = max(0, start), min(frame.shape[axis], start + mask.shape[axis])
    if first < last:
        frame_slices[axis] = slice(first, last)
        mask_slices[axis] = slice(first - start, last - start)
        cropped_mask = mask[tuple(mask_slices)] / max(float(mask.max()), 1e-6)
        rows, columns = cropped_mask.shape
        mask_values[tuple(frame_slices)][:rows, :columns] = cropped_mask
    mask_weight = (strength * mask_values)[..., None]
    red = np.asarray((255.0, 70.0, 40.0), np.float32)
    return (make_grey(frame) * (1 - mask_weight) + red * mask_weight).astype(np.uint8)
