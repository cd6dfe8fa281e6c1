"""What benchmarks share: options, data, one timer, and tables that are kept as JSON."""

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
    """Options of a benchmark: `--threads` takes effect when they are read, `--json` is a file."""

    def __init__(self, text: str | None, threads: int = 2) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=text, formatter_class=form)
        self.add_argument("--threads", type=int, default=threads, help="of torch on the CPU")
        self.add_argument("--json", type=Path, metavar="FILE", help="write what is measured there")

    def parse_args(self, *arguments: Any) -> Any:  # type: ignore[override]
        """Read the options, and set the number of threads."""
        options = super().parse_args(*arguments)
        torch.set_num_threads(options.threads)
        return options


def data_folder(name: str = "") -> Path:
    """Return a folder below $CASSI_DATA; end with one line and status 2 where it is missing."""
    root = os.environ.get("CASSI_DATA")
    if root is None or not (folder := Path(root) / name).is_dir():
        print(f"error: set CASSI_DATA to a folder with {name or 'data sets'}", file=sys.stderr)
        raise SystemExit(2)
    return folder


def time_calls(calls: Mapping[str, Call], seconds: float = 1.0) -> dict[str, float]:
    """Return the median milliseconds of each call, which is repeated for so many seconds."""
    return {
        name: 1e3
        * Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        .blocked_autorange(min_run_time=seconds)
        .median
        for name, call in calls.items()
    }


class Table:
    """A table in Markdown, of which every row is printed as soon as it is measured."""

    def __init__(self, *columns: str) -> None:
        self.print(*columns)
        self.print(*("---" for _ in columns))

    def print(self, *cells: object) -> None:
        """Print a row: numbers with three digits."""
        shown = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        print(f"| {' | '.join(shown)} |", flush=True)


def write_json(file: Path | None, name: str, figures: Any) -> None:
    """Write what was measured under a name, as scripts/docs/figures.py takes it over."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: figures}, indent=1) + "\n", encoding="utf-8")
