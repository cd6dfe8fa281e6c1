"""Section 3, the run: choose a method, reconstruct, and watch the progress."""

import asyncio
from collections.abc import Callable

import panel as pn

from cassi.apps.results import format_result, format_warnings
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.jobs import Job, Jobs, describe_error
from cassi.apps.view.pages.parts import (
    STYLE,
    UNSAVED_KIND,
    follow_job,
    make_button,
    make_heading,
    make_message_pane,
    make_select,
    show_message,
)
from cassi.apps.view.runs import reconstruct
from cassi.apps.view.session import METHODS, WEIGHTS_SUFFIX, Session, list_methods

_CALIBRATE_OPTION = "Calibrate first"


class RunSection:
    """Fields for method and further settings, and the progress of a reconstruction.

    Args:
        session: state of this tab.
        jobs: runs the reconstruction.
        on_cube: called with the cube.
    """

    def __init__(self, session: Session, jobs: Jobs, on_cube: Callable[[CubeView], object]) -> None:
        self.session, self.jobs, self.on_cube = session, jobs, on_cube
        self.method_list = make_select("Method", dict(METHODS), 420)
        self.calibrate_box = pn.widgets.CheckBoxGroup(name="Camera", options=[_CALIBRATE_OPTION])
        self.options_field = pn.widgets.TextAreaInput(
            name="Further settings, one a line, as on the command line",
            placeholder="solver.iterations=200\nseed=1",
            width=420,
            height=80,
        )
        self.start_button = make_button("Reconstruct", primary=True)
        self.stop_button = make_button("Stop", 90)
        self.start_button.disabled = self.stop_button.disabled = True
        self.start_button.on_click(lambda event: self._start_job())
        self.stop_button.on_click(lambda event: self.stop_job())
        self.progress_bar = pn.indicators.Progress(
            name="Progress", value=0, max=100, width=420, stylesheets=[STYLE], visible=False
        )
        self.status, self.warnings = make_message_pane(), make_message_pane()
        self.picture = pn.pane.PNG(None, alt_text="The cube so far, in colour", width=320)
        left = pn.Column(
            self.method_list,
            self.calibrate_box,
            self.options_field,
            pn.Row(self.start_button, self.stop_button),
            self.progress_bar,
            self.status,
            self.warnings,
            width=450,
        )
        self.view = pn.Column(
            make_heading("3 Reconstruct"),
            pn.FlexBox(left, self.picture, margin=0),
            sizing_mode="stretch_width",
        )
        self._job: Job | None = None

    async def list_methods(self) -> None:
        """Offer all methods, and the networks in the allowed folders."""
        files = self.session.allowed_paths.list_files([WEIGHTS_SUFFIX]).items()
        networks = {name: str(path) for name, path in files}
        # Listing the methods takes a while, because all configs are read. A thread does it, so that
        # the page does not wait.
        self.method_list.options = await asyncio.to_thread(list_methods) | networks

    def set_ready(self, is_ready: bool) -> None:
        """Enable the start button if the inputs fit, and no job runs."""
        self.start_button.disabled = not is_ready or self._job is not None

    def stop_job(self) -> None:
        """Stop the job; called by the button, and when the tab is closed."""
        if self._job is not None:
            self._job.stop()

    def _start_job(self) -> None:
        try:
            self.session.use_method(self.method_list.value)
            self.session.set("calibrate", "true" if self.calibrate_box.value else None)
            # `value` changes when the field loses the focus, `value_input` with every letter.
            self.session.set_further_options(
                self.options_field.value_input or self.options_field.value or ""
            )
            settings, options = self.session.settings(), self.session.options()
        except Exception as error:
            show_message(self.status, describe_error(error), "error")
            return
        self.start_button.disabled, self.stop_button.disabled = True, False
        self.progress_bar.visible = True
        show_message(self.warnings, "")
        self._job = self.jobs.submit(lambda job: reconstruct(settings, options, job))
        follow_job(self._job, self.status, self._show_progress, self._show_end, self._show_cube)

    def _show_progress(self) -> None:
        from PIL import Image

        job = self._job
        assert job is not None
        self.progress_bar.value = round(100 * job.progress)
        if job.picture is not None:
            self.picture.object = Image.fromarray(job.picture)
        show_message(self.status, f"{job.stage} …{job.describe_time_left()}", UNSAVED_KIND)

    def _show_end(self) -> None:
        self._job = None
        self.progress_bar.visible = False
        self.start_button.disabled, self.stop_button.disabled = False, True

    def _show_cube(self, cube_view: CubeView) -> None:
        show_message(self.status, f"done: {format_result(dict(cube_view.numbers))}", "good")
        show_message(self.warnings, format_warnings(cube_view.numbers), "warning")
        self.on_cube(cube_view)
