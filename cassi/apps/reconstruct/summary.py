"""Write results.csv: the table of many snapshots, and the joint table of a multirun."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from cassi.apps.command import EXIT_FAILURE
from cassi.apps.reconstruct.snapshots import SUMMARY, SnapshotFiles
from cassi.data.atomic import atomic_path, is_temporary
from cassi.data.formats.cells import Json, csv_text

Records = Mapping[str, Json]


class MergeSummaries(Callback):
    """Joins the tables of the jobs of a multirun that reconstructed many snapshots each.

    Ends the command with status 1 if any snapshot failed. Does nothing if each job reconstructed
    one snapshot.
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
            sys.exit(EXIT_FAILURE)


def write_summary(
    root: Path,
    records: Records,
    keys: Mapping[str, str],
    share_snapshots: Sequence[SnapshotFiles],
    is_multirun: bool,
) -> float:
    """Print the counts, return the mean residual. If every share is finished, write results.csv.

    Args:
        root: folder of the results.
        records: records of the snapshots, by name.
        keys: the fingerprint that a valid record of each snapshot has.
        share_snapshots: the snapshots of this command's share.
        is_multirun: this command is one of several jobs, and must not end the process.

    Raises:
        SystemExit: with status 1, if a snapshot failed and this is no job of a multirun.
    """
    rows: list[Json] = []
    for name, key in keys.items():
        if name in records and records[name]["key"] == key:
            row = records[name]["row"]
            rows.append({"name": name, "status": "failed" if "error" in row else "done", **row})
    # The shares are done by separate commands, and the last one to finish writes the table.
    if len(rows) == len(keys):
        n_failed = _write_table(root, rows, "; the same command tries them again")
    else:
        share_names = {snapshot.name for snapshot in share_snapshots}
        n_failed = sum(row["name"] in share_names and row["status"] == "failed" for row in rows)
        print(
            f"{len(share_names) - n_failed} of {len(share_names)} snapshots done -> {root}\n"
            f"{len(keys) - len(rows)} are left to other shares; the last one writes {SUMMARY}"
        )
    # A job of a multirun must not end the others; MergeSummaries ends the command.
    if n_failed and not is_multirun:
        sys.exit(EXIT_FAILURE)
    residuals = [row["relative_residual"] for row in rows if row["status"] == "done"]
    return math.fsum(residuals) / len(residuals) if residuals else float("nan")


def _write_table(root: Path, rows: Sequence[Json], hint: str = "") -> int:
    """Write the table of snapshots; return how many failed."""
    with atomic_path(root / SUMMARY) as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")
    n_failed = sum(row["status"] != "done" for row in rows)
    print(f"{len(rows) - n_failed} of {len(rows)} snapshots done -> {root}")
    if n_failed:
        message = f"cassi-reconstruct: {n_failed} of {len(rows)} snapshots failed{hint}"
        print(message, file=sys.stderr)
    return n_failed
