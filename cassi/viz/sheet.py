"""What figures are drawn on: pages measured in pixels, and figures for papers in inches."""

from __future__ import annotations

import functools
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.data.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

DPI = 100
DARK = "#101214"  # behind tinted bands
LIGHT = "#ffffff"  # behind pictures and curves
INK = "#22262b"
PALE = "#d7dbe0"
PAPER_DPI = 220
SMALL, BODY = 6.5, 8.0  # points


class Sheet:
    """A page measured in pixels, origin at the top left."""

    def __init__(self, width: float, height: float, background: str = LIGHT) -> None:
        self.width, self.height = round(width), round(height)
        self.figure = make_figure(self.width / DPI, self.height / DPI, DPI, background)
        self.page = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.page.set_axis_off()
        self.page.set_autoscale_on(False)
        self._hold()

    def _hold(self) -> None:
        self.page.set_xlim(0, self.width)
        self.page.set_ylim(self.height, 0)

    def image(
        self, picture: np.ndarray, left: float, top: float, width: float, height: float
    ) -> None:
        """Places a uint8 picture, (H, W) grey or (H, W, 3), in a box of pixels."""
        if picture.ndim == 2:
            picture = np.repeat(picture[..., None], 3, axis=2)
        extent = (left, left + width, top + height, top)
        self.page.imshow(picture, extent=extent, aspect="auto", interpolation="antialiased")
        self._hold()

    def text(self, content: str, x: float, y: float, **style: Any) -> None:
        """Writes a line; ``size`` is in points, 72 an inch at 100 pixels an inch."""
        self.page.text(x, y, content, **{"color": INK, "size": 11, "va": "baseline", **style})

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Adds coordinate axes in a box of pixels."""
        across, up = self.width, self.height
        box = (left / across, 1 - (top + height) / up, width / across, height / up)
        return self.figure.add_axes(box)

    def scale(self, colors: ScalarMappable, label: str, *box: float) -> None:
        """Draws a scale in the box of `axes`, with its label to the right."""
        bar = self.figure.colorbar(colors, cax=self.axes(*box))
        bar.set_label(label, color=PALE, size=11)
        bar.ax.tick_params(labelsize=9, colors=PALE, width=0.5, length=2)
        bar.ax.yaxis.get_offset_text().set_color(PALE)
        bar.outline.set_visible(False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page as PNG."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", facecolor=self.figure.get_facecolor())
        write_bytes(path, buffer.getvalue())

    def pixels(self) -> np.ndarray:  # (H, W, 3)
        """Returns the page as 8-bit RGB."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = self.figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3]


def literal(text: str) -> str:
    """Keeps matplotlib from reading mathematics in a label, or hiding one that starts with _."""
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def fitting(name: str, tail: str, room: float, size: float = SMALL) -> str:
    """Shortens a name in the middle until it fits, with what follows it, into ``room`` points."""
    from matplotlib.textpath import TextPath

    kept = name
    for length in range(len(name) - 2, 1, -1):
        if TextPath((0, 0), kept + tail, size=size).get_extents().width <= room:
            break
        kept = f"{name[: (length + 1) // 2]}…{name[len(name) - length // 2 :]}"
    return kept + tail


def tidy(axes: Axes) -> None:
    """Takes away what is no data: two spines, heavy ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    axes.grid(axis="y", color="#e3e6ea", lw=0.5)
    axes.set_axisbelow(True)


def label_integers(axis: Axis) -> None:
    """Labels whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True)


def make_figure(width: float, height: float, dpi: int = PAPER_DPI, color: str = LIGHT) -> Figure:
    """Makes a figure (inches) outside pyplot, so that nothing global knows of it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    _take_defaults()
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor=color)
    FigureCanvasAgg(figure)
    return figure


@functools.cache
def _take_defaults() -> None:
    """Forget the settings of a `matplotlibrc`, where Python is to distrust the current folder.

    Matplotlib reads one there first; its `text.usetex` starts programs.
    """
    import matplotlib

    if os.environ.get("PYTHONSAFEPATH"):
        matplotlib.rcdefaults()


def save_both(figure: Figure, folder: Path, name: str) -> None:
    """Writes ``<name>.png`` and ``<name>.pdf``, each whole or not at all."""
    # Without the date, the same cubes give the same bytes.
    for suffix, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        buffer = BytesIO()
        figure.savefig(buffer, format=suffix, metadata=metadata, dpi=PAPER_DPI)
        write_bytes(folder / f"{name}.{suffix}", buffer.getvalue())


def save_picture(path: str | os.PathLike[str], picture: np.ndarray) -> None:
    """Writes a uint8 picture (H, W, 3) as PNG, a pixel a pixel."""
    from matplotlib.image import imsave

    buffer = BytesIO()
    imsave(buffer, picture, format="png", origin="upper")
    write_bytes(path, buffer.getvalue())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file that is either whole or absent; OSError if it cannot be written."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
