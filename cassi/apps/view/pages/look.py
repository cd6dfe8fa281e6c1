"""Section 4: look at a cube, or at an evaluation."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from urllib.parse import quote

import panel as pn
from param.parameterized import Event

from cassi.apps.view.cubes import Shown, report_on, short_names
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import PENDING, heading, later, say, select, text
from cassi.apps.view.session import Session

# The page may run its scripts and give files to keep; it shares no origin with the application.
_FRAME = """\
<iframe title="Report" sandbox="allow-scripts allow-downloads" src="report/{key}#{name}"></iframe>
"""
_STYLE = "iframe { display: block; width: 100%; height: 1000px; border: 0 }"
# Of another origin, the frame cannot be measured from outside: its page tells `page.html`.
_HEIGHT = b"""
<script>
  new ResizeObserver(([{ target }]) => parent.postMessage({ height: target.offsetHeight }, "*"))
    .observe(document.documentElement);
</script>
"""


class LookSection:
    """The cube that is chosen beside the others of its shape, or an evaluation.

    Args:
        session: of this tab.
        reports: that the server serves, by random key.
        changed: called when another cube is chosen, or with None for an evaluation.
    """

    def __init__(
        self, session: Session, reports: dict[str, bytes], changed: Callable[[Shown | None], object]
    ) -> None:
        self.session, self.reports, self.changed = session, reports, changed
        self.evaluations: dict[str, bytes] = {}
        self.labels: dict[str, str] = {}
        self.cube = select("Cube", [], None)
        self.cube.param.watch(self._choose, "value")
        self.message, self.unsaved = text(), text()
        self.frame = pn.pane.HTML("", margin=0, stylesheets=[_STYLE], sizing_mode="stretch_width")
        self.view = pn.Column(
            heading("4 Look"),
            self.cube,
            self.unsaved,
            self.message,
            self.frame,
            visible=False,
            sizing_mode="stretch_width",
        )
        self._key = ""
        self._unsaved: list[str] = []

    @property
    def shown(self) -> Shown | None:
        """The cube that is chosen."""
        return self.session.results.get(self.cube.value)

    def open(self, shown: Shown) -> None:
        """Choose a cube of the session."""
        if shown.made is not None:
            self._unsaved.append(shown.name)
        self._say_unsaved()
        self._list(shown.name)

    def open_evaluation(self, name: str, page: bytes) -> None:
        """Choose the page of an evaluation, HTML."""
        self.evaluations[name] = page
        if self.cube.value == name:
            self._show(name, page)
        else:
            self._list(name)

    def mark_saved(self, shown: Shown) -> None:
        """Count a cube as saved: a reload asks no longer."""
        self._unsaved = [name for name in self._unsaved if name != shown.name]
        self._say_unsaved()

    def close(self) -> None:
        """Serve the report of this tab no longer."""
        self.reports.pop(self._key, None)

    def _list(self, name: str) -> None:
        self.labels = short_names([*self.session.results, *self.evaluations])
        options = {label: each for each, label in self.labels.items()}
        self.cube.param.update(options=options, value=name)
        self.view.visible = True

    def _say_unsaved(self) -> None:
        names = "; ".join(self._unsaved)
        say(self.unsaved, f"not saved yet: {names}" if names else "", PENDING)

    async def _choose(self, event: Event) -> None:
        name = event.new
        say(self.message, f"packing {name} …")
        self.changed(self.shown)
        try:
            page = self.evaluations.get(name)
            if page is None:
                cubes = {
                    each: replace(cube, name=self.labels[each])
                    for each, cube in self.session.results.items()
                }
                page = await asyncio.to_thread(report_on, cubes[name], cubes.values())
        except Exception as error:
            later(partial(say, self.message, explain(error), "error"))
            return
        if name == self.cube.value:  # no other was chosen in the meantime
            later(lambda: self._show(name, page))

    def _show(self, name: str, page: bytes) -> None:
        self.close()
        self._key = secrets.token_urlsafe(24)
        self.reports[self._key] = page + _HEIGHT
        label = self.labels[name]
        self.frame.object = _FRAME.format(key=self._key, name=escape(quote(label)))
        say(self.message, name if label != name else "")
