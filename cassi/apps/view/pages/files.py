"""Section 1: the files of snapshot, mask and camera."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import panel as pn
import param
from panel.models.esm import DataEvent

from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import DROP, button, heading, later, say, select, text
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
    _stylesheets: ClassVar = [DROP]


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
        self.uploads = session.output / "uploads"
        self.own = {role: Inbox(self.uploads) for role in _ROLES}
        inboxes.update({inbox.key: inbox for inbox in self.own.values()})
        self.said = {role: text(f"no {title.lower()}") for role, title in _ROLES.items()}
        self.drops, self.lists = {}, {}
        for role, title in _ROLES.items():
            suffixes = _YAML if role == "camera" else READ_SUFFIXES
            drop = Drop(
                label=f"{title}: drop a file here, or click",
                accept=",".join((*suffixes, *(() if role == "camera" else _BESIDE))),
                multiple=role != "camera",
                address=f"upload/{self.own[role].key}",
                width=_WIDTH,
                margin=(5, 10),
            )
            drop.on_msg(partial(self._hear, role))
            names = {_NONE: _NONE} | {
                name: str(path) for name, path in session.allowed.list_files(suffixes).items()
            }
            choice = select(f"{title} from the folder", names, _WIDTH)
            choice.param.watch(lambda event, role=role: self._chosen(role, event.new), "value")
            self.drops[role], self.lists[role] = drop, choice
        example = button("Take the example", 180)
        example.on_click(lambda event: self._example())
        columns = [
            pn.Column(self.drops[role], self.lists[role], self.said[role], width=_WIDTH + 20)
            for role in _ROLES
        ]
        self.view = pn.Column(
            heading("1 Files"), pn.FlexBox(*columns, margin=0), example, sizing_mode="stretch_width"
        )

    def close(self) -> None:
        """Forget what is on its way to a tab that was closed."""
        for inbox in self.own.values():
            self.inboxes.pop(inbox.key, None)
            inbox.close()

    def _hear(self, role: str, event: DataEvent) -> None:
        said = event.data
        if "error" in said:
            say(self.said[role], str(said["error"]), "error")
        else:
            pn.state.execute(partial(self._upload, role, str(said["drop"])))

    async def _upload(self, role: str, drop: str) -> None:
        suffixes = _YAML if role == "camera" else READ_SUFFIXES
        files = self.own[role].take(drop)
        try:
            path = await asyncio.to_thread(keep_upload, self.uploads, files, suffixes)
            self.session.set_file(role, path)
        except Exception as error:
            later(partial(say, self.said[role], explain(error), "error"))
            return
        later(partial(self._uploaded, role, path.name))

    def _uploaded(self, role: str, name: str) -> None:
        self.lists[role].value = _NONE
        self._take(role, name)

    def _chosen(self, role: str, value: str) -> None:
        if value == _NONE:
            return
        try:
            self.session.set_file(role, value)
        except Exception as error:
            say(self.said[role], explain(error), "error")
            return
        self._take(role, self.session.allowed.name_of(self.session.allowed.resolve(value)))

    def _take(self, role: str, name: str) -> None:
        say(self.said[role], f"{_ROLES[role].lower()}: {name}")
        if role == "measurement" and "truth" in self.session.values:  # the example's
            self.session.set("truth", None)
            if "bundled:" in self.session.values.get("mask", ""):
                self.session.set("mask", None)
                say(self.said["mask"], "no mask")
        self.changed()

    def _example(self) -> None:
        self.session.use_example()
        for role in _ROLES:
            self.lists[role].value = _NONE
            say(self.said[role], "")
        say(self.said["measurement"], "snapshot: measured from the scene of the package")
        say(self.said["mask"], "mask: of the package")
        self.changed()
