"""Section 4: pictures of a cube, and the spectra of its regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from cassi.apps.view.cubes import Region, Shown, spectrum
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.curves import Curves
from cassi.apps.view.pages.figures import PictureFigure
from cassi.apps.view.pages.parts import TABLE, button, field, heading, say, table, text
from cassi.apps.view.pictures import Picture, band, colour, difference, index, ratio
from cassi.apps.view.session import Session
from cassi.viz.points import COLORS

COLOUR, BAND, DIFFERENCE, RATIO, INDEX = "Colour", "Band", "Difference", "Ratio", "Index"
_TRUTH = "the truth"
_ALL = "All bands together"


class LookSection:
    """The cube that is chosen, as one picture and as curves.

    Args:
        session: of this tab.
        changed: is called when another cube is looked at.
    """

    def __init__(self, session: Session, changed: Callable[[Shown], Any]) -> None:
        self.session, self.changed = session, changed
        self.regions: list[Region] = []
        self._colour: dict[str, Picture] = {}
        self._white: dict[str, float] = {}
        self.drawn: Picture | None = None
        self.cube = pn.widgets.Select(name="Cube", options=[], width=330)
        self.other = pn.widgets.Select(name="Compared with", options=[], width=330)
        self.kind = pn.widgets.RadioBoxGroup(
            name="Picture", options=[COLOUR, BAND, DIFFERENCE, RATIO, INDEX], inline=True
        )
        self.band = pn.widgets.IntSlider(name="Band", start=1, end=2, width=330)
        self.second = pn.widgets.IntSlider(name="Second band", start=1, end=2, width=330)
        self.together = pn.widgets.CheckBoxGroup(name="Difference", options=[_ALL], value=[_ALL])
        self.picture = PictureFigure("Cube", regions=True)
        self.curves = Curves()
        self.message = text()
        self.corners = [field(name, "", 80) for name in ("Row", "Column", "Rows", "Columns")]
        add, clear = button("Add region", 120), button("Remove regions", 140)
        self.table = pn.pane.HTML("", stylesheets=[TABLE], margin=(0, 10))
        self.cube.param.watch(lambda event: self._choose(), "value")
        for widget in (self.other, self.kind, self.band, self.second, self.together):
            widget.param.watch(lambda event: self._draw(), "value")
        add.on_click(lambda event: self._add_typed())
        clear.on_click(lambda event: self._clear())
        self.picture.on_region(self._add_drawn)
        self.picture.on_pointer(self._point)
        self.view = pn.Column(
            heading("4 Look"),
            pn.Row(self.cube, self.other),
            self.kind,
            pn.Row(self.band, self.second, self.together),
            self.message,
            pn.Row(self.picture.view, self.curves.view),
            pn.Row(*self.corners, add, clear),
            self.table,
            visible=False,
        )

    @property
    def shown(self) -> Shown | None:
        """The cube that is looked at."""
        return self.session.results.get(self.cube.value)

    def open(self, shown: Shown) -> None:
        """Look at a cube that the session has."""
        names = list(self.session.results)
        self.cube.options = names
        self.cube.value = shown.name
        self.view.visible = True
        self._choose()

    def _choose(self) -> None:
        shown = self.shown
        if shown is None:
            return
        count = len(shown.cube)
        if self.band.end != max(count, 2):
            self.band.param.update(end=max(count, 2), value=max(1, count // 2))
            self.second.param.update(end=max(count, 2), value=1)
        others = [name for name in self.session.results if name != shown.name]
        self.other.options = [_TRUTH, *others] if shown.truth is not None else others
        if others:
            self.other.value = others[-1]
        size = shown.cube.shape[1:]
        self.regions = [
            r for r in self.regions if r.top + r.height <= size[0] and r.left + r.width <= size[1]
        ]
        self._draw()
        self._draw_curves()
        self.changed(shown)

    def _draw(self) -> None:
        shown = self.shown
        if shown is None:
            return
        kind = self.kind.value
        self.band.visible = kind != COLOUR
        self.second.visible = kind in (RATIO, INDEX)
        self.together.visible = kind == DIFFERENCE
        try:
            self.drawn = self._picture(shown, kind)
        except ValueError as error:
            say(self.message, explain(error), "error")
            return
        say(self.message, "")
        self.picture.show(self.drawn)
        self._tabulate()

    def _picture(self, shown: Shown, kind: str) -> Picture:
        one = min(self.band.value, len(shown.cube)) - 1
        two = min(self.second.value, len(shown.cube)) - 1
        if kind == COLOUR:
            if shown.name not in self._colour:
                self._colour[shown.name] = colour(shown)
            return self._colour[shown.name]
        if kind == BAND:
            if shown.name not in self._white:
                self._white[shown.name] = shown.white()
            return band(shown, one, self._white[shown.name])
        if kind == RATIO:
            return ratio(shown, one, two)
        if kind == INDEX:
            return index(shown, one, two)
        other = self._other(shown)
        if other is None:
            raise ValueError("difference: expected another cube to compare with, there is none yet")
        return difference(shown, other, None if self.together.value else one)

    def _other(self, shown: Shown) -> Shown | None:
        if self.other.value == _TRUTH and shown.truth is not None:
            return Shown(_TRUTH, shown.truth, shown.wavelengths)
        return self.session.results.get(self.other.value)

    def _add_drawn(self, kind: str, geometry: dict[str, Any]) -> None:
        size = self.picture.size
        try:
            if kind == "rect":
                first, last = (geometry["y0"], geometry["x0"]), (geometry["y1"], geometry["x1"])
                found = Region.box(first, last, size)
            else:
                found = Region.inside(list(zip(geometry["y"], geometry["x"], strict=True)), size)
        except ValueError as error:
            say(self.message, explain(error), "error")
            return
        self._add(found)

    def _add_typed(self) -> None:
        try:
            given = [corner.value.strip() for corner in self.corners]
            top, left = _whole("Row", given[0]), _whole("Column", given[1])
            height, width = _whole("Rows", given[2] or "1"), _whole("Columns", given[3] or "1")
            found = Region.box((top, left), (top + height, left + width), self.picture.size)
        except ValueError as error:
            say(self.message, explain(error), "error")
            return
        self._add(found)

    def _add(self, region: Region) -> None:
        say(self.message, "")
        self.regions = [*self.regions, region][-len(COLORS) :]
        self._draw_curves()

    def _clear(self) -> None:
        self.regions = []
        self._draw_curves()

    def _point(self, row: float, column: float) -> None:
        shown = self.shown
        height, width = self.picture.size
        if shown is None or not (0 <= row < height and 0 <= column < width):
            return
        values = shown.cube[:, int(row), int(column)]
        self.curves.point(shown.axis(), values, f"pixel ({int(row)}, {int(column)})")

    def _draw_curves(self) -> None:
        shown = self.shown
        if shown is None:
            return
        found = [spectrum(shown, region) for region in self.regions]
        self.curves.draw(shown, found)
        self.picture.mark(self.regions)
        self._tabulate()

    def _tabulate(self) -> None:
        shown = self.shown
        if shown is None or not self.regions:
            self.table.object = ""
            return
        number = min(self.band.value, len(shown.cube)) - 1
        head = ["Region", "Pixels", f"Mean at {shown.band_name(number)}", "Spread", "Error"]
        rows = []
        for place, region in enumerate(self.regions, 1):
            found = spectrum(shown, region)
            error = "not known" if found.error is None else f"{found.error[number]:.4g}"
            numbers = [f"{found.mean[number]:.4g}", f"{found.spread[number]:.4g}", error]
            rows.append([f"{place}: {region.label}", str(found.pixels), *numbers])
        self.table.object = table(rows, head)


def _whole(name: str, given: str) -> int:
    if not given.lstrip("-").isdigit():
        raise ValueError(f"{name}: expected a whole number of pixels, got {given!r}")
    return int(given)
