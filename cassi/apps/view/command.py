"""cassi-view: an application in the browser, for snapshots and for folders of results."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.apps.arguments import told_plugins
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.launch import Words, make_output, read_words, run_until_interrupted, show
from cassi.checks import reading_only
from cassi.plugins import load_plugins

if TYPE_CHECKING:
    from cassi.apps.view.pages.app import Application

_HELP = "Look at snapshots, reconstruct them and look at the cubes, in a browser on this machine."
_MORE = "plugins=[mymod.py] among the folders loads your own networks, priors and metrics."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> None:
        given = parse([word for word in words if not word.startswith("plugins=")])
        load_plugins(told_plugins(words))
        serve(given)

    run_until_interrupted("cassi-view", command)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        ValueError: there is no such port or flag.
    """
    parser = Words("cassi-view", description=_HELP, epilog=_MORE)
    text = "with snapshots, masks, cameras or results, which may be read (the current one)"
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=text)
    return read_words(parser, arguments, "outputs/view", "of results and uploads")


def serve(given: argparse.Namespace) -> None:
    """Serve the application until it is interrupted.

    Raises:
        OSError: a folder is missing, or the port is taken.
    """
    from cassi.apps.view.server import Pattern, Report, Server, Upload
    from cassi.apps.view.uploads import LARGEST, Inbox

    folders = given.folders or [Path()]
    AllowedPaths(folders)
    make_output(given.output)
    reports: dict[str, bytes] = {}
    inboxes: dict[str, Inbox] = {}
    patterns: list[Pattern] = [
        ("/report/([A-Za-z0-9_-]+)", Report, {"reports": reports}),
        ("/upload/([A-Za-z0-9_-]+)/([0-9]+)", Upload, {"inboxes": inboxes}),
    ]
    applications: list[Application] = []
    with contextlib.ExitStack() as at_end:
        server = Server(lambda: applications[0].page(), given.port, "cassi-view", patterns, LARGEST)
        at_end.callback(server.stop)

        def load() -> None:
            from cassi.apps.view.pages.app import Application

            application = Application(folders, given.output, reports, inboxes)
            at_end.callback(application.close)
            at_end.enter_context(reading_only(application.allowed.check_opened))
            applications.append(application)

        show(server, given.output, given.no_browser, load)
