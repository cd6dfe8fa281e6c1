"""Section 2: the summary of the inputs, and the values that can be corrected."""

from collections.abc import Callable
from functools import partial
from html import escape

import panel as pn
from param.parameterized import Event

from cassi.apps.view.input_summary import InputSummary
from cassi.apps.view.jobs import Jobs, explain
from cassi.apps.view.pages.figures import PAIR, PictureFigure, grey, with_mask
from cassi.apps.view.pages.parts import (
    STYLE,
    attempt,
    button,
    field,
    follow,
    heading,
    pane,
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
        allow: called with whether the inputs fit.
    """

    def __init__(self, session: Session, jobs: Jobs, allow: Callable[[bool], object]) -> None:
        self.session, self.jobs, self.allow = session, jobs, allow
        self.fields = {}
        for name, (label, hint) in _FIELDS.items():
            self.fields[name] = field(label, hint, 170)
            self.fields[name].param.watch(partial(self._set, name), "value")
        axis = select("Dispersion along", _AXES, 170)
        axis.param.watch(partial(self._set, "system.axis"), "value")
        self.band = pn.widgets.IntSlider(
            name="Mask at band", start=1, end=2, width=330, stylesheets=[STYLE]
        )
        self.band.param.watch(lambda event: self._draw_frame(), "value")
        self.message = text("Choose a snapshot and a mask, or take the example.")
        self.table = pane(sizing_mode="stretch_width")
        self.frame = PictureFigure("Frame")
        self.predicted = PictureFigure("Predicted frame")
        self.calibrate = button("Calibrate", 150)
        self.calibrate.on_click(lambda event: self._calibrate())
        self.estimates = text()
        self.table_of_estimates = pane()
        self.summary: InputSummary | None = None
        self.pictures = pn.Column(
            pn.Row(self.frame.view, self.predicted.view, margin=0),
            self.band,
            pn.Row(self.calibrate, self.estimates),
            self.table_of_estimates,
            visible=False,
            width=PAIR,
        )
        step, bands, wavelengths, *sensor = self.fields.values()
        left = pn.Column(
            pn.FlexBox(step, bands, axis, wavelengths, margin=0),
            self.message,
            self.table,
            pn.Card(
                pn.FlexBox(*sensor, margin=0),
                title="Sensor",
                collapsed=True,
                sizing_mode="stretch_width",
                margin=10,
                stylesheets=[STYLE],
            ),
            styles={"flex": f"1 1 {_LEFT + 20}px"},
        )
        self.view = pn.Column(
            heading("2 Camera"),
            pn.FlexBox(left, self.pictures, margin=0),
            sizing_mode="stretch_width",
        )
        self._turn = 0

    async def refresh(self) -> None:
        """Read all inputs again. Of several calls at once only the last one changes the page."""
        self._turn += 1
        turn, values = self._turn, self.session.values

        def show(summary: InputSummary) -> None:
            if turn == self._turn:
                self._show(summary)

        def refuse(reason: str) -> None:
            if turn == self._turn:
                self._refuse(reason, "error")

        if not values.keys() & {"measurement", "truth"}:
            self._refuse("Now choose the snapshot.")
        elif not values.keys() & {"mask", "camera"}:
            self._refuse("Now choose its mask, or a camera file.")
        else:
            say(self.message, "reading …")
            await attempt(self.message, self.session.summarize, show, refuse)

    def _set(self, name: str, event: Event) -> None:
        if name == "wavelengths":
            self.session.say_wavelengths(event.new or "")
        else:
            self.session.set(name, event.new)
        if self.session.values:
            pn.state.execute(self.refresh)

    def _refuse(self, message: str, kind: str = "") -> None:
        self.summary, self.pictures.visible, self.table.object = None, False, ""
        say(self.message, message, kind)
        self.allow(False)

    def _show(self, summary: InputSummary) -> None:
        self.summary = summary
        read = [row for row in summary.rows if row[0] == "Files"]
        self.table.object = table([row for row in summary.rows if row not in read], read)
        if summary.warnings:
            say(self.message, summary.warnings, "warning")
        else:
            say(self.message, "nothing in the frame speaks against this camera", "good")
        self.band.visible = summary.mask is not None and summary.offsets is not None
        if summary.offsets is not None:
            count = len(summary.offsets)
            if self.band.end != count:
                self.band.param.update(end=max(count, 2), value=max(1, count // 2))
        self._draw_frame()
        caption = f"agreement of fine structure {summary.agreement:.2f}"
        self.predicted.show(grey(summary.predicted), caption)
        self.pictures.visible = True
        self.allow(True)

    def _draw_frame(self) -> None:
        summary = self.summary
        if summary is None:
            return
        if summary.mask is None or summary.offsets is None:
            self.frame.show(grey(summary.frame), "as it was read")
            return
        offset = summary.offsets[min(self.band.value, len(summary.offsets)) - 1]
        picture = with_mask(summary.frame, summary.mask, offset, summary.axis)
        self.frame.show(picture, "mask in red")

    def _calibrate(self) -> None:
        try:
            settings = self.session.settings()
        except Exception as error:
            say(self.estimates, explain(error), "error")
            return
        self.calibrate.disabled = True
        job = self.jobs.submit(lambda job: calibrate(settings, job))

        def end() -> None:
            self.calibrate.disabled = False

        def done(estimates: str) -> None:
            say(self.estimates, "found; below, “Calibrate first” uses it")
            self.table_of_estimates.object = f"<pre>{escape(estimates)}</pre>"

        follow(job, self.estimates, lambda: say(self.estimates, f"{job.stage} …"), end, done)
