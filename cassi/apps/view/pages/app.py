"""The application of cassi-view: the objects that all tabs share, and the page of one tab."""

from collections.abc import Sequence
from pathlib import Path

import panel as pn

from cassi import links
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import CubeView
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
    """The objects that all tabs share: allowed folders, thread of the jobs, reports and uploads.

    Args:
        folders: folders of the command line, which may be read.
        output: folder of results and uploads.
        reports: reports that the server serves, HTML by random key.
        inboxes: inboxes that the server fills with uploads, by random key.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        output: Path,
        reports: dict[str, bytes],
        inboxes: dict[str, Inbox],
    ) -> None:
        links.guard_folders(output)
        self.output, self.reports, self.inboxes = output.resolve(), reports, inboxes
        self.allowed_paths = AllowedPaths([*folders, self.output])
        self.jobs = Jobs()
        pn.extension()

    def page(self) -> Page:
        """Make the page of a tab: its sections, and the calls between them."""
        session = Session(self.allowed_paths, self.output)

        def add_cube(cube_view: CubeView) -> None:
            look.open_cube(session.add(cube_view))

        look = LookSection(session, self.reports)
        gallery = GallerySection(session, add_cube, look.open_evaluation)
        run = RunSection(session, self.jobs, add_cube)
        camera = CameraSection(session, self.jobs, run.set_ready)
        files = FilesSection(session, self.inboxes, lambda: pn.state.execute(camera.refresh))

        def stop_tab(context: object) -> None:
            run.stop_job()
            look.remove_report()
            files.remove_inboxes()

        pn.state.onload(gallery.start)
        pn.state.onload(run.list_methods)
        pn.state.on_session_destroyed(stop_tab)
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
            empty_sections=("Results", "Look", "Save"),
        )

    def stop(self) -> None:
        """End the thread of the jobs, and the job that runs."""
        self.jobs.stop()
