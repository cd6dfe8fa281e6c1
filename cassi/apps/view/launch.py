"""How a command with a page runs: its errors in a line, its page in the browser until Ctrl-C."""

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
from cassi.apps.printing import marked
from cassi.apps.start import distrust_current_folder

if TYPE_CHECKING:
    from cassi.apps.view.server import Server

SECONDS = 120.0
"""For which the file that lets the browser in lies there: one that has to start takes long."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PANEL = ("panel", "bokeh", "tornado", "param")
_LINK = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{name}</title>
<meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">{name} starts …</a>
</html>
"""


class Words(ArgumentParser):
    """A command line whose mistakes are errors as all others are: one line, and no usage."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with what argparse says."""
        raise ValueError(f"{message}; {self.prog} --help lists all")


def read_words(
    parser: ArgumentParser, arguments: Sequence[str] | None, folder: str, content: str
) -> Namespace:
    """Read a command line with the flags of a page.

    Args:
        parser: with the other arguments of the command.
        arguments: of the command line.
        folder: default of `--output`.
        content: what is written into it, for the help.
    """
    text = f"folder {content} ({folder})"
    parser.add_argument("--output", type=Path, default=Path(folder), help=text)
    text = "to listen on; 0, the default, takes a free one"
    parser.add_argument("--port", type=_port, default=0, help=text)
    text = "print the address and open no browser"
    parser.add_argument("--no-browser", action="store_true", help=text)
    parser.add_argument("--version", action="version", version=f"cassi {cassi.__version__}")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    # The system would take the rest of a division.
    if not text.isdecimal() or not 0 <= (port := int(text)) < 2**16:
        raise ArgumentTypeError(f"expected 0 to 65535, got {text}; 0 takes a free one")
    return port


def make_output(folder: Path) -> None:
    """Make the folder of `--output`.

    Raises:
        OSError: it cannot be made, as in a current folder that is read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        from cassi.data.atomic import describe_oserror  # the help does not wait for it

        reason = describe_oserror(error)
        raise OSError(f"--output: cannot make {reason}; give --output DIR") from None


def run_until_interrupted(name: str, command: Callable[[], object]) -> None:
    """Run a command; a user's mistake, or a missing panel, is one line and status 2.

    SIGTERM, and SIGHUP of a terminal that closes, end it as Ctrl-C does.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    distrust_current_folder()
    try:
        for number in _heeded(_ENDING[1:]):
            signal.signal(number, _interrupt)
        with suppress(KeyboardInterrupt):
            command()
        with suppress(OSError):  # the terminal may be gone
            print(f"{name}: ended", flush=True)
    except Exception as error:
        from cassi.apps.command import USAGE_ERROR  # the first page does not wait for these
        from cassi.apps.errors import describe, is_usage_error

        missing = isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _PANEL
        if not missing and not is_usage_error(error):
            raise
        text = f"{error}; pip install 'cassi[app]'" if missing else describe(error)
        print(f"{name}: {marked('error')} {text}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # by nohup


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for each in _ENDING[1:]:  # often SIGTERM follows SIGHUP: it does not end the clean-up
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def show(
    server: Server,
    output: Path,
    no_browser: bool,
    load: Callable[[], object] = lambda: None,
) -> None:
    """Serve until Ctrl-C, and open the browser by a file that only the user can read.

    All users of a machine can read the command lines of its processes. So the browser is not given
    the address, which has a code, but the name of a file that leads to it.

    Args:
        server: that listens.
        output: folder of the command, where the file may lie.
        no_browser: open none.
        load: makes the application, while the browser starts and waits for its answer.
    """
    loop = server.io_loop.asyncio_loop
    print(f"{server.name}: {server.entrance}\nCtrl-C ends it", flush=True)
    with ExitStack() as link:

        def enter() -> None:
            link.close()
            with suppress(OSError):  # nobody reads what is printed
                print(f"{server.name}: a browser is in; for another: {server.entrance}", flush=True)

        server.guard.entered = enter
        if not no_browser:
            folder = link.enter_context(make_private_folder(output.resolve()))
            file = Path(folder, f"{server.name}.html")
            page = _LINK.format(address=escape(server.entrance), name=server.name)
            file.write_text(page, encoding="utf-8")
            server.io_loop.call_later(SECONDS, link.close)
            # Some browsers run in the terminal, and return when they are left; nobody waits.
            threading.Thread(target=webbrowser.open, args=[file.as_uri()], daemon=True).start()
        load()
        # An interrupt that is raised would leave a thread that starts, or a file just made.
        for number in _heeded(_ENDING):
            loop.add_signal_handler(number, loop.stop)
        try:
            server.io_loop.start()
        finally:
            loop.remove_signal_handler(signal.SIGINT)  # another Ctrl-C ends the clean-up


def make_private_folder(output: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only this user can read, for a file that a browser opens.

    Browsers in a sandbox see no folder of temporary files. So it lies in `output`, if no other user
    can change that, and if its file system has permissions.
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
