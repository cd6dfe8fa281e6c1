"""The table of a training's numbers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter


class MetricsTable(CSVLogger):
    """Writes `metrics.csv` and, in a resumed run, goes on with it.

    Args:
        folder: where the table goes.
        resumed: the step from which a resumed run goes on: what an earlier run logged for later
            steps is dropped, for it comes again. None starts a new table.
        flush_logs_every_n_steps: steps whose rows are written together.
    """

    def __init__(
        self, folder: str, resumed: int | None = None, flush_logs_every_n_steps: int = 1
    ) -> None:
        super().__init__(
            folder, name="", version="", flush_logs_every_n_steps=flush_logs_every_n_steps
        )
        self.resumed = resumed

    @property
    def experiment(self) -> Any:
        """Lightning's writer; making it removes an earlier table, which is put back."""
        table = Path(self.save_dir) / ExperimentWriter.NAME_METRICS_FILE
        kept: list[dict[str, str]] = []
        if self._experiment is None and self.resumed is not None and table.exists():
            with table.open(newline="") as stream:
                kept = [row for row in csv.DictReader(stream) if int(row["step"]) < self.resumed]
        writer: Any = super().experiment
        if kept:
            writer.metrics_keys = list(kept[0])
            with table.open("w", newline="") as stream:
                sheet = csv.DictWriter(stream, fieldnames=list(kept[0]))
                sheet.writeheader()
                sheet.writerows(kept)
        return writer
