"""The page of cassi-live: the state, the scene in colour, a band, spectra of regions, messages."""

import re
import time
from html import escape

import numpy as np
import panel as pn
from bokeh.events import Tap
from bokeh.models import ColumnDataSource, CustomJS, DataRange1d, Span
from bokeh.plotting import figure
from param.parameterized import Event
from tabulate import tabulate

from cassi.apps.live.engine import Live, View
from cassi.apps.view.pages.figures import PictureFigure, grey, make_figure
from cassi.apps.view.pages.parts import STYLE, button, field, heading, later, pane, say, text
from cassi.apps.view.pages.template import Page
from cassi.viz.points import COLORS, choose_points, region_spectrum

PERIOD = 200
"""Milliseconds from one look for a new cube to the next."""
_PIXELS = 2**19  # of a picture, sent with every frame
_WIDTH = 348
_NEAR = 0.03  # of the picture's longer side: a click removes a region as close as this
_LOST = """
const line = document.createElement("p");
line.setAttribute("role", "alert");
line.style.cssText = "margin: 0; color: var(--bad); font-weight: 600";
line.textContent = "cassi-live has ended: this page shows what came last.";
document.querySelector("header").append(line);
"""


class LiveSection:
    """What a tab shows of the frames.

    Args:
        live: what it shows.
    """

    def __init__(self, live: Live) -> None:
        self.live, self.number, self.regions = live, 0, list[tuple[int, int]]()
        self.state = pane()
        self.facts = pane(styles={"flex": "1 1 700px"})
        self.pause = button("Pause", 100)
        self.pause.on_click(self._pause)
        self.picture = PictureFigure("Scene", _PIXELS)
        self.band_picture = PictureFigure("Band", _PIXELS)
        self.marks = ColumnDataSource({name: [] for name in ("x", "y", "color", "number")})
        for each in (self.picture, self.band_picture):
            self._mark(each.figure)
        self.band = pn.widgets.IntSlider(
            name="Band", start=1, end=2, value=1, width=_WIDTH, stylesheets=[STYLE]
        )
        self.points = field("Regions: row, column; row, column", "128, 128; 40, 200", _WIDTH)
        self.lines = ColumnDataSource({name: [] for name in ("xs", "ys", "color")})
        self.place = Span(dimension="height", line_color="#7b8794", line_dash="dashed")
        self.spectra = self._plot()
        self.legend, self.caption = pane(), pane()
        self.message, self.check = text(), text()
        self.band.param.watch(lambda event: later(self._draw), "value")
        self.points.param.watch(lambda event: self._choose(), "value")
        wrapped = {"flex_wrap": "wrap", "align_items": "flex-start", "sizing_mode": "stretch_width"}
        self.content = pn.FlexBox(
            pn.Column(self.picture.view, self.points, margin=0),
            pn.Column(self.band_picture.view, self.band, margin=0),
            pn.FlexBox(
                pn.Column(self.caption, pn.pane.Bokeh(self.spectra), margin=0),
                self.legend,
                styles={"flex": "1 1 460px"},
                **wrapped,
            ),
            visible=False,
            **wrapped,
        )
        status = pn.FlexBox(self.state, self.pause, self.facts, gap="8px 12px", **wrapped)
        status.align_items = "center"
        self.view = pn.Column(
            heading("Live"), status, self.check, self.content, sizing_mode="stretch_width"
        )
        self.messages = pn.Column(
            heading("Messages"), self.message, sizing_mode="stretch_width", visible=False
        )
        pn.state.add_periodic_callback(self.refresh, PERIOD)
        pn.state.onload(self.refresh)

    def refresh(self) -> None:
        """Show the state, and the last cube if it is a new one."""
        live, view = self.live, self.live.view
        kind = live.state.partition(":")[0]
        self.state.object = f'<p class="state {kind}" role="status">{escape(live.state)}</p>'
        self.pause.name = "Resume" if live.paused.is_set() else "Pause"
        self.pause.disabled = kind == "stopped"
        self.messages.visible = bool(live.notices.lines)
        say(self.message, live.notices.lines[::-1])
        self.facts.object = self._list_facts(view)
        if view is None or view.number == self.number:
            return
        self.number = view.number
        if not self.regions:
            self.band.param.update(end=len(view.cube), value=len(view.cube) // 2)
            self.content.visible = True
            self._choose()
        later(self._draw)

    def _list_facts(self, view: View | None) -> str:
        live = self.live
        counts = f"{live.done:,} done, {live.dropped:,} dropped, {live.broken:,} broken"
        rows = [("Frames", counts)]
        if view is not None:
            rows = [
                ("Last frame", f"{_say_age(time.time() - view.came)} ago"),
                *rows,
                ("Delay", f"{view.delay:.2f} s, of them {view.seconds:.2f} s for the cube"),
                ("Name", view.name),
                ("Method", view.method),
            ]
        items = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
        return f"<dl>{''.join(items)}</dl>"

    def _pause(self, event: Event) -> None:
        paused = self.live.paused
        paused.clear() if paused.is_set() else paused.set()
        self.refresh()

    def _mark(self, picture: figure) -> None:
        """Draw regions in a picture; a click sets or removes one."""
        square = {"marker": "square", "size": 13, "fill_color": None, "source": self.marks}
        picture.scatter("x", "y", line_color="white", line_width=5, **square)
        picture.scatter("x", "y", line_color="color", line_width=2.5, **square)
        shift = {"x_offset": 12, "y_offset": -8, "source": self.marks}
        label = {"background_fill_color": "color", "border_line_color": "white", "padding": 3}
        letters = {"text_font_size": "12px", "text_font_style": "bold", "text_color": "white"}
        picture.text("x", "y", text="number", border_radius=4, **label, **letters, **shift)
        picture.on_event(Tap, lambda event: self._click(int(event.y), int(event.x)))

    def _plot(self) -> figure:
        plot = make_figure(440, _WIDTH, y_range=DataRange1d(start=0))
        plot.multi_line("xs", "ys", line_color="color", line_width=2.5, source=self.lines)
        plot.add_layout(self.place)
        plot.yaxis.axis_label = "intensity"
        return plot

    def _click(self, row: int, column: int) -> None:
        view = self.live.view
        if view is None:
            return
        near = _NEAR * max(view.cube.shape[1:])
        regions = [
            each for each in self.regions if max(abs(each[0] - row), abs(each[1] - column)) > near
        ]
        if len(regions) == len(self.regions) and min(row, column) >= 0:
            regions = [*regions, (row, column)][-len(COLORS) :]
        self.points.value = _name_regions(regions)

    def _choose(self) -> None:
        """Take the regions of the field that lie in the picture; of none, three are chosen."""
        view = self.live.view
        if view is None:
            return
        pairs = re.findall(r"(\d{1,9})\s*,\s*(\d{1,9})", self.points.value or "")
        height, width = view.cube.shape[1:]
        places = [(int(row), int(column)) for row, column in pairs]
        inside = [each for each in places if each[0] < height and each[1] < width]
        self.regions = inside[: len(COLORS)] or choose_points(view.cube, 3)
        self.points.value = _name_regions(self.regions)
        later(self._draw)

    def _draw(self) -> None:
        view, warnings = self.live.view, self.live.warnings
        if view is None:
            return
        band = min(self.band.value, len(view.cube)) - 1
        self.picture.show(view.picture, "in colour; a click sets or removes a region")
        at = view.wavelengths or tuple(range(1, len(view.cube) + 1))
        unit = "nm" if view.wavelengths else "band"
        name = f"{band + 1} of {len(view.cube)}" + f", {at[band]:g} nm" * bool(view.wavelengths)
        self.band_picture.show(grey(view.cube[band]), name)
        curves = [region_spectrum(view.cube, row, column) for row, column in self.regions]
        colors = list(COLORS[: len(curves)])
        self.lines.data = {"xs": [at] * len(curves), "ys": curves, "color": colors}
        self.marks.data = {
            "x": [column + 0.5 for _, column in self.regions],
            "y": [row + 0.5 for row, _ in self.regions],
            "color": colors,
            "number": [str(index + 1) for index in range(len(curves))],
        }
        self.place.location = at[band]
        self.spectra.xaxis.axis_label = "wavelength (nm)" if view.wavelengths else "band"
        self.caption.object = f'<p class="caption">Spectra of {len(curves)} regions</p>'
        rows = [
            (f'<i style="color:{color}">■</i> {number}', *region, f"{curve.mean():.3g}", at[peak])
            for number, (region, curve, color, peak) in enumerate(
                zip(self.regions, curves, colors, map(np.argmax, curves), strict=True), 1
            )
        ]
        names = ("Region", "Row", "Column", "Mean", f"Peak, {unit}")
        self.legend.object = str(tabulate(rows, names, "unsafehtml", disable_numparse=True))
        said = warnings or "camera check: nothing found"
        say(self.check, said, "warning" if warnings else "good")


def _say_age(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{f'{minutes} min ' * (minutes > 0)}{rest} s"


def _name_regions(regions: list[tuple[int, int]]) -> str:
    return "; ".join(f"{row}, {column}" for row, column in regions)


def make_page(live: Live) -> Page:
    """Return the page of a tab."""
    section = LiveSection(live)
    pn.state.curdoc.js_on_event("connection_lost", CustomJS(code=_LOST))
    return Page(
        "cassi-live",
        "Frames as they come. Everything stays on this machine.",
        {"Live": section.view, "Messages": section.messages},
        late=("Messages",),
    )
