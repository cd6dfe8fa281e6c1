"""What a command prints: all of it, warnings alone (`--quiet`), or one JSON object (`--json`)."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = ("--quiet", "--json")
_SHOWN = ("--info", "-i", "--help", "-h", "--hydra-help", "--version", "--cfg", "-c")
"""Flags by which a command prints something and does nothing else."""
_NUMBERS = ("metrics.json", "calibration.json", "results.json", "timing.json")
_COLOURS = {"error": "31", "warning": "33"}
_QUIET = "CASSI_QUIET"
"""Environment variable: this process and those that it starts show no progress."""
_folders: list[Path] = []


class Failure(SystemExit):
    """The end of a command by an error.

    Attributes:
        message: what is printed behind `error:`.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status)
        self.message = message


def marked(word: str) -> str:
    """Return `error:` or `warning:`, coloured where stderr is a terminal that has colours.

    With the environment variable `NO_COLOR` there is no colour, see https://no-color.org.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stderr.isatty():
        return f"{word}:"
    return f"\033[{_COLOURS[word]}m{word}:\033[0m"


def is_quiet() -> bool:
    """Tell whether the command shows no progress."""
    return _QUIET in os.environ


def note_folder(folder: Path) -> None:
    """Remember where a job has written its results, for `--json`."""
    _folders.append(folder)


def take_flags(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return which of `FLAGS` stand among the arguments of a command, and the others."""
    found = set(FLAGS) & set(arguments)
    return found, [word for word in arguments if word not in FLAGS]


@contextlib.contextmanager
def printed(flags: set[str]) -> Iterator[None]:
    """Print of a command what its flags say. Warnings and errors stay, on stderr.

    With `--json` the last and only line of stdout is `{"status": 0, "runs": [{"folder": …,
    "metrics": {…}}]}`: for each job its folder and the numbers in the files of `_NUMBERS`. Of a
    command that fails it is `{"status": 2, "error": …}`.
    """
    if not flags or any(word in _SHOWN for word in sys.argv[1:]):
        yield
        return
    said: dict[str, Any] = {"status": 0}
    with contextlib.ExitStack() as stack:
        os.environ[_QUIET] = "1"
        stack.callback(os.environ.pop, _QUIET)
        _folders.clear()
        nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            yield
        except SystemExit as end:
            said["status"] = end.code or 0
            if isinstance(end, Failure):
                said["error"] = end.message
            raise
        finally:
            if "--json" in flags and sys.exc_info()[0] in (None, SystemExit, Failure):
                if "error" not in said:
                    said["runs"] = [{"folder": str(f), **_numbers(f)} for f in _folders]
                stack.close()
                print(json.dumps(said), flush=True)


def _numbers(folder: Path) -> dict[str, Any]:
    files = [folder / name for name in _NUMBERS if (folder / name).is_file()]
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
