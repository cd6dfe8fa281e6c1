"""Section 2, the camera: a summary of the inputs, and fields to correct their values."""

from collections.abc import Callable
from functools import partial
from html import escape

import panel as pn
from param.parameterized import Event

from cassi.apps.view.input_summary import InputSummary
from cassi.apps.view.jobs import Jobs, describe_error
from cassi.apps.view.pages.figures import PAIR_WIDTH, PictureFigure, make_grey, overlay_mask
from cassi.apps.view.pages.parts import (
    STYLE,
    follow_job,
    make_button,
    make_field,
    make_heading,
    make_html_pane,
    make_message_pane,
    make_select,
    make_table,
    run_in_thread,
    show_message,
)
from cassi.apps.view.runs import calibrate
from cassi.apps.view.session import Session

_TEXT_FIELDS = {
    "system.step": ("Step, pixels per band", "2"),
    "system.bands": ("Bands", "from the sizes of the files"),
    "wavelengths": ("Wavelengths, nm", "450-650, or a list"),
    "dark": ("Dark level", "a number, or auto"),
    "saturation": ("Saturation level", "auto"),
    "bits": ("Bits of the sensor", "none"),
}
_LEFT_COLUMN_PIXELS = 390  # width of the column with the fields
_AXIS_OPTIONS = {"columns": None, "rows": "-2"}


class CameraSection:
    """A table of the inputs, and the frame beside the frame that the camera predicts.

    Args:
        session: state of this tab.
        jobs: runs a calibration.
        on_check: called with True if the inputs fit, else with False.
    """

    def __init__(self, session: Session, jobs: Jobs, on_check: Callable[[bool], object]) -> None:
        self.session, self.jobs, self.on_check = session, jobs, on_check
        self.fields = {}
        for name, (label, hint) in _TEXT_FIELDS.items():
            self.fields[name] = make_field(label, hint, 170)
            self.fields[name].param.watch(partial(self._set_option, name), "value")
        axis = make_select("Dispersion along", _AXIS_OPTIONS, 170)
        axis.param.watch(partial(self._set_option, "system.axis"), "value")
        # A slider needs two different ends. The number of bands is not known yet.
        self.band = pn.widgets.IntSlider(
            name="Mask at band", start=1, end=2, width=330, stylesheets=[STYLE]
        )
        self.band.param.watch(lambda event: self._draw_frame(), "value")
        self.status = make_message_pane("Choose a snapshot and a mask, or take the example.")
        self.input_table = make_html_pane(sizing_mode="stretch_width")
        self.frame_figure = PictureFigure("Frame")
        self.predicted_figure = PictureFigure("Predicted frame")
        self.calibrate_button = make_button("Calibrate", 150)
        self.calibrate_button.on_click(lambda event: self._calibrate())
        self.calibration_status = make_message_pane()
        self.estimate_table = make_html_pane()
        self.summary: InputSummary | None = None
        self.pictures = pn.Column(
            pn.Row(self.frame_figure.view, self.predicted_figure.view, margin=0),
            self.band,
            pn.Row(self.calibrate_button, self.calibration_status),
            self.estimate_table,
            visible=False,
            width=PAIR_WIDTH,
        )
        step, bands, wavelengths, *sensor = self.fields.values()
        left = pn.Column(
            pn.FlexBox(step, bands, axis, wavelengths, margin=0),
            self.status,
            self.input_table,
            pn.Card(
                pn.FlexBox(*sensor, margin=0),
                title="Sensor",
                collapsed=True,
                sizing_mode="stretch_width",
                margin=10,
                stylesheets=[STYLE],
            ),
            styles={"flex": f"1 1 {_LEFT_COLUMN_PIXELS + 20}px"},
        )
        self.view = pn.Column(
            make_heading("2 Camera"),
            pn.FlexBox(left, self.pictures, margin=0),
            sizing_mode="stretch_width",
        )
        self._refresh_count = 0

    async def refresh(self) -> None:
        """Read all inputs again, and show their summary or the reason of a failure."""
        # Reading takes a while, and the user may change another field in that time. Only the last
        # call may change the page, or older inputs could overwrite newer ones.
        self._refresh_count += 1
        refresh_number, values = self._refresh_count, self.session.values

        def show(summary: InputSummary) -> None:
            if refresh_number == self._refresh_count:
                self._show(summary)

        def show_refusal(reason: str) -> None:
            if refresh_number == self._refresh_count:
                self._show_refusal(reason, "error")

        if not values.keys() & {"measurement", "truth"}:
            self._show_refusal("Now choose the snapshot.")
        elif not values.keys() & {"mask", "camera"}:
            self._show_refusal("Now choose its mask, or a camera file.")
        else:
            show_message(self.status, "reading …")
            await run_in_thread(self.status, self.session.summarize, show, show_refusal)

    def _set_option(self, name: str, event: Event) -> None:
        if name == "wavelengths":
            self.session.set_wavelengths(event.new or "")
        else:
            self.session.set(name, event.new)
        if self.session.values:
            pn.state.execute(self.refresh)

    def _show_refusal(self, message: str, kind: str = "") -> None:
        self.summary, self.pictures.visible, self.input_table.object = None, False, ""
        show_message(self.status, message, kind)
        self.on_check(False)

    def _show(self, summary: InputSummary) -> None:
        self.summary = summary
        file_rows = [row for row in summary.rows if row[0] == "Files"]
        self.input_table.object = make_table(
            [row for row in summary.rows if row not in file_rows], file_rows
        )
        if summary.warnings:
            show_message(self.status, summary.warnings, "warning")
        else:
            show_message(self.status, "the frame is consistent with this camera", "good")
        self.band.visible = summary.mask is not None and summary.offsets is not None
        if summary.offsets is not None:
            count = len(summary.offsets)
            if self.band.end != count:
                self.band.param.update(end=max(count, 2), value=max(1, count // 2))
        self._draw_frame()
        caption = f"agreement of fine structure {summary.agreement:.2f}"
        self.predicted_figure.show(make_grey(summary.predicted_frame), caption)
        self.pictures.visible = True
        self.on_check(True)

    def _draw_frame(self) -> None:
        summary = self.summary
        if summary is None:
            return
        if summary.mask is None or summary.offsets is None:
            self.frame_figure.show(make_grey(summary.frame), "as it was read")
            return
        offset = summary.offsets[min(self.band.value, len(summary.offsets)) - 1]
        picture = overlay_mask(summary.frame, summary.mask, offset, summary.axis)
        self.frame_figure.show(picture, "mask in red")

    def _calibrate(self) -> None:
        try:
            settings = self.session.settings()
        except Exception as error:
            show_message(self.calibration_status, describe_error(error), "error")
            return
        self.calibrate_button.disabled = True
        job = self.jobs.submit(lambda job: calibrate(settings, job))

        def enable_button() -> None:
            self.calibrate_button.disabled = False

        def show_estimates(estimates: str) -> None:
            show_message(
                self.calibration_status, "calibrated; “Calibrate first” below uses the result"
            )
            self.estimate_table.object = f"<pre>{escape(estimates)}</pre>"

        follow_job(
            job,
            self.calibration_status,
            lambda: show_message(self.calibration_status, f"{job.stage} …"),
            enable_button,
            show_estimates,
        )
