"""Start and end of commands with a page: command line, errors, signals, and the browser."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import webbrowser
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import cassi
from cassi.apps.printing import color_label
from cassi.apps.start import distrust_current_folder

if TYPE_CHECKING:
    from cassi.apps.view.server import Server

LINK_SECONDS = 120.0
"""Time after which the file with the address is removed. A browser that has to start takes long."""
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PANEL_PACKAGES = ("panel", "bokeh", "tornado", "param")
_LINK_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{name}</title>
<meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">{name} starts …</a>
</html>
"""


class CommandLine(ArgumentParser):
    """A parser that reports a mistake like every other error: in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with the message of argparse."""
        raise ValueError(f"{message}; {self.prog} --help lists all options")


def parse_command_line(
    parser: ArgumentParser, arguments: Sequence[str] | None, folder: str, content: str
) -> Namespace:
    """Parse a command line, with the flags that all commands with a page have.

    Args:
        parser: has the other arguments of the command.
        arguments: words of the command line.
        folder: default of `--output`.
        content: what the command writes into it, for the help: `of …` or `for …`.
    """
    output_help = f"folder {content} (default: {folder})"
    parser.add_argument("--output", type=Path, default=Path(folder), help=output_help)
    port_help = "port to listen on (default: 0, any free port)"
    parser.add_argument("--port", type=_parse_port, default=0, help=port_help)
    browser_help = "print the address, but open no browser"
    parser.add_argument("--no-browser", action="store_true", help=browser_help)
    parser.add_argument("--version", action="version", version=f"cassi {cassi.__version__}")
    return parser.parse_args(arguments)


def _parse_port(text: str) -> int:
    # The system would silently take a larger number modulo 65536.
    if not text.isdecimal() or not 0 <= (port := int(text)) < 2**16:
        raise ArgumentTypeError(f"expected 0 to 65535, got {text}; 0 takes a free port")
    return port


def make_output(folder: Path) -> None:
    """Make the folder of `--output`.

    Raises:
        OSError: the folder cannot be made, for example below a read-only folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Imported here, because `--help` should not wait for it.
        from cassi.data.atomic import describe_oserror

        reason = describe_oserror(error)
        raise OSError(f"--output: cannot make {reason}; give --output DIR") from None


def run_until_interrupted(name: str, command: Callable[[], object]) -> None:
    """Run a command until it ends or a signal interrupts it.

    If the user made a mistake, or a package for the page is missing, print one line and exit with
    status 2.

    SIGTERM, and SIGHUP from a terminal that closes, end the command like Ctrl-C.
    """
    previous_handlers = {number: signal.getsignal(number) for number in _END_SIGNALS}
    distrust_current_folder()
    try:
        for number in _drop_ignored(_END_SIGNALS[1:]):
            signal.signal(number, _interrupt)
        with suppress(KeyboardInterrupt):
            command()
        with suppress(OSError):  # a closed terminal takes no output
            print(f"{name}: ended", flush=True)
    except Exception as error:
        # Imported here, because the first page should not wait for them.
        from cassi.apps.command import EXIT_USAGE_ERROR
        from cassi.apps.errors import describe, is_usage_error

        package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else None
        is_missing_package = package in _PANEL_PACKAGES
        if not is_missing_package and not is_usage_error(error):
            raise
        text = f"{error}; pip install 'cassi[app]'" if is_missing_package else describe(error)
        print(f"{name}: {color_label('error')} {text}", file=sys.stderr)
        sys.exit(EXIT_USAGE_ERROR)
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _drop_ignored(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    # `nohup` makes a command ignore SIGHUP, and the command must not change that.
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # SIGTERM often follows SIGHUP at once. The second signal must not interrupt the clean-up.
    for other_number in _END_SIGNALS[1:]:
        signal.signal(other_number, signal.SIG_IGN)
    raise KeyboardInterrupt


def serve_until_interrupted(
    server: Server,
    output: Path,
    no_browser: bool,
    load: Callable[[], object] = lambda: None,
) -> None:
    """Serve until Ctrl-C, and open the browser with a file that only this user can read.

    Every user of a machine can read the command lines of all processes. The address has a secret
    code, so the browser gets the name of a file that leads to the address.

    Args:
        server: listens already.
        output: folder of the results; the file lies below this folder if possible.
        no_browser: do not open a browser.
        load: makes the application, while the browser starts and waits for an answer.
    """
    loop = server.io_loop.asyncio_loop
    print(f"{server.name}: {server.entrance}\nCtrl-C ends it", flush=True)
    with ExitStack() as link_files:

        def remove_link() -> None:
            link_files.close()
            with suppress(OSError):  # a closed terminal takes no output
                print(f"{server.name}: opened; for another browser: {server.entrance}", flush=True)

        server.guard.on_entry = remove_link
        if not no_browser:
            folder = link_files.enter_context(make_private_folder(output.resolve()))
            file = Path(folder, f"{server.name}.html")
            page = _LINK_PAGE.format(address=escape(server.entrance), name=server.name)
            file.write_text(page, encoding="utf-8")
            server.io_loop.call_later(LINK_SECONDS, link_files.close)
            # A browser that runs in the terminal blocks `open` until the user leaves it. So `open`
            # runs in a thread.
            threading.Thread(target=webbrowser.open, args=[file.as_uri()], daemon=True).start()
        load()
        # From here on a signal stops the loop. An exception raised in the middle of a statement
        # could leave a half-started thread, or a file that nobody removes.
        for number in _drop_ignored(_END_SIGNALS):
            loop.add_signal_handler(number, loop.stop)
        try:
            server.io_loop.start()
        finally:
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C interrupts the clean-up


def make_private_folder(output: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only this user can read, for a file that a browser opens.

    A browser in a sandbox does not see the folder of temporary files. So the folder lies in
    `output`, unless another user can write there, or the file system has no permissions.
    """
    status = output.stat()
    if status.st_uid == os.getuid() and not status.st_mode & 0o022:
        folder = tempfile.TemporaryDirectory(
            prefix=".open-", dir=output, ignore_cleanup_errors=True
        )
        if not Path(folder.name).stat().st_mode & 0o077:
            return folder
        folder.cleanup()
    return tempfile.TemporaryDirectory(prefix="cassi-view-", ignore_cleanup_errors=True)
