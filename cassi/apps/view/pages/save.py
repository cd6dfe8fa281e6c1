"""Section 5: save the files that the command writes, and the config that repeats it."""

import asyncio
from pathlib import Path

import panel as pn
from param.parameterized import Event

from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.look import LookSection
from cassi.apps.view.pages.parts import button, field, heading, say, text
from cassi.apps.view.runs import save
from cassi.apps.view.session import Session


class SaveSection:
    """Saves the cube that the section *Look* shows.

    Args:
        session: of this tab.
        look: the section that shows a cube.
    """

    def __init__(self, session: Session, look: LookSection) -> None:
        self.session, self.look = session, look
        self.name = field("Name of the folder", "first", 240, "first")
        self.save = button("Save", primary=True)
        self.save.on_click(self._save)
        self.message = text()
        where = text(f"below {session.output}")
        self.view = pn.Column(
            heading("5 Save"),
            pn.Row(self.name, pn.Column(pn.Spacer(height=18), self.save)),
            where,
            self.message,
            visible=False,
        )

    def show(self, shown: Shown) -> None:
        """Show the section for a cube that was reconstructed here; others are saved already."""
        self.view.visible = shown.made is not None

    async def _save(self, event: Event) -> None:
        shown = self.look.shown
        if shown is None:
            return
        self.save.disabled = True
        say(self.message, "writing …")
        try:
            folder = place(self.session.output, self.name.value_input or self.name.value)
            command = await asyncio.to_thread(save, shown, folder)
            self.look.mark_saved(shown)
            say(self.message, [f"saved in {folder}", f"to repeat it: {command}"], "good")
        except Exception as error:
            say(self.message, explain(error), "error")
        finally:
            self.save.disabled = False


def place(output: Path, name: str) -> Path:
    """Return the folder of a new result.

    Raises:
        ValueError: the name is empty, or leads out of the output folder.
    """
    name = name.strip()
    folder = output / name
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or any(part.startswith(".") for part in parts):
        raise ValueError(f"name: expected one below {output}, got {name!r}")
    return folder
