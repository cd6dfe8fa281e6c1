"""Section 2: the summary of the inputs, and the values that can be corrected."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from html import escape

import panel as pn
from param.parameterized import Event

from cassi.apps.view.input_summary import InputSummary
from cassi.apps.view.jobs import FAILED, STOPPED, Job, Jobs, explain
from cassi.apps.view.pages.figures import PAIR, PictureFigure, grey, with_mask
from cassi.apps.view.pages.parts import (
    BARS,
    CARD,
    TABLE,
    button,
    field,
    heading,
    later,
    say,
    select,
    table,
    text,
)
from cassi.apps.view.runs import calibrate
from cassi.apps.view.session import Session

_FIELDS = {
    "system.step": ("Step, pixels per band", "2"),
    "system.bands": ("Bands", "as the widths say"),
    "wavelengths": ("Wavelengths, nm", "450-650, or a list"),
    "dark": ("Dark level", "a number, or auto"),
    "saturation": ("Saturation level", "auto"),
    "bits": ("Bits of the sensor", "none"),
}
_LEFT = 390  # pixels of the column with the values
_AXES = {"columns": None, "rows": "-2"}


class CameraSection:
    """The inputs in words, and the frame beside the frame that the camera predicts.

    Args:
        session: of this tab.
        jobs: that run a calibration.
        ready: called with the summary of the inputs, or None if they do not fit.
    """

    def __init__(
        self, session: Session, jobs: Jobs, ready: Callable[[InputSummary | None], object]
    ) -> None:
        self.session, self.jobs, self.ready = session, jobs, ready
        self.fields = {}
        for name, (label, hint) in _FIELDS.items():
            self.fields[name] = field(label, hint, 170)
            self.fields[name].param.watch(partial(self._given, name), "value")
        self.axis = select("Dispersion along", list(_AXES), 170)
        self.axis.param.watch(lambda event: self._set("system.axis", _AXES[event.new]), "value")
        self.band = pn.widgets.IntSlider(
            name="Mask at band", start=1, end=2, width=330, stylesheets=[BARS]
        )
        self.band.param.watch(lambda event: self._draw_frame(), "value")
        self.message = text("Choose a snapshot and a mask, or take the example.")
        self.table = pn.pane.HTML(
            "", stylesheets=[TABLE], sizing_mode="stretch_width", margin=(0, 10)
        )
        self.frame = PictureFigure("Frame")
        self.predicted = PictureFigure("Predicted frame")
        self.calibrate = button("Calibrate", 150)
        self.calibrate.on_click(lambda event: self._calibrate())
        self.estimates = text()
        self.table_of_estimates = pn.pane.HTML("", margin=(0, 10))
        self.summary: InputSummary | None = None
        self.pictures = pn.Column(
            pn.Row(self.frame.view, self.predicted.view, margin=0),
            self.band,
            pn.Row(self.calibrate, self.estimates),
            self.table_of_estimates,
            visible=False,
            width=PAIR,
        )
        values = [*self.fields.values()]
        first, rest = [*values[:2], self.axis, *values[2:3]], values[3:]
        left = pn.Column(
            pn.FlexBox(*first, margin=0),
            self.message,
            self.table,
            pn.Card(
                pn.FlexBox(*rest, margin=0),
                title="Sensor",
                collapsed=True,
                sizing_mode="stretch_width",
                margin=10,
                stylesheets=[CARD],
            ),
            styles={"flex": f"1 1 {_LEFT + 20}px"},
        )
        self.view = pn.Column(
            heading("2 Camera"),
            pn.FlexBox(left, self.pictures, margin=0),
            sizing_mode="stretch_width",
        )
        self._turn = 0
        self._job: Job | None = None

    async def refresh(self) -> None:
        """Read all inputs again. Of several calls at once only the last one changes the page."""
        self._turn += 1
        turn = self._turn
        step = _next_step(self.session.values)
        if step:
            self._refuse(step, "")
            return
        say(self.message, "reading …")
        try:
            found = await asyncio.to_thread(self.session.summarize)
        except Exception as error:
            if turn == self._turn:
                later(partial(self._refuse, explain(error)))
            return
        if turn == self._turn:
            later(partial(self._show, found))

    def _given(self, name: str, event: Event) -> None:
        self._set(name, event.new)

    def _set(self, name: str, value: str | None) -> None:
        if name == "wavelengths":
            self.session.say_wavelengths(value or "")
        else:
            self.session.set(name, value)
        if self.session.values:
            pn.state.execute(self.refresh)

    def _refuse(self, message: str, kind: str = "error") -> None:
        self.summary, self.pictures.visible, self.table.object = None, False, ""
        say(self.message, message, kind)
        self.ready(None)

    def _show(self, found: InputSummary) -> None:
        self.summary = found
        read = [row for row in found.rows if row[0] == "Files"]
        self.table.object = table([row for row in found.rows if row not in read], read)
        if found.warnings:
            say(self.message, found.warnings, "warning")
        else:
            say(self.message, "nothing in the frame speaks against this camera", "good")
        self.band.visible = found.mask is not None and found.offsets is not None
        if found.offsets is not None:
            count = len(found.offsets)
            if self.band.end != count:
                self.band.param.update(end=max(count, 2), value=max(1, count // 2))
        self._draw_frame()
        said = f"agreement of fine structure {found.agreement:.2f}"
        self.predicted.show(grey(found.predicted), said)
        self.pictures.visible = True
        self.ready(found)

    def _draw_frame(self) -> None:
        found = self.summary
        if found is None:
            return
        if found.mask is None or found.offsets is None:
            self.frame.show(grey(found.frame), "as it was read")
            return
        offset = found.offsets[min(self.band.value, len(found.offsets)) - 1]
        picture = with_mask(found.frame, found.mask, offset, found.axis)
        self.frame.show(picture, "mask in red")

    def _calibrate(self) -> None:
        try:
            settings = self.session.settings()
        except Exception as error:
            say(self.estimates, explain(error), "error")
            return
        self.calibrate.disabled = True
        self._job = self.jobs.submit(lambda job: calibrate(settings, job))
        self._polling = pn.state.add_periodic_callback(self._poll, period=300)

    def _poll(self) -> None:
        job = self._job
        if job is None:
            return
        if not job.is_over:
            say(self.estimates, f"{job.stage} …")
            return
        self._job = None
        self._polling.stop()
        self.calibrate.disabled = False
        if job.status in (FAILED, STOPPED):
            say(self.estimates, job.message or "stopped", "error")
            return
        say(self.estimates, "found; below, “Calibrate first” uses it")
        self.table_of_estimates.object = f"<pre>{escape(job.value)}</pre>"


def _next_step(values: Mapping[str, str]) -> str:
    """Return what to do before there is something to read; "" when there is."""
    if not values.keys() & {"measurement", "truth"}:
        return "Now choose the snapshot."
    if not values.keys() & {"mask", "camera"}:
        return "Now choose its mask, or a camera file."
    return ""
