"""The table of many snapshots, and that of a multirun whose jobs had many each."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from cassi.apps.command import FAILED
from cassi.apps.reconstruct.snapshots import SUMMARY, Snapshot
from cassi.data.atomic import atomic_path, is_temporary
from cassi.data.formats.cells import Json, csv_text

Records = Mapping[str, Json]


class MergeSummaries(Callback):
    """One table of a multirun whose jobs reconstructed many snapshots each.

    Ends the command with status 1 if any has failures. Nothing is done where jobs reconstructed one
    snapshot each.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Write results.csv, with the folder of the job before the columns of its table."""
        root = Path(config.hydra.sweep.dir).resolve()
        rows: list[Json] = []
        for path in sorted(root.rglob(SUMMARY)):
            if path.parent != root and not is_temporary(path):
                job = path.parent.relative_to(root).as_posix()
                with path.open(newline="", encoding="utf-8") as stream:
                    rows += [{"job": job, **row} for row in csv.DictReader(stream)]
        if rows and _write_table(root, rows):
            sys.exit(FAILED)


def write_summary(
    root: Path,
    records: Records,
    keys: Mapping[str, str],
    own: Sequence[Snapshot],
    is_multirun: bool,
) -> float:
    """Write results.csv where every share is done, and say what it comes to."""
    known = {name: records[name]["row"] for name, key in keys.items()
             if name in records and records[name]["key"] == key}  # fmt: skip
    rows = [
        {"name": name, "status": "failed" if "error" in known[name] else "done", **known[name]}
        for name in keys
        if name in known
    ]
    if len(rows) == len(keys):
        failed = _write_table(root, rows, "; the same command does them again")
    else:
        failed = sum("error" in known[snapshot.name] for snapshot in own)
        print(
            f"{len(own) - failed} of {len(own)} snapshots done -> {root}\n"
            f"{len(keys) - len(rows)} are left to other shares; the last one writes {SUMMARY}"
        )
    # A job of a multirun must not end the others; MergeSummaries ends the command.
    if failed and not is_multirun:
        sys.exit(FAILED)
    residuals = [row["relative_residual"] for row in rows if row["status"] == "done"]
    return math.fsum(residuals) / len(residuals) if residuals else float("nan")


def _write_table(root: Path, rows: Sequence[Json], hint: str = "") -> int:
    """Write the table of snapshots; return how many failed."""
    with atomic_path(root / SUMMARY) as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")
    failed = sum(row["status"] != "done" for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} snapshots done -> {root}")
    if failed:
        said = f"cassi-reconstruct: {failed} of {len(rows)} snapshots failed{hint}"
        print(said, file=sys.stderr)
    return failed
