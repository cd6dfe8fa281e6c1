"""The page of cassi-live: state, scene in colour, one band, spectra of regions, and messages."""

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

from cassi.apps.live.engine import FrameView, LiveReconstruction
from cassi.apps.view.pages.figures import PictureFigure, make_figure, make_grey
from cassi.apps.view.pages.parts import (
    STYLE,
    make_button,
    make_field,
    make_heading,
    make_html_pane,
    make_message_pane,
    schedule,
    show_message,
)
from cassi.apps.view.pages.template import Page
from cassi.viz.points import COLORS, choose_points, region_spectrum

REFRESH_MS = 200
"""Milliseconds between two updates of the page."""
_MAX_PICTURE_PIXELS = 2**19  # every frame sends its pictures to the browser
_PICTURE_WIDTH = 348
# A click removes a region that is nearer than this fraction of the longer side of the picture.
_CLICK_RADIUS_FRACTION = 0.03
_LOST_CONNECTION_SCRIPT = """
const line = document.createElement("p");
line.setAttribute("role", "alert");
line.style.cssText = "margin: 0; color: var(--bad); font-weight: 600";
line.textContent = "cassi-live has ended: this page shows the last cube.";
document.querySelector("header").append(line);
"""


class LiveSection:
    """The widgets of one tab: state, pictures, spectra and messages of a live reconstruction.

    Args:
        live: the reconstruction that all tabs share.
    """

    def __init__(self, live: LiveReconstruction) -> None:
        self.live, self.shown_number, self.regions = live, 0, list[tuple[int, int]]()
        self.state = make_html_pane()
        self.fact_list = make_html_pane(styles={"flex": "1 1 700px"})
        self.pause_button = make_button("Pause", 100)
        self.pause_button.on_click(self._pause)
        self.picture = PictureFigure("Scene", _MAX_PICTURE_PIXELS)
        self.band_picture = PictureFigure("Band", _MAX_PICTURE_PIXELS)
        self.marks = ColumnDataSource({name: [] for name in ("x", "y", "color", "number")})
        for picture in (self.picture, self.band_picture):
            self._add_region_marks(picture.figure)
        self.band = pn.widgets.IntSlider(
            name="Band", start=1, end=2, value=1, width=_PICTURE_WIDTH, stylesheets=[STYLE]
        )
        self.region_field = make_field(
            "Regions: row, column; row, column", "128, 128; 40, 200", _PICTURE_WIDTH
        )
        self.lines = ColumnDataSource({name: [] for name in ("xs", "ys", "color")})
        self.band_line = Span(dimension="height", line_color="#7b8794", line_dash="dashed")
        self.spectra = self._make_spectra_plot()
        self.legend, self.caption = make_html_pane(), make_html_pane()
        self.message, self.check_message = make_message_pane(), make_message_pane()
        self.band.param.watch(lambda event: schedule(self._draw), "value")
        self.region_field.param.watch(lambda event: self._choose_regions(), "value")
        wrapping = {
            "flex_wrap": "wrap",
            "align_items": "flex-start",
            "sizing_mode": "stretch_width",
        }
        self.content = pn.FlexBox(
            pn.Column(self.picture.view, self.region_field, margin=0),
            pn.Column(self.band_picture.view, self.band, margin=0),
            pn.FlexBox(
                pn.Column(self.caption, pn.pane.Bokeh(self.spectra), margin=0),
                self.legend,
                styles={"flex": "1 1 460px"},
                **wrapping,
            ),
            visible=False,
            **wrapping,
        )
        status = pn.FlexBox(
            self.state, self.pause_button, self.fact_list, gap="8px 12px", **wrapping
        )
        status.align_items = "center"
        self.view = pn.Column(
            make_heading("Live"),
            status,
            self.check_message,
            self.content,
            sizing_mode="stretch_width",
        )
        self.messages = pn.Column(
            make_heading("Messages"), self.message, sizing_mode="stretch_width", visible=False
        )
        pn.state.add_periodic_callback(self.refresh, REFRESH_MS)
        pn.state.onload(self.refresh)

    def refresh(self) -> None:
        """Show the state, and the last cube if it is a new one."""
        live, view = self.live, self.live.view
        kind = live.state.partition(":")[0]
        self.state.object = f'<p class="state {kind}" role="status">{escape(live.state)}</p>'
        self.pause_button.name = "Resume" if live.paused.is_set() else "Pause"
        self.pause_button.disabled = kind == "stopped"
        self.messages.visible = bool(live.notices.lines)
        show_message(self.message, live.notices.lines[::-1])
        self.fact_list.object = self._list_facts(view)
        if view is None or view.number == self.shown_number:
            return
        self.shown_number = view.number
        # The number of bands and the size of the picture are known only after the first cube.
        if not self.regions:
            self.band.param.update(end=len(view.cube), value=len(view.cube) // 2)
            self.content.visible = True
            self._choose_regions()
        schedule(self._draw)

    def _list_facts(self, view: FrameView | None) -> str:
        live = self.live
        counts = f"{live.n_done:,} done, {live.n_dropped:,} dropped, {live.n_broken:,} broken"
        rows = [("Frames", counts)]
        if view is not None:
            rows = [
                ("Last frame", f"{_format_age(time.time() - view.arrived_at)} ago"),
                *rows,
                (
                    "Delay",
                    f"{view.delay:.2f} s, of them {view.processing_seconds:.2f} s for the cube",
                ),
                ("Name", view.name),
                ("Method", view.method),
            ]
        if live.choice is not None:
            counts = f"{live.n_late:,} of {live.n_done:,} frames took longer"
            rows.append(("Deadline", f"{live.choice}; {counts}"))
        items = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
        return f"<dl>{''.join(items)}</dl>"

    def _pause(self, event: Event) -> None:
        pause_event = self.live.paused
        pause_event.clear() if pause_event.is_set() else pause_event.set()
        self.refresh()

    def _add_region_marks(self, picture: figure) -> None:
        """Draw the regions in a picture; a click adds or removes one."""
        square = {"marker": "square", "size": 13, "fill_color": None, "source": self.marks}
        picture.scatter("x", "y", line_color="white", line_width=5, **square)
        picture.scatter("x", "y", line_color="color", line_width=2.5, **square)
        shift = {"x_offset": 12, "y_offset": -8, "source": self.marks}
        label = {"background_fill_color": "color", "border_line_color": "white", "padding": 3}
        letters = {"text_font_size": "12px", "text_font_style": "bold", "text_color": "white"}
        picture.text("x", "y", text="number", border_radius=4, **label, **letters, **shift)
        picture.on_event(Tap, lambda event: self._toggle_region(int(event.y), int(event.x)))

    def _make_spectra_plot(self) -> figure:
        plot = make_figure(440, _PICTURE_WIDTH, y_range=DataRange1d(start=0))
        plot.multi_line("xs", "ys", line_color="color", line_width=2.5, source=self.lines)
        plot.add_layout(self.band_line)
        plot.yaxis.axis_label = "intensity"
        return plot

    def _toggle_region(self, row: int, column: int) -> None:
        view = self.live.view
        if view is None:
            return
        radius = _CLICK_RADIUS_FRACTION * max(view.cube.shape[1:])
        regions = [
            region
            for region in self.regions
            if max(abs(region[0] - row), abs(region[1] - column)) > radius
        ]
        # A click that removed no region adds one. Each region has its own colour. If there are too
        # few colours, the oldest region is removed.
        if len(regions) == len(self.regions) and min(row, column) >= 0:
            regions = [*regions, (row, column)][-len(COLORS) :]
        self.region_field.value = _format_regions(regions)

    def _choose_regions(self) -> None:
        """Take the regions of the text field that lie in the picture; choose three if none does."""
        view = self.live.view
        if view is None:
            return
        # Nine digits are enough for every picture.
        pairs = re.findall(r"(\d{1,9})\s*,\s*(\d{1,9})", self.region_field.value or "")
        height, width = view.cube.shape[1:]
        regions = [(int(row), int(column)) for row, column in pairs]
        inner_regions = [region for region in regions if region[0] < height and region[1] < width]
        self.regions = inner_regions[: len(COLORS)] or choose_points(view.cube, 3)
        self.region_field.value = _format_regions(self.regions)
        schedule(self._draw)

    def _draw(self) -> None:
        view, warnings = self.live.view, self.live.warnings
        if view is None:
            return
        band = min(self.band.value, len(view.cube)) - 1
        self.picture.show(view.picture, "in colour; a click sets or removes a region")
        positions = view.wavelengths or tuple(range(1, len(view.cube) + 1))
        unit = "nm" if view.wavelengths else "band"
        caption = f"{band + 1} of {len(view.cube)}"
        if view.wavelengths:
            caption += f", {positions[band]:g} nm"
        self.band_picture.show(make_grey(view.cube[band]), caption)
        curves = [region_spectrum(view.cube, row, column) for row, column in self.regions]
        colors = list(COLORS[: len(curves)])
        self.lines.data = {"xs": [positions] * len(curves), "ys": curves, "color": colors}
        # A mark lies in the middle of its pixel, whose edges have whole coordinates.
        self.marks.data = {
            "x": [column + 0.5 for _, column in self.regions],
            "y": [row + 0.5 for row, _ in self.regions],
            "color": colors,
            "number": [str(index + 1) for index in range(len(curves))],
        }
        self.band_line.location = positions[band]
        self.spectra.xaxis.axis_label = "wavelength (nm)" if view.wavelengths else "band"
        self.caption.object = f'<p class="caption">Spectra of {len(curves)} regions</p>'
        rows = [
            (
                f'<i style="color:{color}">■</i> {number}',
                *region,
                f"{curve.mean():.3g}",
                positions[peak],
            )
            for number, (region, curve, color, peak) in enumerate(
                zip(self.regions, curves, colors, map(np.argmax, curves), strict=True), 1
            )
        ]
        names = ("Region", "Row", "Column", "Mean", f"Peak, {unit}")
        self.legend.object = str(tabulate(rows, names, "unsafehtml", disable_numparse=True))
        check_lines = warnings or "camera check: nothing found"
        show_message(self.check_message, check_lines, "warning" if warnings else "good")


def _format_age(seconds: float) -> str:
    minutes, seconds_left = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds_left} s" if minutes else f"{seconds_left} s"


def _format_regions(regions: list[tuple[int, int]]) -> str:
    return "; ".join(f"{row}, {column}" for row, column in regions)


def make_page(live: LiveReconstruction) -> Page:
    """Return the page of a tab."""
    section = LiveSection(live)
    pn.state.curdoc.js_on_event("connection_lost", CustomJS(code=_LOST_CONNECTION_SCRIPT))
    return Page(
        "cassi-live",
        "Frames as they come. Everything stays on this machine.",
        {"Live": section.view, "Messages": section.messages},
        empty_sections=("Messages",),
    )
