"""The gallery of the page: results below the allowed folders, listed again every two seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import panel as pn
from param.parameterized import Event

from cassi.apps.view.cubes import CubeView
from cassi.apps.view.folders import (
    ResultEntry,
    list_results,
    make_thumbnail,
    read_result,
    render_evaluation,
)
from cassi.apps.view.jobs import describe_error
from cassi.apps.view.pages.parts import (
    STYLE,
    make_button,
    make_heading,
    make_message_pane,
    run_in_thread,
    show_message,
)
from cassi.apps.view.session import Session

if TYPE_CHECKING:
    from PIL import Image

_REFRESH_MS = 2000
_PAGE_SIZE = 20  # results on the page, and results that “Show more” adds
_CARD_WIDTH = 200  # pixels


class GallerySection:
    """A card for every result, with its picture, name and numbers.

    Args:
        session: state of this tab.
        open_cube: called with the cube that the user opens.
        open_evaluation: called with the name of the evaluation that the user opens, and with its
            page, HTML.
    """

    def __init__(
        self,
        session: Session,
        open_cube: Callable[[CubeView], object],
        open_evaluation: Callable[[str, bytes], object],
    ) -> None:
        self.session, self.open_cube, self.open_evaluation = session, open_cube, open_evaluation
        self.cards: dict[ResultEntry, pn.Column] = {}
        self.entries: list[ResultEntry] = []
        self.max_entries = _PAGE_SIZE
        self.message = make_message_pane()
        self.grid = pn.FlexBox(margin=(0, 5), align_items="stretch")
        self.more_button = make_button("Show more", 120)
        self.more_button.on_click(self._show_more)
        self.more_button.visible = False
        self.view = pn.Column(
            make_heading("Results"), self.message, self.grid, self.more_button, visible=False
        )
        self._is_refreshing = False

    def start(self) -> None:
        """List the results now, and then every two seconds."""
        pn.state.add_periodic_callback(self.refresh, period=_REFRESH_MS)
        pn.state.execute(self.refresh)

    async def refresh(self) -> None:
        """Show results that were written since the last call."""
        # With a slow disk, a call may last longer than the time to the next call.
        if self._is_refreshing:
            return
        self._is_refreshing = True
        try:
            await self._show(await asyncio.to_thread(list_results, self.session.allowed_paths))
        except Exception as error:
            show_message(self.message, describe_error(error), "error")
        finally:
            self._is_refreshing = False

    async def _show(self, entries: list[ResultEntry]) -> None:
        first_entries = entries[: self.max_entries]
        if entries == self.entries and first_entries == list(self.cards):
            return
        # Entries are compared by value, so a result that was written again gets a new card.
        for entry in first_entries:
            if entry not in self.cards:
                picture = await asyncio.to_thread(make_thumbnail, entry, self.session.allowed_paths)
                self.cards[entry] = self._make_card(entry, picture)
        self.entries, self.cards = entries, {entry: self.cards[entry] for entry in first_entries}
        self.grid.objects = list(self.cards.values())
        n_failed = sum(entry.folder is None for entry in entries)
        count = f"{len(entries) - n_failed} done"
        show_message(self.message, count + (f", {n_failed} failed or damaged" if n_failed else ""))
        self.more_button.visible = len(entries) > len(first_entries)
        self.view.visible = bool(entries)

    def _make_card(self, entry: ResultEntry, picture: Image.Image | None) -> pn.Column:
        widgets: list[pn.viewable.Viewable] = []
        if picture is not None:
            alt_text = escape(f"{entry.name} in colour")  # panel writes it into HTML as it is
            style = {"stylesheets": [STYLE], "css_classes": ["thumbnail"], "fixed_aspect": False}
            widgets.append(
                pn.pane.PNG(picture, alt_text=alt_text, width=_CARD_WIDTH, height=150, **style)
            )
        if entry.folder is not None:
            open_button = make_button(f"Open {entry.name}", _CARD_WIDTH)
            open_button.css_classes = ["wrapped"]
            open_button.on_click(partial(self._open_entry, entry))
            widgets.append(open_button)
        name = entry.name if entry.folder is None else ""
        warning_text = f"warnings of the camera: {entry.warnings}" if entry.warnings else ""
        summary = make_message_pane(
            [name, entry.summary, warning_text], "error" if entry.folder is None else ""
        )
        style = {"stylesheets": [STYLE], "css_classes": ["outline"]}
        return pn.Column(*widgets, summary, width=_CARD_WIDTH + 20, margin=5, **style)

    async def _open_entry(self, entry: ResultEntry, event: Event) -> None:
        show_message(self.message, f"reading {entry.name} …")
        read = render_evaluation if entry.is_evaluation else read_result

        def open_result(result: CubeView | bytes) -> None:
            show_message(self.message, f"{entry.name} is open below")
            if isinstance(result, bytes):
                self.open_evaluation(entry.name, result)
            else:
                self.open_cube(result)

        await run_in_thread(
            self.message, lambda: read(entry, self.session.allowed_paths), open_result
        )

    async def _show_more(self, event: Event) -> None:
        self.max_entries += _PAGE_SIZE
        await self.refresh()
