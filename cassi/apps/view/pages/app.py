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
from cassi.apps.view.pages.template import Page
from cassi.apps.view.session import Session
from cassi.apps.view.uploads import Inbox


class Application:
    """The folders that may be read, the thread of the jobs, and what the server serves and takes.

    Args:
        folders: of the command line.
        output: folder of results and uploads.
        reports: HTML by random key.
        inboxes: of uploads by random key.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        output: Path,
        reports: dict[str, bytes],
        inboxes: dict[str, Inbox],
    ) -> None:
        links.guard(output)
        self.output, self.reports, self.inboxes = output.resolve(), reports, inboxes
        self.allowed = AllowedPaths([*folders, self.output])
        self.jobs = Jobs()
        pn.extension()

    def page(self) -> Page:
        """Make the page of a tab: its sections, and the calls among them."""
        session = Session(self.allowed, self.output)

        def open_cube(shown: Shown) -> None:
            look.open(session.add(shown))

        look = LookSection(session, self.reports)
        gallery = GallerySection(session, open_cube, look.open_evaluation)
        run = RunSection(session, self.jobs, open_cube)
        camera = CameraSection(session, self.jobs, run.allow)
        files = FilesSection(session, self.inboxes, lambda: pn.state.execute(camera.refresh))

        def close(context: object) -> None:
            run.close()
            look.close()
            files.close()

        pn.state.onload(gallery.begin)
        pn.state.onload(run.list_methods)
        pn.state.on_session_destroyed(close)
        return Page(
            "cassi-view",
            "From a snapshot and its mask to a cube. Everything stays on this machine.",
            {
                "Results": gallery.view,
                "Files": files.view,
                "Camera": camera.view,
                "Reconstruct": run.view,
                "Look": look.view,
                "Save": look.save_view,
            },
            late=("Results", "Look", "Save"),
        )

    def close(self) -> None:
        """End the thread, and the job that runs."""
        self.jobs.close()
