"""cassi-live: reconstruct frames as they arrive, and show the cubes in a browser."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cassi import links
from cassi.apps.arguments import read_plugin_options
from cassi.apps.view.launch import (
    CommandLine,
    make_output,
    parse_command_line,
    run_until_interrupted,
    serve_until_interrupted,
)
from cassi.plugins import load_plugins

if TYPE_CHECKING:
    from cassi.apps.settings import Reconstruct

_DESCRIPTION = (
    "Reconstruct frames as they arrive, and look at the cubes in a browser on this machine."
)
_EPILOG = (
    "source= is a folder that another program fills, a video file, zmq://HOST:PORT, or "
    "genicam://FILE.cti. "
    "deadline=20ms takes the best method that reconstructs a frame in this time. "
    "Other words are settings of cassi-reconstruct: cassi-live source=frames mask=mask.mat "
    "system.step=2"
)
_METHOD_SETTINGS = {
    *("method", "model", "solver", "prior", "schedule", "denoiser", "adapt", "refine", "precision")
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)

    def run_command() -> None:
        load_plugins(read_plugin_options(command_line))
        serve(parse(command_line))

    run_until_interrupted("cassi-live", run_command)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line: flags, `source=`, `deadline=`, and settings.

    Raises:
        ValueError: there is no such port or flag.
    """
    parser = CommandLine("cassi-live", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("settings", nargs="*", metavar="source=… KEY=VALUE")
    record_help = "a Zarr store for raw frames and cubes"
    parser.add_argument("--record", type=Path, metavar="FILE.zarr", help=record_help)
    options = parse_command_line(
        parser, arguments, "outputs/live", "for frames of sockets and cameras"
    )
    for name in ("source", "deadline"):
        words = [word for word in options.settings if word.startswith(f"{name}=")]
        setattr(options, name, words[-1].partition("=")[2] if words else "")
        options.settings = [word for word in options.settings if word not in words]
    return options


def read_deadline(options: argparse.Namespace) -> float | None:
    """Return the seconds in which a frame is reconstructed; None if there is no deadline.

    Raises:
        ValueError: the deadline is no time, or a setting chooses the method.
    """
    from cassi.methods.deadline import parse_deadline

    if not options.deadline:
        return None
    for word in options.settings:
        key = word.lstrip("+~").partition("=")[0]
        if re.split(r"[.@]", key)[0] in _METHOD_SETTINGS:
            raise ValueError(f"deadline: expected none with {key}, it chooses the method itself")
    return parse_deadline(options.deadline)


def make_settings(options: argparse.Namespace) -> Reconstruct:
    """Return the settings of cassi-reconstruct that all frames are reconstructed with.

    Raises:
        ValueError: no source is given, the record is no Zarr store, or a setting does not fit.
    """
    # Imported here, because it imports torch, and `--help` should not wait for that.
    from cassi.apps.reconstructors import compose_settings

    if not options.source:
        raise ValueError("source: expected source=FOLDER, a video file, zmq://… or genicam://…")
    if options.record is not None and options.record.suffix != ".zarr":
        raise ValueError(f"--record: expected a name that ends in .zarr, got {options.record}")
    settings: Reconstruct = compose_settings(options.settings)
    for name in ("measurement", "truth", "memory_budget", "heldout", "noise"):
        if vars(settings)[name] is not None:
            raise ValueError(f"{name}: expected null in cassi-live; frames come from the source")
    if settings.calibrate or settings.has_error_bars or settings.guide.file is not None:
        raise ValueError(
            "cassi-live: expected no calibrate, uncertainty, samples, answers or guide"
        )
    if settings.mask is None:
        raise ValueError("mask: expected a file, got none; give mask=FILE")
    return settings


def serve(options: argparse.Namespace) -> None:
    """Serve the page until it is interrupted.

    Raises:
        OSError: the source or the mask is missing, or the port is taken.
        ValueError: a setting does not fit.
    """
    settings, deadline = make_settings(options), read_deadline(options)
    import panel as pn

    from cassi.apps.command import prepare_process
    from cassi.apps.live.engine import LiveReconstruction
    from cassi.apps.live.page import make_page
    from cassi.apps.live.sources import open_source
    from cassi.apps.view.server import Server
    from cassi.data.day_store import FrameRecorder

    make_output(options.output)
    links.guard_folders(options.output)
    prepare_process(settings)
    with contextlib.ExitStack() as at_end:
        spool = tempfile.TemporaryDirectory(
            prefix=".frames-", dir=options.output, ignore_cleanup_errors=True
        )
        source = open_source(options.source, Path(at_end.enter_context(spool)))
        at_end.callback(source.stop)
        record = None
        if options.record is not None:
            record = at_end.enter_context(contextlib.closing(FrameRecorder(options.record)))
        reconstruction = LiveReconstruction(settings, source, record, deadline=deadline)
        pn.extension()
        server = Server(lambda: make_page(reconstruction), options.port, "cassi-live")
        at_end.callback(server.stop)
        worker = threading.Thread(target=reconstruction.run, name="reconstruct", daemon=True)
        # The callbacks run in reverse order: first the thread is told to stop, then `join` waits
        # for its end, 10 s at most.
        at_end.callback(worker.join, 10)
        at_end.callback(reconstruction.stop)
        worker.start()
        serve_until_interrupted(server, options.output, options.no_browser)
