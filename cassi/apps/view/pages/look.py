"""Sections 4 and 5: look at a cube, or at an evaluation; save a cube as the command does."""

import secrets
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import quote

import panel as pn
from param.parameterized import Event

from cassi.apps.view.cubes import Shown, report_on, short_names
from cassi.apps.view.pages.parts import (
    PENDING,
    STYLE,
    attempt,
    button,
    field,
    heading,
    say,
    select,
    text,
)
from cassi.apps.view.runs import save
from cassi.apps.view.session import Session

# The page may run its scripts and give files to keep; it shares no origin with the application.
_FRAME = """\
<iframe title="Report" sandbox="allow-scripts allow-downloads" src="report/{key}#{name}"></iframe>
"""
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
    """

    def __init__(self, session: Session, reports: dict[str, bytes]) -> None:
        self.session, self.reports = session, reports
        self.evaluations: dict[str, bytes] = {}
        self.labels: dict[str, str] = {}
        self.cube = select("Cube", [], None)
        self.cube.param.watch(self._choose, "value")
        self.message, self.unsaved = text(), text()
        self.frame = pn.pane.HTML("", margin=0, stylesheets=[STYLE], sizing_mode="stretch_width")
        self.view = pn.Column(
            heading("4 Look"),
            self.cube,
            self.unsaved,
            self.message,
            self.frame,
            visible=False,
            sizing_mode="stretch_width",
        )
        self.name = field("Name of the folder", "first", 240, "first")
        self.save = button("Save", primary=True)
        self.save.on_click(self._save)
        self.saved = text()
        self.save_view = pn.Column(
            heading("5 Save"),
            pn.Row(self.name, pn.Column(pn.Spacer(height=18), self.save)),
            text(f"below {session.output}"),
            self.saved,
            visible=False,
        )
        self._key = ""
        self._unsaved: list[str] = []

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
        shown = self.session.results.get(name)
        self.save_view.visible = shown is not None and shown.made is not None
        say(self.message, f"packing {name} …")

        def pack() -> bytes:
            if name in self.evaluations:
                return self.evaluations[name]
            cubes = {
                each: replace(cube, name=self.labels[each])
                for each, cube in self.session.results.items()
            }
            return report_on(cubes[name], cubes.values())

        await attempt(self.message, pack, lambda page: self._show(name, page))

    def _show(self, name: str, page: bytes) -> None:
        if name != self.cube.value:  # another was chosen in the meantime
            return
        self.close()
        self._key = secrets.token_urlsafe(24)
        self.reports[self._key] = page + _HEIGHT
        label = self.labels[name]
        self.frame.object = _FRAME.format(key=self._key, name=escape(quote(label)))
        say(self.message, name if label != name else "")

    async def _save(self, event: Event) -> None:
        shown = self.session.results.get(self.cube.value)
        if shown is None:
            return
        self.save.disabled = True
        say(self.saved, "writing …")
        name = self.name.value_input or self.name.value

        def write() -> tuple[Path, str]:
            folder = place(self.session.output, name)
            return folder, save(shown, folder)

        def done(result: tuple[Path, str]) -> None:
            self._unsaved = [each for each in self._unsaved if each != shown.name]
            self._say_unsaved()
            folder, command = result
            say(self.saved, [f"saved in {folder}", f"to repeat it: {command}"], "good")

        await attempt(self.saved, write, done)
        self.save.disabled = False


def place(output: Path, name: str) -> Path:
    """Return the folder of a new result.

    Raises:
        ValueError: the name is empty, or leads out of the output folder.
    """
    name = name.strip()
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or any(part.startswith(".") for part in parts):
        raise ValueError(f"name: expected one below {output}, got {name!r}")
    return output / name
