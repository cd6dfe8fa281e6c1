"""The page around sections: header, steps, colours in light and dark. Each is a card."""

from collections.abc import Collection, Mapping
from pathlib import Path

import panel as pn


class Page(pn.Template):
    """A page of a command.

    Args:
        command: its name.
        lead: a line about it.
        sections: by name, in order.
        late: names of sections that have no content at first.
    """

    def __init__(
        self,
        command: str,
        lead: str,
        sections: Mapping[str, pn.viewable.Viewable],
        late: Collection[str] = (),
    ) -> None:
        super().__init__(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
        words = {"command": command, "lead": lead, "sections": list(sections), "late": late}
        for name, value in words.items():
            self.add_variable(name, value)
        for name, section in sections.items():
            self.add_panel(name, section)

    def __repr__(self) -> str:
        """Panel writes out every widget for the name of a template, again for each part."""
        return "Page"
