"""Section 1: the files of snapshot, mask and camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from cassi.apps.view.jobs import explain
from cassi.apps.view.pages.parts import DROP, button, heading, say, text
from cassi.apps.view.session import Session
from cassi.apps.view.uploads import keep_upload
from cassi.data.io import READ_SUFFIXES

_NONE = "none"
_ROLES = {"measurement": "Snapshot", "mask": "Mask", "camera": "Camera file"}
_YAML = (".yaml", ".yml")
_BESIDE = (".img", ".raw", ".dat", ".bsq", ".bil", ".bip")


class FilesSection:
    """Fields for files: dropped here, or chosen from the folders that may be read.

    Args:
        session: of this tab.
        changed: called when a file was chosen.
    """

    def __init__(self, session: Session, changed: Callable[[], Any]) -> None:
        self.session, self.changed = session, changed
        self.said = {role: text(f"no {title.lower()}") for role, title in _ROLES.items()}
        self.drops, self.lists = {}, {}
        for role, title in _ROLES.items():
            suffixes = _YAML if role == "camera" else READ_SUFFIXES
            drop = pn.widgets.FileInput(
                name=f"{title}: drop a file here, or choose one",
                accept=",".join((*suffixes, *(() if role == "camera" else _BESIDE))),
                multiple=role != "camera",
                stylesheets=[DROP],
                width=330,
            )
            drop.param.watch(lambda event, role=role: self._upload(role), "value")
            names = {_NONE: _NONE} | {
                name: str(path) for name, path in session.allowed.list_files(suffixes).items()
            }
            choice = pn.widgets.Select(name=f"{title} from the folder", options=names, width=330)
            choice.param.watch(lambda event, role=role: self._chosen(role, event.new), "value")
            self.drops[role], self.lists[role] = drop, choice
        example = button("Take the example", 180)
        example.on_click(lambda event: self._example())
        columns = [
            pn.Column(self.drops[role], self.lists[role], self.said[role], width=350)
            for role in _ROLES
        ]
        self.view = pn.Column(heading("1 Files"), pn.Row(*columns), example)

    def _upload(self, role: str) -> None:
        drop = self.drops[role]
        if not drop.value:
            return
        several = isinstance(drop.value, list)
        names, contents = (
            (drop.filename, drop.value) if several else ([drop.filename], [drop.value])
        )
        files = dict(zip(names, contents, strict=True))
        suffixes = _YAML if role == "camera" else READ_SUFFIXES
        try:
            path = keep_upload(self.session.output / "uploads", files, suffixes)
            self.session.set_file(role, path)
        except Exception as error:
            say(self.said[role], explain(error), "error")
            return
        self.lists[role].value = _NONE
        self._take(role, path.name)

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
