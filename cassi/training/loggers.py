"""The table of a training's numbers, and pictures for the loggers that take them."""

import csv
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from cassi.data.atomic import atomic_path

Take = Callable[[str, np.ndarray, int], object]
"""(name, 8-bit RGB `(H, W, 3)`, step)."""


def taker_of(logger: Any) -> Take | None:
    """Return what gives a picture to a logger of Lightning; None where it takes none."""
    if hasattr(logger, "log_image"):  # Weights & Biases
        return lambda name, picture, step: logger.log_image(name, [picture], step)
    experiment = getattr(logger, "experiment", logger)
    if hasattr(experiment, "add_image"):  # TensorBoard
        return lambda name, picture, step: experiment.add_image(
            name, picture, step, dataformats="HWC"
        )
    if hasattr(experiment, "log_image"):  # MLflow, where a picture is a file
        return lambda name, picture, step: experiment.log_image(
            logger.run_id, picture, f"{re.sub('[^a-z]+', '_', name).strip('_')}/{step:08d}.png"
        )
    return None


class MetricsTable(CSVLogger):
    """Writes `metrics.csv`, at most once in so many seconds, and goes on with it in a resumed run.

    What an earlier run logged for steps from `resumed` on is dropped, for it comes again.
    """

    _experiment: ExperimentWriter | None

    def __init__(self, folder: str, resumed: int | None = None, seconds: float = 1.0) -> None:
        super().__init__(folder, name="", version="", flush_logs_every_n_steps=2**62)
        self.resumed, self.seconds = resumed, seconds
        self._due = 0.0

    @property
    def experiment(self) -> ExperimentWriter:
        """What holds the rows; a table of rows that still hold is read first."""
        if self._experiment is None:
            Path(self.root_dir).mkdir(parents=True, exist_ok=True)
            self._experiment = _Table(self.log_dir, self.resumed)
        return self._experiment

    def save(self) -> None:
        """Write the table, if it is time to: Lightning asks for it after each row."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write the table."""
        super().save()
        self._due = time.monotonic() + self.seconds

    def finalize(self, status: str) -> None:
        """Write the last rows."""
        self._due = 0.0
        super().finalize(status)


class _Table(ExperimentWriter):
    """All rows, written as a whole; Lightning's appends, and a kill may cut the last row."""

    def __init__(self, folder: str, resumed: int | None) -> None:
        super().__init__(folder)
        self.rows: list[Mapping[str, object]] = []
        table = Path(self.metrics_file_path)
        if resumed is not None and table.exists():
            with table.open(newline="") as stream:
                self.rows += [row for row in csv.DictReader(stream) if _step(row) < resumed]
            self.metrics_keys = list(self.rows[0]) if self.rows else []

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Take a row, in place of the last one where that is of the same step and columns."""
        super().log_metrics(metrics_dict, step)
        row = self.metrics.pop()
        earlier = self.metrics or self.rows
        if earlier and earlier[-1].keys() == row.keys() and earlier[-1]["step"] == row["step"]:
            earlier.pop()
        self.metrics.append(row)

    def save(self) -> None:
        if not self.metrics:
            return
        self._record_new_keys()
        self.rows += self.metrics
        self.metrics = []
        with (
            atomic_path(self.metrics_file_path) as temporary,
            temporary.open("w", newline="") as stream,
        ):
            sheet = csv.DictWriter(stream, self.metrics_keys)
            sheet.writeheader()
            sheet.writerows(self.rows)

    def _check_log_dir_exists(self) -> None:
        """Lightning removes an earlier table here."""


def _step(row: Mapping[str, str]) -> float:
    try:
        return int(row["step"])
    except (KeyError, TypeError, ValueError):
        return float("inf")  # cut by a kill: it comes again
