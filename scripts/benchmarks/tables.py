"""What benchmarks share: options, and tables, line by line as they are measured, or as CSV."""

from __future__ import annotations

import argparse
import csv
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
