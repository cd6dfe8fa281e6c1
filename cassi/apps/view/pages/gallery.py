"""Section 0: the results below the folders, also while results are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import panel as pn
from param.parameterized import Event

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
    STYLE,
    attempt,
    button,
    heading,
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
        open_cube: called with a cube that was opened.
        open_evaluation: called with the name of an evaluation and its page, HTML.
    """

    def __init__(
        self,
        session: Session,
        open_cube: Callable[[Shown], object],
        open_evaluation: Callable[[str, bytes], object],
    ) -> None:
        self.session, self.open_cube, self.open_evaluation = session, open_cube, open_evaluation
        self.cards: dict[Entry, pn.Column] = {}
        self.entries: list[Entry] = []
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
            await self._show(await asyncio.to_thread(list_results, self.session.allowed))
        except Exception as error:
            say(self.message, explain(error), "error")
        finally:
            self._busy = False

    async def _show(self, entries: list[Entry]) -> None:
        first = entries[: self.most]
        if entries == self.entries and first == list(self.cards):
            return
        for entry in first:
            if entry not in self.cards:
                picture = await asyncio.to_thread(thumbnail, entry, self.session.allowed)
                self.cards[entry] = self._card(entry, picture)
        self.entries, self.cards = entries, {entry: self.cards[entry] for entry in first}
        self.grid.objects = list(self.cards.values())
        failed = sum(entry.folder is None for entry in entries)
        count = f"{len(entries) - failed} done"
        say(self.message, count + (f", {failed} failed or damaged" if failed else ""))
        self.more.visible = len(entries) > len(first)
        self.view.visible = bool(entries)

    def _card(self, entry: Entry, picture: Image.Image | None) -> pn.Column:
        parts: list[pn.viewable.Viewable] = []
        if picture is not None:
            words = escape(f"{entry.name} in colour")  # panel writes it into HTML as it is
            look = {"stylesheets": [STYLE], "css_classes": ["thumbnail"], "fixed_aspect": False}
            parts.append(pn.pane.PNG(picture, alt_text=words, width=_WIDTH, height=150, **look))
        if entry.folder is not None:
            opens = button(f"Open {entry.name}", _WIDTH)
            opens.css_classes = ["wrapped"]
            opens.on_click(partial(self._open, entry))
            parts.append(opens)
        name = entry.name if entry.folder is None else ""
        warned = f"warnings of the camera: {entry.warnings}" if entry.warnings else ""
        line = text([name, entry.said, warned], "error" if entry.folder is None else "")
        look = {"stylesheets": [STYLE], "css_classes": ["outline"]}
        return pn.Column(*parts, line, width=_WIDTH + 20, margin=5, **look)

    async def _open(self, entry: Entry, event: Event) -> None:
        say(self.message, f"reading {entry.name} …")
        read = evaluation_page if entry.is_evaluation else open_result

        def done(result: Shown | bytes) -> None:
            say(self.message, f"{entry.name} is open below")
            if isinstance(result, bytes):
                self.open_evaluation(entry.name, result)
            else:
                self.open_cube(result)

        await attempt(self.message, lambda: read(entry, self.session.allowed), done)

    async def _more(self, event: Event) -> None:
        self.most += _PAGE
        await self.refresh()
