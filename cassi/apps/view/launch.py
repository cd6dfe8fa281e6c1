"""How a command with a page runs: its errors in a line, its page in the browser until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import webbrowser
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import cassi
from cassi.apps.printing import marked
from cassi.apps.start import distrust_current_folder
from cassi.apps.view.one_time_link import SECONDS, OneTimeLink

if TYPE_CHECKING:
    from cassi.apps.view.server import Server

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PANEL = ("panel", "bokeh", "tornado", "param")


class Words(ArgumentParser):
    """A command line whose mistakes are errors as all others are: one line, and no usage."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with what argparse says."""
        raise ValueError(f"{message}; {self.prog} --help lists all")


def _port(text: str) -> int:
    # The system would take the rest of a division.
    if not text.isdecimal() or not 0 <= (port := int(text)) < 2**16:
        raise ArgumentTypeError(f"expected 0 to 65535, got {text}; 0 takes a free one")
    return port


def read_words(
    parser: ArgumentParser, arguments: Sequence[str] | None, folder: str, said: str
) -> Namespace:
    """Read a command line with the flags of a page, and of the folder that it writes into.

    Raises:
        ValueError: there is no such port or flag.
    """
    said = f"folder {said} ({folder})"
    parser.add_argument("--output", type=Path, default=Path(folder), help=said)
    said = "to listen on; 0, the default, takes a free one"
    parser.add_argument("--port", type=_port, default=0, help=said)
    said = "print the address and open no browser"
    parser.add_argument("--no-browser", action="store_true", help=said)
    parser.add_argument("--version", action="version", version=f"cassi {cassi.__version__}")
    return parser.parse_args(arguments)


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
        _handle(_interrupt)
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
        said = f"{error}; pip install 'cassi[app]'" if missing else describe(error)
        print(f"{name}: {marked('error')} {said}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, handler)


def _begin_end() -> None:
    """Let no signal but Ctrl-C end the clean-up: often SIGTERM follows SIGHUP."""
    _handle(signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _begin_end()
    raise KeyboardInterrupt


def show(
    server: Server,
    output: Path,
    at_end: ExitStack,
    no_browser: bool,
    load: Callable[[], Awaitable[None]],
) -> None:
    """Serve until Ctrl-C, and open the browser by a file that only the user can read.

    Args:
        server: that listens.
        output: folder of the command, where the file may lie.
        at_end: closes the file.
        no_browser: open none.
        load: makes the application while the browser starts; what it raises ends the command.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        # An interrupt that is raised would leave a thread that starts, or a file just made.
        _begin_end()
        server.io_loop.asyncio_loop.call_soon_threadsafe(server.io_loop.stop)

    _handle(stop)
    print(f"{server.name}: {server.entrance}\nCtrl-C ends it", flush=True)
    file = at_end.enter_context(ExitStack())

    def enter() -> None:
        file.close()
        with suppress(OSError):  # nobody reads what is printed
            print(f"{server.name}: a browser is in; for another: {server.entrance}", flush=True)

    server.guard.entered = enter
    if not no_browser:
        link = OneTimeLink(output.resolve(), server.entrance, server.name)
        file.callback(link.close)
        server.io_loop.call_later(SECONDS, file.close)
        # Some browsers run in the terminal, and return when they are left; nobody waits for them.
        start = threading.Thread(target=webbrowser.open, args=[link.path.as_uri()], daemon=True)
        start.start()
    failures = []

    async def loading() -> None:
        try:
            await load()
        except Exception as error:
            failures.append(error)
            server.io_loop.stop()

    server.io_loop.add_callback(loading)
    server.io_loop.start()
    if failures:
        raise failures[0]
