"""The figures of the page: pictures on which regions are drawn, and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from cassi.apps.view.cubes import Region
from cassi.apps.view.pages.parts import later
from cassi.apps.view.pictures import Picture, as_rgba
from cassi.viz.points import COLORS

_WIDTH, _TALLEST = 440, 620
_COLUMNS = ("image", "x", "y", "dw", "dh")
_LARGEST = 2**22  # pixels sent to the page; more are thinned


class PictureFigure:
    """A picture, pixels counted from the top left.

    Args:
        name: of what it shows, for those who do not see it.
        regions: regions can be drawn on it.
    """

    def __init__(self, name: str, regions: bool = False) -> None:
        tools = "pan,wheel_zoom,reset,save" + (",box_select,lasso_select" if regions else "")
        self.figure: Any = figure(
            width=_WIDTH,
            height=_WIDTH,
            tools=tools,
            active_drag="box_select" if regions else "pan",
            x_range=Range1d(0, 1),
            y_range=Range1d(1, 0),
            toolbar_location="above",
        )
        self.figure.toolbar.logo = None
        self.figure.grid.visible = False
        self.figure.axis.minor_tick_line_color = None
        self._data = ColumnDataSource({name: [] for name in _COLUMNS})
        self.figure.image_rgba(**{name: name for name in _COLUMNS}, source=self._data)
        self._marks = ColumnDataSource({"x": [], "y": [], "color": []})
        self.figure.patches(
            "x", "y", source=self._marks, line_color="color", fill_alpha=0, line_width=2
        )
        self.size = (1, 1)
        self.caption = pn.pane.HTML("", margin=(0, 10), width=_WIDTH)
        self.name = name
        self.view = pn.Column(self.caption, pn.pane.Bokeh(self.figure), margin=0)

    def show(self, picture: Picture) -> None:
        """Draw a picture; its caption says what it shows."""
        self.size = picture.rgb.shape[0], picture.rgb.shape[1]
        height, width = self.size
        every = max(1, round((height * width / _LARGEST) ** 0.5))
        data = as_rgba(picture.rgb[::every, ::every])
        said = f"{self.name}: {picture.caption}"
        self.caption.object = f'<p style="margin:4px 0" role="status">{escape(said)}</p>'
        later(lambda: self._update(data, height, width))

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

    def mark(self, regions: Sequence[Region]) -> None:
        """Draw the outlines of regions, in the colours of their curves."""
        outlines = [region.outline or _corners(region) for region in regions]
        marks = {
            "x": [[column for _, column in corners] for corners in outlines],
            "y": [[row for row, _ in corners] for corners in outlines],
            "color": [COLORS[k % len(COLORS)] for k in range(len(regions))],
        }
        later(lambda: self._marks.update(data=marks))

    def on_region(self, do: Callable[[str, dict[str, Any]], None]) -> None:
        """Call a function with kind, "rect" or "poly", and corners when a region is drawn."""

        def handle(event: Any) -> None:
            geometry = event.geometry
            if event.final and geometry.get("type") in ("rect", "poly"):
                do(geometry["type"], geometry)

        self.figure.on_event("selectiongeometry", handle)

    def on_pointer(self, do: Callable[[float, float], None]) -> None:
        """Call a function with row and column under the pointer."""
        self.figure.on_event("mousemove", lambda event: do(event.y, event.x))


def _corners(region: Region) -> list[tuple[float, float]]:
    top, left = region.top, region.left
    bottom, right = top + region.height, left + region.width
    return [(top, left), (top, right), (bottom, right), (bottom, left)]
