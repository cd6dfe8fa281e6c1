"""The page of cassi-live: colour picture, a band, spectra of regions, messages."""

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import panel as pn

from cassi.apps.live.engine import Live, View
from cassi.apps.view.pages.figures import grey
from cassi.apps.view.pages.parts import field, heading, say, table, text
from cassi.viz.points import choose_points, region_spectrum

PERIOD = 200
"""Milliseconds from one look for a new cube to the next."""
_COLORS = ("#b3261e", "#00629d", "#2e6b00", "#7a4a00", "#6a1b9a", "#00696b")
_WIDTH, _HEIGHT, _EDGE = 420, 260, 34


class Page:
    """The page of one tab.

    Args:
        live: what it shows.
    """

    def __init__(self, live: Live) -> None:
        self.live, self.number, self.regions = live, 0, list[tuple[int, int]]()
        side = {"width": 384, "height": 384}
        self.picture = pn.pane.PNG(None, alt_text="The scene in colour", **side)
        self.band_picture = pn.pane.PNG(None, alt_text="The chosen band", **side)
        self.band = pn.widgets.IntSlider(name="Band", start=1, end=2, value=1, width=384)
        self.points = field("Regions: row, column; row, column", "128, 128; 40, 200", 384)
        self.spectra = pn.pane.HTML("", width=_WIDTH)
        self.facts, self.message, self.check = pn.pane.HTML(""), text(), text()
        self.band.param.watch(lambda event: self._draw(), "value")
        self.points.param.watch(lambda event: self._choose(), "value")
        self.view = pn.Column(
            heading("Live"),
            self.facts,
            self.check,
            pn.Row(
                pn.Column(self.picture),
                pn.Column(self.band, self.band_picture),
                pn.Column(self.points, self.spectra),
            ),
            self.message,
        )
        pn.state.add_periodic_callback(self.refresh, PERIOD)
        pn.state.onload(self.refresh)

    def refresh(self) -> None:
        """Show the last cube, if it is a new one."""
        live, view = self.live, self.live.view
        say(self.message, live.messages[-4:])
        if view is None:
            say(self.message, live.messages[-4:] or "waits for the first frame")
            return
        if view.number == self.number:
            return
        self.number = view.number
        if not self.regions:
            self.regions = choose_points(view.cube, 3)
            self.band.end = len(view.cube)
            self.band.value = len(view.cube) // 2
        self._draw()

    def _choose(self) -> None:
        pairs = re.findall(r"(\d+)\s*,\s*(\d+)", self.points.value or "")
        view = self.live.view
        if view is None:
            return
        height, width = view.cube.shape[1:]
        found = [(int(row), int(column)) for row, column in pairs[: len(_COLORS)]]
        inside = [each for each in found if each[0] < height and each[1] < width]
        self.regions = inside or choose_points(view.cube, 3)
        self._draw()

    def _draw(self) -> None:
        live, view = self.live, self.live.view
        if view is None:
            return
        self.picture.object = png(_marked(view.picture, self.regions))
        band = min(self.band.value, len(view.cube)) - 1
        self.band_picture.object = png(grey(view.cube[band]))
        self.spectra.object = draw_spectra(view, self.regions)
        rows = [
            ("Frame", view.name),
            ("Delay", f"{view.delay:.2f} s, of them {view.seconds:.2f} s for the cube"),
            ("Frames", f"{live.done} done, {live.dropped} dropped, {live.broken} broken"),
            ("Method", view.method),
            ("Band", _name_band(view, band)),
        ]
        self.facts.object = table(rows)
        say(
            self.check,
            live.warnings or "camera check: nothing found",
            "warning" * bool(live.warnings),
        )


def png(picture: np.ndarray) -> bytes:
    """Return a picture as a PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _marked(picture: np.ndarray, regions: Sequence[tuple[int, int]]) -> np.ndarray:
    marked = picture.copy()
    for (row, column), color in zip(regions, _COLORS, strict=False):
        rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        top, left = max(0, row - 4), max(0, column - 4)
        square = marked[top : row + 5, left : column + 5]
        square[:1], square[-1:], square[:, :1], square[:, -1:] = rgb, rgb, rgb, rgb
    return marked


def _name_band(view: View, band: int) -> str:
    if view.wavelengths is None:
        return f"{band + 1} of {len(view.cube)}"
    return f"{band + 1} of {len(view.cube)}, {view.wavelengths[band]:g} nm"


def draw_spectra(view: View, regions: Sequence[tuple[int, int]]) -> str:
    """Return the spectra of regions as an SVG."""
    spectra = [region_spectrum(view.cube, row, column) for row, column in regions]
    known = view.wavelengths or tuple(range(1, len(view.cube) + 1))
    first, last = known[0], known[-1]
    top = max((float(spectrum.max()) for spectrum in spectra), default=1.0) * 1.05 or 1.0
    wide, high = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
    lines = []
    for spectrum, color in zip(spectra, _COLORS, strict=False):
        places = " ".join(
            f"{_EDGE + wide * (at - first) / max(last - first, 1e-9):.1f},"
            f"{_EDGE + high * (1 - max(0.0, float(value)) / top):.1f}"
            for at, value in zip(known, spectrum, strict=True)
        )
        lines.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
    base, unit = _EDGE + high, "nm" if view.wavelengths else ""
    axes = (
        f'<path d="M{_EDGE} {_EDGE}V{base}H{_EDGE + wide}" fill="none" stroke="#5f6870"/>'
        f'<text x="{_EDGE}" y="{base + 18}">{first:g} {unit}</text>'
        f'<text x="{_EDGE + wide}" y="{base + 18}" text-anchor="end">{last:g} {unit}</text>'
        f'<text x="{_EDGE}" y="{_EDGE - 8}">{top:.3g}</text>'
    )
    return (
        f'<svg role="img" aria-label="Spectra of {len(spectra)} regions" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-size="13">{axes}{"".join(lines)}</svg>'
    )


def make_page(live: Live) -> Any:
    """Return the page of a tab."""
    return Page(live).view
