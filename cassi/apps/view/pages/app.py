"""The application: the parts that all tabs share, and the page of a tab."""

from collections.abc import Sequence
from pathlib import Path

import panel as pn

from cassi import links
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import Jobs
from cassi.apps.view.pages.camera import CameraSection
from cassi.apps.view.pages.files import FilesSection
from cassi.apps.view.pages.gallery import GallerySection
from cassi.apps.view.pages.look import LookSection
from cassi.apps.view.pages.run import RunSection
from cassi.apps.view.pages.save import SaveSection
from cassi.apps.view.pages.template import Page
from cassi.apps.view.session import Session
from cassi.apps.view.uploads import Inbox


class Application:
    """The folders that may be read, the thread of the jobs, and the reports of all tabs.

    Args:
        folders: of the command line.
        output: folder of results and uploads; made if it is missing.

    Raises:
        OSError: a folder is missing, or the output folder cannot be made.
    """

    def __init__(self, folders: Sequence[Path], output: Path) -> None:
        AllowedPaths(folders)
        output.mkdir(parents=True, exist_ok=True)
        links.guard(output)
        self.output = output.resolve()
        self.allowed = AllowedPaths([*folders, self.output])
        self.jobs = Jobs()
        self.reports: dict[str, bytes] = {}
        self.inboxes: dict[str, Inbox] = {}
        pn.extension()

    def page(self) -> Page:
        """Make the page of a tab."""
        return Tab(self).template

    def close(self) -> None:
        """End the thread, and the job that runs."""
        self.jobs.close()


class Tab:
    """The sections of a page, and the calls among them."""

    def __init__(self, application: Application) -> None:
        session = Session(application.allowed, application.output)
        self.session = session
        self.gallery = GallerySection(
            session, self._open, lambda name, page: self.look.open_evaluation(name, page)
        )
        self.files = FilesSection(session, application.inboxes, self._read)
        self.run = RunSection(session, application.jobs, self._open)
        self.camera = CameraSection(
            session, application.jobs, lambda found: self.run.allow(found is not None)
        )
        self.look = LookSection(session, application.reports, self._chosen)
        self.save = SaveSection(session, self.look)
        self.template = Page(
            "cassi-view",
            "From a snapshot and its mask to a cube. Everything stays on this machine.",
            {
                "Results": self.gallery.view,
                "Files": self.files.view,
                "Camera": self.camera.view,
                "Reconstruct": self.run.view,
                "Look": self.look.view,
                "Save": self.save.view,
            },
            late=("Results", "Look", "Save"),
        )
        pn.state.onload(self.gallery.begin)
        pn.state.onload(self.run.list_methods)
        pn.state.on_session_destroyed(self._close)

    def _read(self) -> None:
        pn.state.execute(self.camera.refresh)

    def _open(self, shown: Shown) -> None:
        self.look.open(self.session.add(shown))

    def _chosen(self, shown: Shown | None) -> None:
        if shown is None:
            self.save.view.visible = False
        else:
            self.save.show(shown)

    def _close(self, context: object) -> None:
        self.run.close()
        self.look.close()
        self.files.close()
