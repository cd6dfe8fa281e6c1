"""Section 1, files: snapshot, mask and camera, dropped into the page or chosen from lists."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import panel as pn
import param
from panel.models.esm import DataEvent

from cassi.apps.view.jobs import describe_error
from cassi.apps.view.pages.parts import (
    STYLE,
    make_button,
    make_heading,
    make_message_pane,
    make_select,
    run_in_thread,
    show_message,
)
from cassi.apps.view.session import Session
from cassi.apps.view.uploads import MAX_UPLOAD_BYTES, Inbox, store_upload
from cassi.data.io import READ_SUFFIXES

_NO_FILE = "none"
_WIDTH = 240  # width of a field, pixels: three fit beside each other on a tablet
_ROLE_TITLES = {"measurement": "Snapshot", "mask": "Mask", "camera": "Camera file"}
_YAML_SUFFIXES = (".yaml", ".yml")
# An ENVI image has its values in a second file with one of these suffixes.
_COMPANION_SUFFIXES = (".img", ".raw", ".dat", ".bsq", ".bil", ".bip")


class DropField(pn.custom.JSComponent):
    """A field for dropped or chosen files. It sends the files to an inbox, and then a message."""

    label = param.String()
    accept = param.String()
    multiple = param.Boolean()
    address = param.String()
    max_bytes = param.Integer(MAX_UPLOAD_BYTES)

    _esm = Path(__file__).with_name("drop.js").read_text(encoding="utf-8")
    _stylesheets: ClassVar = [STYLE]


class FilesSection:
    """Fields for files, which are dropped here or chosen from the allowed folders.

    Args:
        session: state of this tab.
        inboxes: inboxes that the server fills with uploads, by random key.
        on_change: called when a file was chosen.
    """

    def __init__(
        self, session: Session, inboxes: dict[str, Inbox], on_change: Callable[[], object]
    ) -> None:
        self.session, self.inboxes, self.on_change = session, inboxes, on_change
        self.keys = {role: secrets.token_urlsafe(24) for role in _ROLE_TITLES}
        self.messages = {
            role: make_message_pane(f"no {title.lower()}") for role, title in _ROLE_TITLES.items()
        }
        self.lists, columns = {}, []
        for role, title in _ROLE_TITLES.items():
            inboxes[self.keys[role]] = Inbox()
            is_array = role != "camera"
            drop = DropField(
                label=f"{title}: drop a file here, or click",
                accept=",".join(
                    (*READ_SUFFIXES, *_COMPANION_SUFFIXES) if is_array else _YAML_SUFFIXES
                ),
                multiple=is_array,
                address=f"upload/{self.keys[role]}",
                width=_WIDTH,
                margin=(5, 10),
            )
            drop.on_msg(partial(self._receive_drop, role))
            files = session.allowed_paths.list_files(READ_SUFFIXES if is_array else _YAML_SUFFIXES)
            file_options = {_NO_FILE: _NO_FILE} | {name: str(path) for name, path in files.items()}
            self.lists[role] = make_select(f"{title} from the folder", file_options, _WIDTH)
            # `role=role` keeps the present role, because the loop changes the variable.
            self.lists[role].param.watch(
                lambda event, role=role: self._choose_file(role, event.new), "value"
            )
            widgets = drop, self.lists[role], self.messages[role]
            columns.append(pn.Column(*widgets, width=_WIDTH + 20))
        example = make_button("Take the example", 180)
        example.on_click(lambda event: self._take_example())
        self.view = pn.Column(
            make_heading("1 Files"),
            pn.FlexBox(*columns, margin=0),
            example,
            sizing_mode="stretch_width",
        )

    def remove_inboxes(self) -> None:
        """Remove the inboxes of this tab, so that the server takes no more uploads for it."""
        for key in self.keys.values():
            self.inboxes.pop(key, None)

    def _receive_drop(self, role: str, event: DataEvent) -> None:
        if "error" in event.data:
            show_message(self.messages[role], str(event.data["error"]), "error")
            return
        files = self.inboxes[self.keys[role]].take(str(event.data["drop"]))
        suffixes = _YAML_SUFFIXES if role == "camera" else READ_SUFFIXES

        def store() -> str:
            path = store_upload(self.session.output / "uploads", files, suffixes)
            self.session.set_file(role, path)
            return path.name

        def show_name(name: str) -> None:
            self.lists[role].value = _NO_FILE
            self._show_file_name(role, name)

        pn.state.execute(partial(run_in_thread, self.messages[role], store, show_name))

    def _choose_file(self, role: str, value: str) -> None:
        if value == _NO_FILE:
            return
        # The list was made with the page, and a file may have been removed since.
        try:
            self.session.set_file(role, value)
        except Exception as error:
            show_message(self.messages[role], describe_error(error), "error")
            return
        self._show_file_name(
            role, self.session.allowed_paths.name_of(self.session.allowed_paths.resolve(value))
        )

    def _show_file_name(self, role: str, name: str) -> None:
        show_message(self.messages[role], f"{_ROLE_TITLES[role].lower()}: {name}")
        # A measurement replaces the example, whose truth and mask do not belong to it.
        if role == "measurement" and "truth" in self.session.values:
            self.session.set("truth", None)
            if "bundled:" in self.session.values.get("mask", ""):
                self.session.set("mask", None)
                show_message(self.messages["mask"], "no mask")
        self.on_change()

    def _take_example(self) -> None:
        self.session.use_example()
        for role in _ROLE_TITLES:
            self.lists[role].value = _NO_FILE
            show_message(self.messages[role], "")
        show_message(
            self.messages["measurement"], "snapshot: simulated from the scene of the package"
        )
        show_message(self.messages["mask"], "mask: of the package")
        self.on_change()
