"""One table of a multirun whose jobs reconstructed many snapshots each."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from cassi.apps.reconstruct_folders import FAILED, SUMMARY
from cassi.data.atomic import atomic_path
from cassi.evaluation.tables import csv_text


class MergeSummaries(Callback):
    """Puts the tables of all jobs together and ends the command with status 1 if any has failures.

    Nothing is done where jobs reconstructed one snapshot each.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Write results.csv, with the folder of the job before the columns of its table."""
        root = Path(config.hydra.sweep.dir).resolve()
        rows: list[dict[str, str]] = []
        for path in sorted(root.rglob(SUMMARY)):
            if path.parent != root:
                job = path.parent.relative_to(root).as_posix()
                with path.open(newline="", encoding="utf-8") as stream:
                    rows += [{"job": job, **row} for row in csv.DictReader(stream)]
        if not rows:
            return
        with atomic_path(root / SUMMARY) as temporary:
            temporary.write_text(csv_text(rows), encoding="utf-8")
        failed = sum(row["status"] != "done" for row in rows)
        print(f"{len(rows) - failed} of {len(rows)} snapshots done -> {root}")
        if failed:
            print(f"cassi-reconstruct: {failed} of {len(rows)} snapshots failed", file=sys.stderr)
            sys.exit(FAILED)
