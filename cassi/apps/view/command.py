"""cassi-view: reconstruct snapshots and look at results, in a browser on this machine."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.apps.arguments import read_plugin_options
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.launch import (
    CommandLine,
    make_output,
    parse_command_line,
    run_until_interrupted,
    serve_until_interrupted,
)
from cassi.checks import check_opened_files
from cassi.plugins import load_plugins

if TYPE_CHECKING:
    from cassi.apps.view.pages.app import Application

_DESCRIPTION = (
    "Look at snapshots, reconstruct them and look at the cubes, in a browser on this machine."
)
_EPILOG = (
    "plugins=[mymod.py], given beside the folders, loads your own networks, priors and metrics."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)

    def run_command() -> None:
        options = parse([word for word in command_line if not word.startswith("plugins=")])
        load_plugins(read_plugin_options(command_line))
        serve(options)

    run_until_interrupted("cassi-view", run_command)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        ValueError: a flag is unknown, or the port is no number from 0 to 65535.
    """
    parser = CommandLine("cassi-view", description=_DESCRIPTION, epilog=_EPILOG)
    folder_help = (
        "a folder of snapshots, masks, cameras or results to read (default: the current one)"
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=folder_help)
    return parse_command_line(parser, arguments, "outputs/view", "of results and uploads")


def serve(options: argparse.Namespace) -> None:
    """Serve the application until it is interrupted.

    Raises:
        OSError: a folder is missing, or the port is taken.
    """
    from cassi.apps.view.server import Pattern, ReportHandler, Server, UploadHandler
    from cassi.apps.view.uploads import MAX_UPLOAD_BYTES, Inbox

    folders = options.folders or [Path()]
    AllowedPaths(folders)
    make_output(options.output)
    reports: dict[str, bytes] = {}
    inboxes: dict[str, Inbox] = {}
    patterns: list[Pattern] = [
        ("/report/([A-Za-z0-9_-]+)", ReportHandler, {"reports": reports}),
        ("/upload/([A-Za-z0-9_-]+)/([0-9]+)", UploadHandler, {"inboxes": inboxes}),
    ]
    applications: list[Application] = []
    with contextlib.ExitStack() as at_end:
        server = Server(
            lambda: applications[0].page(), options.port, "cassi-view", patterns, MAX_UPLOAD_BYTES
        )
        at_end.callback(server.stop)

        def load_application() -> None:
            # The import takes seconds, because of torch. Here it runs while the browser starts.
            from cassi.apps.view.pages.app import Application

            application = Application(folders, options.output, reports, inboxes)
            at_end.callback(application.stop)
            # From here on every file that this process opens is checked.
            at_end.enter_context(check_opened_files(application.allowed_paths.check_opened))
            applications.append(application)

        serve_until_interrupted(server, options.output, options.no_browser, load_application)
