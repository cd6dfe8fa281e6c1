"""Tables of the benchmarks: Markdown on the screen, line by line as it is measured, and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


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
