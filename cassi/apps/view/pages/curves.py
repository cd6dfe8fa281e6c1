"""Spectra of regions: mean, spread as a band around it, error bars where there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from cassi.apps.view.cubes import Shown, Spectrum
from cassi.apps.view.pages.parts import later
from cassi.viz.points import COLORS

_SAID = "Spectra: mean and spread of regions, dashed the truth where it is known"


class Curves:
    """One figure for all curves of a cube."""

    def __init__(self) -> None:
        self.figure: Any = figure(
            width=560, height=440, tools="pan,wheel_zoom,reset,save", toolbar_location="above"
        )
        self.figure.toolbar.logo = None
        self.figure.yaxis.axis_label = "value in the cube"
        self.sources = {
            name: ColumnDataSource({"x": [], "y": []})
            for name in ("pointer", "spread", "mean", "truth", "error")
        }
        draw, source = self.figure, self.sources
        draw.patches("x", "y", source=source["spread"], color="color", alpha=0.18, line_width=0)
        draw.multi_line("x", "y", source=source["mean"], color="color", line_width=2.4)
        draw.multi_line("x", "y", source=source["truth"], color="color", line_dash="dashed")
        draw.multi_line("x", "y", source=source["error"], color="color")
        draw.line("x", "y", source=source["pointer"], color="#7a828c", line_width=1.5)
        for name in ("spread", "mean", "truth", "error"):
            source[name].data = {"x": [], "y": [], "color": []}
        self.said = pn.pane.HTML("", margin=(0, 10))
        self.view = pn.Column(self.said, pn.pane.Bokeh(self.figure), margin=0)
        self._say("")

    def point(self, x: np.ndarray, y: np.ndarray, name: str) -> None:
        """Draw the spectrum under the pointer."""
        self.sources["pointer"].data = {"x": x, "y": y}
        self._say(f"grey: {name}")

    def draw(self, shown: Shown, found: Sequence[Spectrum]) -> None:
        """Draw the spectra of regions in place of those before."""
        x, lines = shown.axis(), {name: _Lines() for name in ("spread", "mean", "truth", "error")}
        for number, each in enumerate(found):
            color = COLORS[number % len(COLORS)]
            low, high = each.mean - each.spread, each.mean + each.spread
            around = np.concatenate([low, high[::-1]])
            lines["spread"].add(np.concatenate([x, x[::-1]]), around, color)
            lines["mean"].add(x, each.mean, color)
            if each.truth is not None:
                lines["truth"].add(x, each.truth, color)
            if each.error is not None:
                for place, value, error in zip(x, each.mean, each.error, strict=True):
                    ends = np.array([value - error, value + error])
                    lines["error"].add(np.array([place, place]), ends, color)
        label = "band" if shown.wavelengths is None else "wavelength / nm"
        later(lambda: self._update(lines, label))

    def _update(self, lines: dict[str, _Lines], label: str) -> None:
        self.figure.xaxis.axis_label = label
        for name, each in lines.items():
            self.sources[name].data = {"x": each.x, "y": each.y, "color": each.color}
        self._say("")

    def _say(self, pointer: str) -> None:
        shown = f"{_SAID}; {pointer}" if pointer else _SAID
        self.said.object = f'<p style="margin:4px 0">{shown}</p>'


class _Lines:
    """Columns of a source."""

    def __init__(self) -> None:
        self.x: list[np.ndarray] = []
        self.y: list[np.ndarray] = []
        self.color: list[str] = []

    def add(self, x: np.ndarray, y: np.ndarray, color: str) -> None:
        self.x.append(x)
        self.y.append(y)
        self.color.append(color)
