"""cassi-live: takes frames as they come, and shows cubes in a browser on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cassi import links
from cassi.apps.arguments import told_plugins
from cassi.apps.view.launch import Words, make_output, read_words, run_until_interrupted, show
from cassi.plugins import load_plugins

if TYPE_CHECKING:
    from cassi.apps.settings import Reconstruct

_HELP = "Reconstruct frames as they come, and look at the cubes in a browser on this machine."
_MORE = (
    "source= is a folder that fills, a video file, zmq://HOST:PORT, or genicam://FILE.cti. "
    "Other words are settings of cassi-reconstruct: cassi-live source=frames mask=mask.mat "
    "system.step=2"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> None:
        load_plugins(told_plugins(words))
        serve(parse(words))

    run_until_interrupted("cassi-live", command)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line: flags, `source=`, and settings.

    Raises:
        ValueError: there is no such port or flag.
    """
    parser = Words("cassi-live", description=_HELP, epilog=_MORE)
    parser.add_argument("settings", nargs="*", metavar="source=… KEY=VALUE")
    text = "a Zarr store for raw frames and cubes"
    parser.add_argument("--record", type=Path, metavar="FILE.zarr", help=text)
    given = read_words(parser, arguments, "outputs/live", "for frames of sockets and cameras")
    sources = [word for word in given.settings if word.startswith("source=")]
    given.source = sources[-1].partition("=")[2] if sources else ""
    given.settings = [word for word in given.settings if word not in sources]
    return given


def make_settings(given: argparse.Namespace) -> Reconstruct:
    """Return the settings of cassi-reconstruct that frames are reconstructed with.

    Raises:
        ValueError: there is no source, a record that is no store, or settings do not fit.
    """
    from cassi.apps.reconstructors import compose_settings  # the help does not wait for torch

    if not given.source:
        raise ValueError("source: expected source=FOLDER, a video file, zmq://… or genicam://…")
    if given.record is not None and given.record.suffix != ".zarr":
        raise ValueError(f"--record: expected a name that ends in .zarr, got {given.record}")
    settings: Reconstruct = compose_settings(given.settings)
    for name in ("measurement", "truth", "memory_budget", "heldout", "noise"):
        if vars(settings)[name] is not None:
            raise ValueError(f"{name}: expected null in cassi-live; frames come from the source")
    if settings.calibrate or settings.uncertainty or settings.guide.file is not None:
        raise ValueError("cassi-live: expected no calibrate, uncertainty or guide")
    if settings.mask is None:
        raise ValueError("mask: expected a file, got none; give mask=FILE")
    return settings


def serve(given: argparse.Namespace) -> None:
    """Serve the page until it is interrupted.

    Raises:
        OSError: source or mask are missing, or the port is taken.
        ValueError: settings do not fit.
    """
    settings = make_settings(given)
    import panel as pn

    from cassi.apps.command import prepare_process
    from cassi.apps.live.engine import Live
    from cassi.apps.live.page import make_page
    from cassi.apps.live.sources import open_source
    from cassi.apps.view.server import Server
    from cassi.data.day_store import Recording

    make_output(given.output)
    links.guard(given.output)
    prepare_process(settings)
    with contextlib.ExitStack() as at_end:
        spool = tempfile.TemporaryDirectory(
            prefix=".frames-", dir=given.output, ignore_cleanup_errors=True
        )
        source = open_source(given.source, Path(at_end.enter_context(spool)))
        at_end.callback(source.close)
        record = None
        if given.record is not None:
            record = at_end.enter_context(contextlib.closing(Recording(given.record)))
        live = Live(settings, source, record)
        pn.extension()
        server = Server(lambda: make_page(live), given.port, "cassi-live")
        at_end.callback(server.stop)
        worker = threading.Thread(target=live.run, name="reconstruct", daemon=True)
        at_end.callback(worker.join, 10)
        at_end.callback(live.stop)
        worker.start()
        show(server, given.output, given.no_browser)
