"""How a command with a page runs: its errors in a line, its page in the browser until Ctrl-C."""

import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cassi.apps.printing import marked
from cassi.apps.view.one_time_link import SECONDS, OneTimeLink

_PANEL = ("panel", "bokeh", "tornado", "param")


def read_words(
    parser: ArgumentParser, arguments: Sequence[str] | None, folder: str, said: str
) -> Namespace:
    """Read a command line with the flags of a page, and of the folder that it writes into."""
    said = f"folder {said} ({folder})"
    parser.add_argument("--output", type=Path, default=Path(folder), help=said)
    said = "to listen on; 0, the default, takes a free one"
    parser.add_argument("--port", type=int, default=0, help=said)
    said = "print the address and open no browser"
    parser.add_argument("--no-browser", action="store_true", help=said)
    return parser.parse_args(arguments)


def run_until_interrupted(name: str, command: Callable[[], Any]) -> None:
    """Run a command; a user's mistake, or a missing panel, is one line and status 2."""
    try:
        command()
    except KeyboardInterrupt:
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


def show(
    server: Any,
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
    print(f"{server.name}: {server.entrance}\nCtrl-C ends it", flush=True)
    if not no_browser:
        link = OneTimeLink(output.resolve(), server.link_address)
        at_end.callback(link.close)
        server.guard.link = link
        server.io_loop.call_later(SECONDS, link.close)
        # Some browsers run in the terminal, and return when they are left.
        start = partial(webbrowser.open, link.path.as_uri())
        server.io_loop.run_in_executor(None, start)
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
