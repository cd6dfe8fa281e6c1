"""The output of a command: everything, warnings only (`--quiet`) or one JSON object (`--json`)."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = ("--quiet", "--json")
"""Flags that change what a command prints on stdout."""
# With these flags a command prints something and does nothing else: its output is always shown.
_DISPLAY_FLAGS = ("--info", "-i", "--help", "-h", "--hydra-help", "--version", "--cfg", "-c")
_RESULT_FILES = ("metrics.json", "calibration.json", "results.json", "timing.json")
_COLOUR_CODES = {"error": "31", "warning": "33"}
# An environment variable, so that the processes that the command starts show no progress either.
_QUIET_VARIABLE = "CASSI_QUIET"
# Folders of the results, which `--json` lists.
_result_folders: list[Path] = []


class Failure(SystemExit):
    """Raised to end a command after an error.

    Attributes:
        message: the text that is printed after `error:`.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status)
        self.message = message


def color_label(word: str) -> str:
    """Return `error:` or `warning:`, coloured where stderr is a terminal that has colours.

    The environment variable `NO_COLOR` turns colours off, see https://no-color.org.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain or not sys.stderr.isatty():
        return f"{word}:"
    return f"\033[{_COLOUR_CODES[word]}m{word}:\033[0m"


def is_quiet() -> bool:
    """Tell whether the command shows no progress."""
    return _QUIET_VARIABLE in os.environ


def note_folder(folder: Path) -> None:
    """Remember the folder of a job's results, which `--json` lists at the end."""
    _result_folders.append(folder)


def take_flags(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the members of `FLAGS` among the arguments of a command, and all other arguments."""
    flags = set(FLAGS) & set(arguments)
    return flags, [word for word in arguments if word not in FLAGS]


@contextlib.contextmanager
def filter_output(flags: set[str]) -> Iterator[None]:
    """Hide the output on stdout if a flag asks for it. Warnings and errors stay, on stderr.

    With `--json` stdout has one line, `{"status": 0, "runs": [{"folder": …, "metrics": {…}}]}`: for
    each job its folder and the numbers of its result files. If the command fails, the line is
    `{"status": 2, "error": …}`.
    """
    if not flags or any(word in _DISPLAY_FLAGS for word in sys.argv[1:]):
        yield
        return
    summary: dict[str, Any] = {"status": 0}
    with contextlib.ExitStack() as stack:
        os.environ[_QUIET_VARIABLE] = "1"
        stack.callback(os.environ.pop, _QUIET_VARIABLE)
        _result_folders.clear()
        null_device = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(null_device))
        try:
            yield
        except SystemExit as end:
            summary["status"] = end.code or 0
            if isinstance(end, Failure):
                summary["error"] = end.message
            raise
        finally:
            # A defect of the program prints its traceback and no JSON.
            if "--json" in flags and sys.exc_info()[0] in (None, SystemExit, Failure):
                if "error" not in summary:
                    summary["runs"] = [
                        {"folder": str(folder), **_read_results(folder)}
                        for folder in _result_folders
                    ]
                stack.close()  # stdout is the terminal or the pipe again
                print(json.dumps(summary), flush=True)


def _read_results(folder: Path) -> dict[str, Any]:
    files = [folder / name for name in _RESULT_FILES if (folder / name).is_file()]
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
