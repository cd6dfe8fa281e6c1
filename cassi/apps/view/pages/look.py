"""Sections 4 and 5: look at a cube or an evaluation, and save a cube as the command does."""

import secrets
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import quote

import panel as pn
from param.parameterized import Event

from cassi.apps.view.cubes import CubeView, render_report, shorten_names
from cassi.apps.view.pages.parts import (
    STYLE,
    UNSAVED_KIND,
    make_button,
    make_field,
    make_heading,
    make_message_pane,
    make_select,
    run_in_thread,
    show_message,
)
from cassi.apps.view.runs import save_result
from cassi.apps.view.session import Session

# The report may run scripts and offer downloads. It shares no origin with the application, so a
# report from a stranger's folder cannot control it.
_REPORT_FRAME = """\
<iframe title="Report" sandbox="allow-scripts allow-downloads" src="report/{key}#{name}"></iframe>
"""
# The browser hides the height of a frame of another origin. So the report itself sends its height
# to `page.html`, which sets the height of the frame.
_HEIGHT_SCRIPT = b"""
<script>
  new ResizeObserver(([{ target }]) => parent.postMessage({ height: target.offsetHeight }, "*"))
    .observe(document.documentElement);
</script>
"""


class LookSection:
    """The report of the chosen cube or evaluation, and the section that saves the cube.

    Args:
        session: state of this tab.
        reports: reports that the server serves, by random key.
    """

    def __init__(self, session: Session, reports: dict[str, bytes]) -> None:
        self.session, self.reports = session, reports
        self.evaluations: dict[str, bytes] = {}
        self.labels: dict[str, str] = {}
        self.cube_list = make_select("Cube", [], None)
        self.cube_list.param.watch(self._choose_cube, "value")
        self.message, self.unsaved_line = make_message_pane(), make_message_pane()
        self.frame = pn.pane.HTML("", margin=0, stylesheets=[STYLE], sizing_mode="stretch_width")
        self.view = pn.Column(
            make_heading("4 Look"),
            self.cube_list,
            self.unsaved_line,
            self.message,
            self.frame,
            visible=False,
            sizing_mode="stretch_width",
        )
        self.folder_name = make_field("Name of the folder", "first", 240, "first")
        self.save_button = make_button("Save", primary=True)
        self.save_button.on_click(self._save)
        self.save_status = make_message_pane()
        self.save_view = pn.Column(
            make_heading("5 Save"),
            pn.Row(self.folder_name, pn.Column(pn.Spacer(height=18), self.save_button)),
            make_message_pane(f"below {session.output}"),
            self.save_status,
            visible=False,
        )
        self._report_key = ""
        self._unsaved_names: list[str] = []

    def open_cube(self, cube_view: CubeView) -> None:
        """Choose a cube of the session."""
        if cube_view.origin is not None:
            self._unsaved_names.append(cube_view.name)
        self._show_unsaved()
        self._list_cubes(cube_view.name)

    def open_evaluation(self, name: str, page: bytes) -> None:
        """Choose an evaluation, by its name and its page, HTML."""
        self.evaluations[name] = page
        if self.cube_list.value == name:
            self._show_report(name, page)
        else:
            self._list_cubes(name)

    def remove_report(self) -> None:
        """Remove the report of this tab, so that the server serves it no longer."""
        self.reports.pop(self._report_key, None)

    def _list_cubes(self, name: str) -> None:
        self.labels = shorten_names([*self.session.results, *self.evaluations])
        options = {label: name for name, label in self.labels.items()}
        self.cube_list.param.update(options=options, value=name)
        self.view.visible = True

    def _show_unsaved(self) -> None:
        names = "; ".join(self._unsaved_names)
        show_message(self.unsaved_line, f"not saved yet: {names}" if names else "", UNSAVED_KIND)

    async def _choose_cube(self, event: Event) -> None:
        name = event.new
        cube_view = self.session.results.get(name)
        self.save_view.visible = cube_view is not None and cube_view.origin is not None
        show_message(self.message, f"packing {name} …")

        def pack() -> bytes:
            if name in self.evaluations:
                return self.evaluations[name]
            cubes = {
                key: replace(cube, name=self.labels[key])
                for key, cube in self.session.results.items()
            }
            return render_report(cubes[name], cubes.values())

        await run_in_thread(self.message, pack, lambda page: self._show_report(name, page))

    def _show_report(self, name: str, page: bytes) -> None:
        if name != self.cube_list.value:  # the user has chosen another entry since
            return
        self.remove_report()
        self._report_key = secrets.token_urlsafe(24)
        self.reports[self._report_key] = page + _HEIGHT_SCRIPT
        label = self.labels[name]
        self.frame.object = _REPORT_FRAME.format(key=self._report_key, name=escape(quote(label)))
        show_message(self.message, name if label != name else "")

    async def _save(self, event: Event) -> None:
        cube_view = self.session.results.get(self.cube_list.value)
        if cube_view is None:
            return
        self.save_button.disabled = True
        show_message(self.save_status, "writing …")
        name = self.folder_name.value_input or self.folder_name.value

        def write() -> tuple[Path, str]:
            folder = resolve_result_folder(self.session.output, name)
            return folder, save_result(cube_view, folder)

        def show_command(result: tuple[Path, str]) -> None:
            self._unsaved_names = [name for name in self._unsaved_names if name != cube_view.name]
            self._show_unsaved()
            folder, command = result
            show_message(
                self.save_status, [f"saved in {folder}", f"to repeat it: {command}"], "good"
            )

        await run_in_thread(self.save_status, write, show_command)
        self.save_button.disabled = False


def resolve_result_folder(output: Path, name: str) -> Path:
    """Return the folder of a new result below the output folder.

    Raises:
        ValueError: the name is empty, hidden, or leads out of the output folder.
    """
    name = name.strip()
    # `..` begins with a dot, too, so this also refuses paths that lead upwards.
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or any(part.startswith(".") for part in parts):
        raise ValueError(f"name: expected one below {output}, got {name!r}")
    return output / name
