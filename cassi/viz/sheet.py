"""Pages for figures of papers, measured in inches, that matplotlib draws, and their style."""

from __future__ import annotations

import functools
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.data.atomic import atomic_path
from cassi.viz.canvas import INK, LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PAPER_DPI = 220
SMALL, BODY = 6.5, 8.0  # sizes of text in figures for papers, points


class Sheet:
    """A page with its origin at the top left, as large as its contents. Lengths are inches."""

    def __init__(self) -> None:
        self.figure = make_figure(1, 1)
        self.page = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.page.set(xlim=(0, 1), ylim=(1, 0), autoscale_on=False)
        self.page.set_axis_off()

    def text(self, content: str, x: float, y: float, **style: Any) -> None:
        """Write a line of text at (x, y); the style's `size` is in points, 72 per inch."""
        self.page.text(x, y, content, **{"color": INK, "size": 11, "va": "baseline", **style})

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add coordinate axes in a box."""
        return self.figure.add_axes((left, 1 - top - height, width, height))

    def encode(self, suffix: str = "png", margin: float = 0.16) -> bytes:
        """Return the page as the bytes of a file, with a margin (inches) around its contents."""
        from matplotlib.transforms import Bbox

        # The borders are rounded to whole pixels. Otherwise each picture would be shifted by a part
        # of a pixel, and blurred.
        dpi = self.figure.dpi
        box = np.array(self.figure.get_tightbbox().padded(margin).extents) * dpi
        page_box = Bbox.from_extents(*np.floor(box[:2]) / dpi, *np.ceil(box[2:]) / dpi)
        # Without the date, the same cubes give the same bytes.
        metadata = {"CreationDate": None} if suffix == "pdf" else None
        buffer = BytesIO()
        self.figure.savefig(buffer, format=suffix, bbox_inches=page_box, metadata=metadata)
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page as PNG."""
        write_bytes(path, self.encode())

    def save_both(self, folder: str | os.PathLike[str], name: str) -> None:
        """Write `<name>.png` and `<name>.pdf`, each whole or not at all."""
        for suffix in ("png", "pdf"):
            write_bytes(Path(folder) / f"{name}.{suffix}", self.encode(suffix, margin=0.08))


def escape_label(text: str) -> str:
    """Return a label that matplotlib shows without interpreting it."""
    # Between two $ matplotlib reads mathematics, and a legend leaves out labels that begin with _.
    # A space of zero width hides the _ from it.
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def shorten_to_fit(name: str, tail: str, room: float, size: float = SMALL) -> str:
    """Return `name` + `tail`, with the middle of the name left out so that it fits in `room`.

    `room` is a width and `size` the size of the text, both in points.
    """
    from matplotlib.textpath import TextPath

    short_name = name
    for length in range(len(name) - 2, 1, -1):
        if TextPath((0, 0), short_name + tail, size=size).get_extents().width <= room:
            break
        short_name = f"{name[: (length + 1) // 2]}…{name[len(name) - length // 2 :]}"
    return short_name + tail


def tidy(axes: Axes) -> None:
    """Give axes the style of all plots: no spines above and at the right, thin ticks, a grid."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    axes.grid(axis="y", color="#e3e6ea", lw=0.5)
    axes.set_axisbelow(True)


def label_integers(axis: Axis) -> None:
    """Put labels at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True)


def make_figure(width: float, height: float) -> Figure:
    """Make a figure of a width and a height in inches."""
    # Not by pyplot, which keeps a global list of figures: they would never be freed, and pyplot may
    # not be used by two threads at once.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    _drop_user_settings()
    figure = Figure(figsize=(width, height), dpi=PAPER_DPI, facecolor=LIGHT)
    FigureCanvasAgg(figure)
    return figure


@functools.cache
def _drop_user_settings() -> None:
    """Drop the settings of a `matplotlibrc` if PYTHONSAFEPATH is set."""
    import matplotlib

    # Matplotlib first looks for this file in the current folder. PYTHONSAFEPATH says that this
    # folder is not trusted, and a setting such as `text.usetex` starts programs.
    if os.environ.get("PYTHONSAFEPATH"):
        matplotlib.rcdefaults()


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that is complete or absent, never cut; raises OSError if that fails."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
