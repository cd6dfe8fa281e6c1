"""The folders of many snapshots, and their table."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cassi import metrics
from cassi.apps.errors import describe, is_usage_error
from cassi.apps.identity import hash_files, hash_settings
from cassi.apps.reconstruct.snapshots import Snapshot
from cassi.apps.results import write_json
from cassi.data.atomic import atomic_path
from cassi.data.checksums import SUMS
from cassi.evaluation.records import hash_key
from cassi.evaluation.runner import explain_defect
from cassi.evaluation.tables import csv_text

FAILED = 1
"""Exit status where some snapshots failed and the rest is done."""
SUMMARY = "results.csv"
_METRICS, _FAILURE = "metrics.json", "failed.json"


class Folders:
    """Where the results of each snapshot are, and whether they are there.

    Checksums come after all other files of a snapshot, and metrics.json holds the key of what it
    depends on. So these two say which results are whole, and which are of the same settings.

    Args:
        root: the folder of the command.
        config: of the command.
    """

    def __init__(self, root: Path, config: DictConfig) -> None:
        self.root, self._settings = root, hash_settings(config)

    def path(self, snapshot: Snapshot) -> Path:
        """Return the folder of a snapshot."""
        return self.root / snapshot.name

    def find_key(self, snapshot: Snapshot) -> str:
        """Return a hash of all that the results of a snapshot depend on."""
        files = hash_files([snapshot.measurement, snapshot.truth])
        return hash_key({"settings": self._settings, "files": files})

    def is_done(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot need not be done again."""
        return self._read_numbers(snapshot) is not None

    def find_row(self, snapshot: Snapshot) -> dict[str, Any] | None:
        """Return what the table says of a snapshot; None where it was neither done nor failed."""
        numbers = self._read_numbers(snapshot)
        if numbers is not None:
            scores = numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {})
            kept = {name: numbers[name] for name in ("iterations", "seconds", "relative_residual")}
            return {"name": snapshot.name, "status": "done", **kept, **scores}
        failure = self._read(snapshot, _FAILURE)
        if failure is None:
            return None
        return {"name": snapshot.name, "status": "failed", "error": failure["error"]}

    def report_failure(self, snapshot: Snapshot, error: Exception) -> None:
        """Say why there are no results; keep it for the table that another process may write."""
        message = describe(error) if is_usage_error(error) else explain_defect(error)
        print(f"cassi-reconstruct: {snapshot.name} failed: {message}", file=sys.stderr, flush=True)
        folder = self.path(snapshot)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(folder / _FAILURE) as temporary:
            write_json(temporary, {"key": self.find_key(snapshot), "error": message})

    def forget_failure(self, snapshot: Snapshot) -> None:
        """Remove what an earlier run has said."""
        (self.path(snapshot) / _FAILURE).unlink(missing_ok=True)

    def _read_numbers(self, snapshot: Snapshot) -> dict[str, Any] | None:
        folder, found = self.path(snapshot), self._read(snapshot, _METRICS)
        if found is None or not all((folder / file).exists() for file in [SUMS, *found["files"]]):
            return None
        return found

    def _read(self, snapshot: Snapshot, name: str) -> dict[str, Any] | None:
        try:
            text = (self.path(snapshot) / name).read_text(encoding="utf-8")
            found: dict[str, Any] = json.loads(text)
            return found if found["key"] == self.find_key(snapshot) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not there, or of another version: to be done again


def write_summary(folders: Folders, snapshots: Sequence[Snapshot]) -> float:
    """Write results.csv, and say what it comes to.

    Returns:
        The mean relative residual of those that are done.

    Raises:
        SystemExit: with status 1, where some have failed.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    lost = "it was neither done nor refused; run again"
    rows = [
        folders.find_row(snapshot) or {"name": snapshot.name, "status": "failed", "error": lost}
        for snapshot in snapshots
    ]
    with atomic_path(folders.root / SUMMARY) as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")
    done = [row for row in rows if row["status"] == "done"]
    print(f"{len(done)} of {len(rows)} snapshots done -> {folders.root}")
    if len(done) < len(rows):
        print(
            f"cassi-reconstruct: {len(rows) - len(done)} of {len(rows)} snapshots failed; the same "
            "command does them again",
            file=sys.stderr,
        )
        # A job of a multirun must not end the others; MergeSummaries ends the command.
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            sys.exit(FAILED)
    residuals = [row["relative_residual"] for row in done]
    return math.fsum(residuals) / len(residuals) if residuals else float("nan")
