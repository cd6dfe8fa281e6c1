"""The page that figures are drawn on, and the one way a PNG reaches the disk."""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

import numpy as np

from cassi.data.atomic import atomic_path

DPI = 100
DARK = "#101214"  # behind tinted bands
LIGHT = "#ffffff"  # behind pictures and curves
INK = "#22262b"
PALE = "#d7dbe0"


class Sheet:
    """A page measured in pixels, origin at the top left, drawn without pyplot's global state.

    Args:
        width: pixels.
        height: pixels.
        background: colour of the page.
    """

    def __init__(self, width: float, height: float, background: str = LIGHT) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = round(width), round(height)
        size = (self.width / DPI, self.height / DPI)
        self.figure = Figure(figsize=size, dpi=DPI, facecolor=background)
        FigureCanvasAgg(self.figure)
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

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Adds coordinate axes in a box of pixels."""
        return self.figure.add_axes(
            (
                left / self.width,
                1 - (top + height) / self.height,
                width / self.width,
                height / self.height,
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page as PNG."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", facecolor=self.figure.get_facecolor())
        write_bytes(path, buffer.getvalue())


def save_picture(path: str | os.PathLike[str], picture: np.ndarray) -> None:
    """Writes a uint8 picture (H, W, 3) as PNG, a pixel a pixel."""
    from matplotlib.image import imsave

    buffer = BytesIO()
    imsave(buffer, picture, format="png", origin="upper")
    write_bytes(path, buffer.getvalue())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file that is either whole or absent.

    Args:
        path: the final name; its folder exists.
        content: all of the file.

    Raises:
        OSError: if the folder is missing or cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
