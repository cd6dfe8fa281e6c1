"""Logging of a training: the table metrics.csv, and pictures."""

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

# Function of (name, 8-bit RGB picture `(H, W, 3)`, step).
PictureLogger = Callable[[str, np.ndarray, int], object]


def picture_logger(logger: Any) -> PictureLogger | None:
    """Return a function that logs pictures by a Lightning logger, or None if it cannot."""
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
    """Writes `metrics.csv`, and continues the table when a run is resumed.

    Args:
        folder: folder of the table.
        first_step: step at which a resumed run starts. Rows from this step on are dropped, because
            these steps run again. None begins a new table.
        seconds: shortest time between two writes.
    """

    _experiment: ExperimentWriter | None

    def __init__(self, folder: str, first_step: int | None = None, seconds: float = 1.0) -> None:
        # With this number Lightning's own interval never ends. `save` decides by the clock.
        super().__init__(folder, name="", version="", flush_logs_every_n_steps=2**62)
        self.first_step, self.seconds = first_step, seconds
        self._next_write = 0.0

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer of the table. In a resumed run it first reads the rows that remain valid."""
        if self._experiment is None:
            Path(self.root_dir).mkdir(parents=True, exist_ok=True)
            self._experiment = _MetricsWriter(self.log_dir, self.first_step)
        return self._experiment

    def save(self) -> None:
        """Write the table if `seconds` have passed; Lightning calls this after each row."""
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write the table."""
        super().save()
        self._next_write = time.monotonic() + self.seconds

    def finalize(self, status: str) -> None:
        """Write the last rows."""
        self._next_write = 0.0
        super().finalize(status)


class _MetricsWriter(ExperimentWriter):
    """Rewrites the whole table atomically.

    Lightning's writer appends rows, and a kill may cut the last one.
    """

    def __init__(self, folder: str, first_step: int | None) -> None:
        super().__init__(folder)
        self.rows: list[Mapping[str, object]] = []
        table = Path(self.metrics_file_path)
        if first_step is not None and table.exists():
            with table.open(newline="") as stream:
                self.rows += [
                    row for row in csv.DictReader(stream) if _parse_step(row) < first_step
                ]
            self.metrics_keys = list(self.rows[0]) if self.rows else []

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Add a row. It replaces the last row if both have the same step and columns."""
        super().log_metrics(metrics_dict, step)
        row = self.metrics.pop()
        earlier_rows = self.metrics or self.rows
        if (
            earlier_rows
            and earlier_rows[-1].keys() == row.keys()
            and earlier_rows[-1]["step"] == row["step"]
        ):
            earlier_rows.pop()
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
            writer = csv.DictWriter(stream, self.metrics_keys)
            writer.writeheader()
            writer.writerows(self.rows)

    def _check_log_dir_exists(self) -> None:
        """Do nothing: Lightning's method deletes an existing table."""


def _parse_step(row: Mapping[str, str]) -> float:
    try:
        return int(row["step"])
    except (KeyError, TypeError, ValueError):
        # A kill has cut this row. An infinite step makes the caller drop it. The step runs again.
        return float("inf")
