"""What benchmarks share: options, data, tables line by line as they are measured, or as CSV."""

import argparse
import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


class Parser(argparse.ArgumentParser):
    """Options of a benchmark, among them `--threads`, which takes effect when they are read."""

    def __init__(self, text: str | None, threads: int = 2) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=text, formatter_class=form)
        self.add_argument("--threads", type=int, default=threads, help="of torch on the CPU")

    def parse_args(self, *arguments: Any) -> Any:  # type: ignore[override]
        """Read the options, and set the number of threads."""
        found = super().parse_args(*arguments)
        torch.set_num_threads(found.threads)
        return found


def data_folder(name: str = "") -> Path:
    """Return a folder below $CASSI_DATA; end with one line and status 2 where it is missing."""
    root = os.environ.get("CASSI_DATA")
    if root is None or not (folder := Path(root) / name).is_dir():
        print(f"error: set CASSI_DATA to a folder with {name or 'data sets'}", file=sys.stderr)
        raise SystemExit(2)
    return folder


class Table:
    """A table in Markdown, of which every row is printed as soon as it is known."""

    def __init__(self, *columns: str) -> None:
        self.print(*columns)
        self.print(*("---" for _ in columns))

    def print(self, *cells: object) -> None:
        """Print a row."""
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
