"""Section 4: the report of the cube that is chosen, in a frame."""

import asyncio
import secrets
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote

import panel as pn

from cassi.apps.view.cubes import Shown, report_on
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import heading, later, say, select, text
from cassi.apps.view.session import Session

# The page may run its scripts and give files to keep; it shares no origin with the application.
_FRAME = """\
<iframe title="Report" sandbox="allow-scripts allow-downloads" src="report/{key}#{name}"
  style="width: min(1476px, 100vw - 48px); height: 1000px; border: 0; color-scheme: light">
</iframe>"""


class LookSection:
    """The cube that is chosen, beside the others of its shape.

    Args:
        session: of this tab.
        reports: that the server serves, by random key.
        changed: called when another cube is chosen.
    """

    def __init__(
        self, session: Session, reports: dict[str, bytes], changed: Callable[[Shown], Any]
    ) -> None:
        self.session, self.reports, self.changed = session, reports, changed
        self.cube = select("Cube", [], 330)
        self.cube.param.watch(self._choose, "value")
        self.message = text()
        self.frame = pn.pane.HTML("", margin=0)
        self.view = pn.Column(heading("4 Look"), self.cube, self.message, self.frame, visible=False)
        self._key = ""

    @property
    def shown(self) -> Shown | None:
        """The cube that is chosen."""
        return self.session.results.get(self.cube.value)

    def open(self, shown: Shown) -> None:
        """Choose a cube of the session."""
        self.cube.param.update(options=list(self.session.results), value=shown.name)
        self.view.visible = True

    def close(self) -> None:
        """Serve the report of this tab no longer."""
        self.reports.pop(self._key, None)

    async def _choose(self, event: Any) -> None:
        shown = self.shown
        if shown is None:
            return
        say(self.message, f"packing {shown.name} …")
        self.changed(shown)
        try:
            others = list(self.session.results.values())
            page = await asyncio.to_thread(report_on, shown, others)
        except Exception as error:
            say(self.message, explain(error), "error")
            return
        if shown is self.shown:  # no other was chosen in the meantime
            later(lambda: self._show(shown.name, page))

    def _show(self, name: str, page: bytes) -> None:
        self.close()
        self._key = secrets.token_urlsafe(24)
        self.reports[self._key] = page
        self.frame.object = _FRAME.format(key=self._key, name=escape(quote(name)))
        say(self.message, "")
