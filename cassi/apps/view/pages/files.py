"""Section 1: the files of snapshot, mask and camera."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import panel as pn
import param
from panel.models.esm import DataEvent

from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import STYLE, attempt, button, heading, say, select, text
from cassi.apps.view.session import Session
from cassi.apps.view.uploads import LARGEST, Inbox, keep_upload
from cassi.data.io import READ_SUFFIXES

_NONE = "none"
_WIDTH = 240  # pixels of a field; three fit on a tablet
_ROLES = {"measurement": "Snapshot", "mask": "Mask", "camera": "Camera file"}
_YAML = (".yaml", ".yml")
_BESIDE = (".img", ".raw", ".dat", ".bsq", ".bil", ".bip")


class Drop(pn.custom.JSComponent):
    """A field for files, dropped or chosen, which go to an inbox; it tells when all are there."""

    label = param.String()
    accept = param.String()
    multiple = param.Boolean()
    address = param.String()
    most = param.Integer(LARGEST)

    _esm = Path(__file__).with_name("drop.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar = [STYLE]


class FilesSection:
    """Fields for files: dropped here, or chosen from the folders that may be read.

    Args:
        session: of this tab.
        inboxes: that the server puts uploads into, by random key.
        changed: called when a file was chosen.
    """

    def __init__(
        self, session: Session, inboxes: dict[str, Inbox], changed: Callable[[], object]
    ) -> None:
        self.session, self.inboxes, self.changed = session, inboxes, changed
        self.keys = {role: secrets.token_urlsafe(24) for role in _ROLES}
        self.messages = {role: text(f"no {title.lower()}") for role, title in _ROLES.items()}
        self.lists, columns = {}, []
        for role, title in _ROLES.items():
            inboxes[self.keys[role]] = Inbox()
            is_array = role != "camera"
            drop = Drop(
                label=f"{title}: drop a file here, or click",
                accept=",".join((*READ_SUFFIXES, *_BESIDE) if is_array else _YAML),
                multiple=is_array,
                address=f"upload/{self.keys[role]}",
                width=_WIDTH,
                margin=(5, 10),
            )
            drop.on_msg(partial(self._receive, role))
            files = session.allowed.list_files(READ_SUFFIXES if is_array else _YAML)
            names = {_NONE: _NONE} | {name: str(path) for name, path in files.items()}
            self.lists[role] = select(f"{title} from the folder", names, _WIDTH)
            self.lists[role].param.watch(
                lambda event, role=role: self._choose(role, event.new), "value"
            )
            parts = drop, self.lists[role], self.messages[role]
            columns.append(pn.Column(*parts, width=_WIDTH + 20))
        example = button("Take the example", 180)
        example.on_click(lambda event: self._take_example())
        self.view = pn.Column(
            heading("1 Files"), pn.FlexBox(*columns, margin=0), example, sizing_mode="stretch_width"
        )

    def close(self) -> None:
        """Take no uploads for a tab that was closed."""
        for key in self.keys.values():
            self.inboxes.pop(key, None)

    def _receive(self, role: str, event: DataEvent) -> None:
        if "error" in event.data:
            say(self.messages[role], str(event.data["error"]), "error")
            return
        files = self.inboxes[self.keys[role]].take(str(event.data["drop"]))
        suffixes = _YAML if role == "camera" else READ_SUFFIXES

        def keep() -> str:
            path = keep_upload(self.session.output / "uploads", files, suffixes)
            self.session.set_file(role, path)
            return path.name

        def done(name: str) -> None:
            self.lists[role].value = _NONE
            self._take(role, name)

        pn.state.execute(partial(attempt, self.messages[role], keep, done))

    def _choose(self, role: str, value: str) -> None:
        if value == _NONE:
            return
        try:
            self.session.set_file(role, value)
        except Exception as error:
            say(self.messages[role], explain(error), "error")
            return
        self._take(role, self.session.allowed.name_of(self.session.allowed.resolve(value)))

    def _take(self, role: str, name: str) -> None:
        say(self.messages[role], f"{_ROLES[role].lower()}: {name}")
        if role == "measurement" and "truth" in self.session.values:  # the example's
            self.session.set("truth", None)
            if "bundled:" in self.session.values.get("mask", ""):
                self.session.set("mask", None)
                say(self.messages["mask"], "no mask")
        self.changed()

    def _take_example(self) -> None:
        self.session.use_example()
        for role in _ROLES:
            self.lists[role].value = _NONE
            say(self.messages[role], "")
        say(self.messages["measurement"], "snapshot: measured from the scene of the package")
        say(self.messages["mask"], "mask: of the package")
        self.changed()
