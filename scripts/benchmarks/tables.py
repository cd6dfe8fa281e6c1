"""Options, data folder, timer, Markdown tables and JSON files of all benchmarks."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

Call = Callable[[], Any]


class Parser(argparse.ArgumentParser):
    """Parser of the options of a benchmark, among them `--threads` and `--json`."""

    def __init__(self, text: str | None, threads: int = 2) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=text, formatter_class=form)
        self.add_argument("--threads", type=int, default=threads, help="threads of torch")
        self.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file")

    def parse_args(self, *arguments: Any) -> Any:  # type: ignore[override]
        """Read the options, and set the number of threads."""
        options = super().parse_args(*arguments)
        torch.set_num_threads(options.threads)
        return options


def data_folder(name: str = "") -> Path:
    """Return a folder below $CASSI_DATA; if it is missing, exit with a message and status 2."""
    root = os.environ.get("CASSI_DATA")
    if root is None or not (folder := Path(root) / name).is_dir():
        print(f"error: set CASSI_DATA to a folder with {name or 'data sets'}", file=sys.stderr)
        raise SystemExit(2)
    return folder


def time_calls(calls: Mapping[str, Call], seconds: float = 1.0) -> dict[str, float]:
    """Return the median milliseconds of each call, which is repeated for so many seconds."""
    times = {}
    for name, call in calls.items():
        # A busy moment of the machine does not change the median. torch's timer waits for the
        # device. By default it would set one thread.
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        times[name] = 1e3 * timer.blocked_autorange(min_run_time=seconds).median
    return times


class Table:
    """A table in Markdown that prints each row immediately, because measurements take long.

    Attributes:
        rows: texts of the cells. The first row has the names of the columns.
    """

    def __init__(self, *columns: str) -> None:
        self.rows: list[list[str]] = []
        self.print(*columns)
        print("| " + " | ".join("---" for _ in columns) + " |", flush=True)

    def print(self, *cells: object) -> None:
        """Print a row; floats have three digits."""
        self.rows.append(
            [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
        )
        print(f"| {' | '.join(self.rows[-1])} |", flush=True)


def write_json(file: Path | None, name: str, figures: Any) -> None:
    """Write results under a name, in the form that scripts/docs/figures.py reads."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: figures}, indent=1) + "\n", encoding="utf-8")
