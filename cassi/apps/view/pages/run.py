"""Section 3: choose a method, reconstruct, and watch the progress."""

import asyncio
from collections.abc import Callable

import panel as pn

from cassi.apps.results import one_line, say_warnings
from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import Job, Jobs, explain
from cassi.apps.view.pages.parts import PENDING, STYLE, button, follow, heading, say, select, text
from cassi.apps.view.runs import reconstruct
from cassi.apps.view.session import METHODS, SUFFIX, Session, list_methods

_CALIBRATE = "Calibrate first"


class RunSection:
    """Method, further settings, progress.

    Args:
        session: of this tab.
        jobs: that run reconstructions.
        done: called with the cube.
    """

    def __init__(self, session: Session, jobs: Jobs, done: Callable[[Shown], object]) -> None:
        self.session, self.jobs, self.done = session, jobs, done
        self.method = select("Method", dict(METHODS), 420)
        self.calibrate = pn.widgets.CheckBoxGroup(name="Camera", options=[_CALIBRATE])
        self.more = pn.widgets.TextAreaInput(
            name="Further settings, one a line, as on the command line",
            placeholder="solver.iterations=200\nseed=1",
            width=420,
            height=80,
        )
        self.start, self.stop = button("Reconstruct", primary=True), button("Stop", 90)
        self.start.disabled = self.stop.disabled = True
        self.start.on_click(lambda event: self._start())
        self.stop.on_click(lambda event: self.close())
        self.bar = pn.indicators.Progress(
            name="Progress", value=0, max=100, width=420, stylesheets=[STYLE], visible=False
        )
        self.message, self.warnings = text(), text()
        self.picture = pn.pane.PNG(None, alt_text="The cube so far, in colour", width=320)
        left = pn.Column(
            self.method,
            self.calibrate,
            self.more,
            pn.Row(self.start, self.stop),
            self.bar,
            self.message,
            self.warnings,
            width=450,
        )
        self.view = pn.Column(
            heading("3 Reconstruct"),
            pn.FlexBox(left, self.picture, margin=0),
            sizing_mode="stretch_width",
        )
        self._job: Job | None = None

    async def list_methods(self) -> None:
        """Offer all methods; reading their configs takes a while."""
        files = self.session.allowed.list_files([SUFFIX]).items()
        networks = {name: str(path) for name, path in files}
        self.method.options = await asyncio.to_thread(list_methods) | networks

    def allow(self, is_ready: bool) -> None:
        """Enable or disable the button that starts."""
        self.start.disabled = not is_ready or self._job is not None

    def close(self) -> None:
        """Stop the job, also that of a tab that was closed."""
        if self._job is not None:
            self._job.stop()

    def _start(self) -> None:
        try:
            self.session.use_method(self.method.value)
            self.session.set("calibrate", "true" if self.calibrate.value else None)
            self.session.say_more(self.more.value_input or self.more.value or "")
            settings, options = self.session.settings(), self.session.options()
        except Exception as error:
            say(self.message, explain(error), "error")
            return
        self.start.disabled, self.stop.disabled, self.bar.visible = True, False, True
        say(self.warnings, "")
        self._job = self.jobs.submit(lambda job: reconstruct(settings, options, job))
        follow(self._job, self.message, self._show_progress, self._end, self._show)

    def _show_progress(self) -> None:
        from PIL import Image

        job = self._job
        assert job is not None
        self.bar.value = round(100 * job.share)
        if job.picture is not None:
            self.picture.object = Image.fromarray(job.picture)
        say(self.message, f"{job.stage} …{job.time_left()}", PENDING)

    def _end(self) -> None:
        self._job = None
        self.bar.visible = False
        self.start.disabled, self.stop.disabled = False, True

    def _show(self, shown: Shown) -> None:
        say(self.message, f"done: {one_line(dict(shown.numbers))}", "good")
        say(self.warnings, say_warnings(shown.numbers), "warning")
        self.done(shown)
