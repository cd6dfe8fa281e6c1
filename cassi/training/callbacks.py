"""Callbacks of trainings: checkpoints, the moving average of the weights, the progress bar."""

import contextlib
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, WeightAveraging
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cassi.data.atomic import atomic_path
from cassi.training.loggers import MetricsTable
from cassi.training.tensors import write_tensors

# Name of the checkpoint before the last one.
PREVIOUS_CHECKPOINT = "previous.ckpt"


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically: a file is complete and on the disk, or it does not exist.

    Lightning writes a temporary file and moves it. If the folder of temporary files is on another
    file system, the move is a copy, and a kill can leave an incomplete file.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: object = None,
    ) -> None:
        """Write a checkpoint."""
        write_tensors(path, checkpoint)


class EMA(WeightAveraging):
    """Keeps the exponential moving average of the weights, w̄ ← decay·w̄ + (1 − decay)·w.

    Validation and the exported network use the average.

    Raises:
        ValueError: `decay` is not in [0, 1).
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA decay: expected a number in [0, 1), got {decay!r}")
        # `get_ema_multi_avg_fn` averages all tensors in one call. Lightning's own EMA averages them
        # one by one.
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.decay = decay


class LastCheckpoint(ModelCheckpoint):
    """Overwrites one checkpoint at regular intervals, after validations, and at the end of a run.

    The checkpoint before the last one is kept as `previous.ckpt`. A run resumes from it if the last
    one is damaged. The interval is a number of steps or of minutes. Further settings are those of
    Lightning's class.

    Raises:
        ValueError: both intervals are given, or none.
    """

    def __init__(
        self,
        dirpath: str,
        filename: str = "last",
        every_n_train_steps: int | None = None,
        every_minutes: float | None = None,
        **settings: Any,
    ) -> None:
        if (every_n_train_steps is None) == (every_minutes is None):
            raise ValueError(
                "expected every_n_train_steps or every_minutes, got "
                f"{every_n_train_steps!r} and {every_minutes!r}; by steps alone it is "
                "callbacks.last.every_n_train_steps=N callbacks.last.every_minutes=null"
            )
        super().__init__(
            dirpath=dirpath,
            filename=filename,
            every_n_train_steps=every_n_train_steps,
            train_time_interval=None if every_minutes is None else timedelta(minutes=every_minutes),
            save_top_k=1,
            save_on_train_epoch_end=False,
            enable_version_counter=False,
            **settings,
        )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        """Save if the interval is over or the run is to end."""
        loop = trainer.fit_loop.epoch_loop
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        if trainer.enable_validation and loop._should_check_val_fx(fetcher):
            # A validation follows. A run that resumes from a checkpoint saved now would skip it. So
            # `on_validation_end` saves.
            return
        super().on_train_batch_end(trainer, pl_module, *rest)
        # With several processes, a signal may have reached only one of them. Saving needs all
        # processes, so one process must not begin it alone.
        is_ending = trainer.should_stop or (trainer.received_sigterm and trainer.world_size == 1)
        if is_ending and not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save with the new score."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # The tables are written first, so that a resumed run finds all rows up to its checkpoint.
        for table in log_current_step(trainer):
            table.write()
        if trainer.is_global_zero:
            keep_previous(Path(filepath))
        super()._save_checkpoint(trainer, filepath)


class StepProgressBar(ProgressBar):
    """Shows the steps of the whole training, the remaining time, the loss and the score.

    The remaining time is computed from the mean speed of this run, including validations.

    Raises:
        ValueError: `refresh_rate` is below 1.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__()
        if refresh_rate < 1:
            raise ValueError(f"refresh_rate: expected at least 1, got {refresh_rate}")
        self.refresh_rate, self._enabled = refresh_rate, True
        self._bar: Any = None

    def disable(self) -> None:
        """Hide the bar; Lightning calls this in all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the bar at the current step, which is not 0 in a resumed run."""
        from tqdm import tqdm

        steps = trainer.max_steps if trainer.max_steps > 0 else None
        self._bar = tqdm(
            desc="steps", total=steps, initial=trainer.global_step, smoothing=0, miniters=1,
            file=sys.stdout, disable=not self._enabled, dynamic_ncols=True, unit=" steps",
        )  # fmt: skip

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Update the bar every `refresh_rate` steps."""
        if trainer.global_step % self.refresh_rate == 0:
            self._show(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new score."""
        self._show(trainer)

    def on_exception(self, *_: object) -> None:
        """End the line of the bar, so that the error begins a new line."""
        self.teardown()

    def teardown(self, *_: object, **__: object) -> None:
        """End the line of the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, trainer: Trainer) -> None:
        if self._bar is not None:
            self._bar.n = trainer.global_step
            values = {key: f"{float(v):.4g}" for key, v in trainer.progress_bar_metrics.items()}
            self._bar.set_postfix(values)


def log_current_step(trainer: Trainer) -> list[MetricsTable]:
    """Log the current step to the tables, before Lightning does; return the tables.

    Lightning logs a step after its callbacks. When a callback saves a checkpoint, the row of the
    step would be missing in the tables, and a resumed run does not repeat the step. Lightning logs
    the same row again later. `MetricsTable` drops the second row. Other loggers would keep both, so
    only the tables get the first one.
    """
    connector = trainer._logger_connector
    loggers = trainer.loggers
    tables = [logger for logger in loggers if isinstance(logger, MetricsTable)]
    # After a validation the step has already been logged.
    if connector._first_loop_iter is not None:
        trainer.loggers = [*tables]
        try:
            connector.update_train_step_metrics()
        finally:
            trainer.loggers = loggers
    return tables


def keep_previous(last: Path) -> None:
    """Keep the last checkpoint, which is about to be overwritten, as `previous.ckpt` beside it."""
    previous = last.with_name(PREVIOUS_CHECKPOINT)
    # A hard link needs no copy. On file systems without hard links no checkpoint is kept.
    with contextlib.suppress(OSError):
        if last.exists() and not (previous.exists() and previous.samefile(last)):
            with atomic_path(previous) as temporary:
                os.link(last, temporary)
