"""Section 0: the results below the folders, also while results are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import panel as pn
from param.parameterized import Event

from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import Shown
from cassi.apps.view.folders import (
    Entry,
    evaluation_page,
    list_results,
    open_result,
    thumbnail,
)
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import (
    OUTLINE,
    THUMBNAIL,
    WRAPPED,
    button,
    heading,
    later,
    say,
    text,
)
from cassi.apps.view.session import Session

if TYPE_CHECKING:
    from PIL import Image

_PERIOD = 2000  # ms
_PAGE = 20  # results on the page, until more are asked for
_WIDTH = 200  # pixels of a picture


class GallerySection:
    """Picture, name and numbers of every result.

    Args:
        session: of this tab.
        done: called with a cube that was opened.
        show: called with the name of an evaluation and its page, HTML.
    """

    def __init__(
        self,
        session: Session,
        done: Callable[[Shown], object],
        show: Callable[[str, bytes], object],
    ) -> None:
        self.session, self.done, self.show = session, done, show
        self.cards: dict[str, pn.Column] = {}
        self.known: dict[str, Entry] = {}
        self.most = _PAGE
        self.message = text()
        self.grid = pn.FlexBox(margin=(0, 5), align_items="stretch")
        self.more = button("Show more", 120)
        self.more.on_click(self._more)
        self.more.visible = False
        self.view = pn.Column(heading("Results"), self.message, self.grid, self.more, visible=False)
        self._busy = False

    def begin(self) -> None:
        """List the results now, and then every two seconds."""
        pn.state.add_periodic_callback(self.refresh, period=_PERIOD)
        pn.state.execute(self.refresh)

    async def refresh(self) -> None:
        """Show results that were written since the last call."""
        if self._busy:
            return
        self._busy = True
        try:
            entries = await asyncio.to_thread(list_results, self.session.allowed)
            await self._show(entries)
        except Exception as error:
            say(self.message, explain(error), "error")
        finally:
            self._busy = False

    async def _show(self, entries: list[Entry]) -> None:
        listed = {entry.name: entry for entry in entries}
        if listed == self.known and len(self.cards) >= min(len(listed), self.most):
            return
        shown = dict(list(listed.items())[: self.most])
        for name, entry in shown.items():
            if self.known.get(name) != entry or name not in self.cards:
                picture = await asyncio.to_thread(thumbnail, entry, self.session.allowed)
                self.cards[name] = self._card(entry, picture)
        self.cards = {name: self.cards[name] for name in shown}
        self.known = listed
        self.grid.objects = list(self.cards.values())
        failed = sum(entry.folder is None for entry in entries)
        said = f"{len(entries) - failed} done" + (f", {failed} failed or damaged" if failed else "")
        say(self.message, said)
        self.more.visible = len(listed) > len(shown)
        self.view.visible = bool(listed)

    def _card(self, entry: Entry, picture: Image.Image | None) -> pn.Column:
        parts: list[pn.viewable.Viewable] = []
        if picture is not None:
            said = escape(f"{entry.name} in colour")  # panel writes it into HTML as it is
            size = {"width": _WIDTH, "height": 150, "fixed_aspect": False}
            parts.append(pn.pane.PNG(picture, alt_text=said, stylesheets=[THUMBNAIL], **size))
        if entry.folder is not None:
            opens = pn.widgets.Button(
                name=f"Open {entry.name}", width=_WIDTH, stylesheets=[WRAPPED]
            )
            opens.on_click(partial(self._open, entry))
            parts.append(opens)
        name = entry.name if entry.folder is None else ""
        warned = f"warnings of the camera: {entry.warnings}" if entry.warnings else ""
        kind = "error" if entry.folder is None else ""
        line = text("", kind)
        say(line, [name, entry.said, warned], kind)
        return pn.Column(*parts, line, width=_WIDTH + 20, margin=5, styles=OUTLINE)

    async def _open(self, entry: Entry, event: Event) -> None:
        say(self.message, f"reading {entry.name} …")
        read: Callable[[Entry, AllowedPaths], Any]
        read = evaluation_page if entry.is_evaluation else open_result
        try:
            found: Any = await asyncio.to_thread(read, entry, self.session.allowed)
        except Exception as error:
            later(partial(say, self.message, explain(error), "error"))
            return
        later(partial(say, self.message, f"{entry.name} is open below"))
        is_evaluation = entry.is_evaluation
        later(partial(self.show, entry.name, found) if is_evaluation else partial(self.done, found))

    async def _more(self, event: Event) -> None:
        self.most += _PAGE
        await self.refresh()
