"""The template of a page: header, links to the sections, light and dark colours, and cards."""

from collections.abc import Collection, Mapping
from pathlib import Path

import panel as pn


class Page(pn.Template):
    """The page of a command; each section is a card.

    Args:
        command: name of the command.
        lead: a line about the command.
        sections: sections by name, in order.
        empty_sections: names of sections that have no content at first.
    """

    def __init__(
        self,
        command: str,
        lead: str,
        sections: Mapping[str, pn.viewable.Viewable],
        empty_sections: Collection[str] = (),
    ) -> None:
        super().__init__(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
        variables = {
            "command": command,
            "lead": lead,
            "sections": list(sections),
            "empty_sections": empty_sections,
        }
        for name, value in variables.items():
            self.add_variable(name, value)
        for name, section in sections.items():
            self.add_panel(name, section)

    def __repr__(self) -> str:
        """Return a short text, because Panel asks for it often. Its own text lists all widgets."""
        return "Page"
