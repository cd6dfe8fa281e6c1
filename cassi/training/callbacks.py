"""What happens beside the steps of a training."""

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

PREVIOUS = "previous.ckpt"


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints that appear whole, and are on the disk, or not at all.

    Lightning's own writes into the folder of temporary files and moves the file from there, which
    between two file systems is a copy that a kill cuts short.
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

    The average is what validation and the exported network use.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA decay: expected a number in [0, 1), got {decay!r}")
        # All tensors in one call: Lightning's own class averages them one by one.
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.decay = decay


class LastCheckpoint(ModelCheckpoint):
    """Overwrites one checkpoint now and then, after validations, and when the run is to end.

    The one before it stays as `previous.ckpt`, to go on from where the last is damaged. Either a
    number of steps or the clock says how often; further settings are those of Lightning's class.
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
        """Save where it is time to."""
        loop = trainer.fit_loop.epoch_loop
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        if trainer.enable_validation and loop._should_check_val_fx(fetcher):
            return  # a run that goes on from here would leave out the validation
        super().on_train_batch_end(trainer, pl_module, *rest)
        # The signal may have reached one process of many, and saving takes all of them.
        ends = trainer.should_stop or (trainer.received_sigterm and trainer.world_size == 1)
        if ends and not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save with the new score."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # A run that goes on from here finds all rows of the steps before.
        for table in log_ahead(trainer):
            table.write()
        if trainer.is_global_zero:
            keep_previous(Path(filepath))
        super()._save_checkpoint(trainer, filepath)


class StepProgressBar(ProgressBar):
    """Shows the steps of the whole training, the time that is left, loss and score.

    The time counts validations: it follows from the mean rate of this run.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__()
        if refresh_rate < 1:
            raise ValueError(f"refresh_rate: expected at least 1, got {refresh_rate}")
        self.refresh_rate, self._enabled = refresh_rate, True
        self._bar: Any = None

    def disable(self) -> None:
        """Show nothing, as all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show it again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin at the step of a run that goes on."""
        from tqdm import tqdm

        steps = trainer.max_steps if trainer.max_steps > 0 else None
        self._bar = tqdm(
            desc="steps", total=steps, initial=trainer.global_step, smoothing=0, miniters=1,
            file=sys.stdout, disable=not self._enabled, dynamic_ncols=True, unit=" steps",
        )  # fmt: skip

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Show the step, now and then."""
        if trainer.global_step % self.refresh_rate == 0:
            self._show(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new score."""
        self._show(trainer)

    def on_exception(self, *_: object) -> None:
        """End the line, so that the error has one of its own."""
        self.teardown()

    def teardown(self, *_: object, **__: object) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, trainer: Trainer) -> None:
        if self._bar is not None:
            self._bar.n = trainer.global_step
            said = {key: f"{float(v):.4g}" for key, v in trainer.progress_bar_metrics.items()}
            self._bar.set_postfix(said)


def log_ahead(trainer: Trainer) -> list[MetricsTable]:
    """Give the tables the row of a step that Lightning logs once the step's callbacks are done.

    A run that goes on behind that step does not make it again. In other logs the row would be
    there twice.
    """
    connector = trainer._logger_connector
    loggers = trainer.loggers
    tables = [logger for logger in loggers if isinstance(logger, MetricsTable)]
    if connector._first_loop_iter is not None:  # a validation comes after the row
        trainer.loggers = [*tables]
        try:
            connector.update_train_step_metrics()
        finally:
            trainer.loggers = loggers
    return tables


def keep_previous(last: Path) -> None:
    """Let a checkpoint that is to be overwritten be `previous.ckpt` beside it."""
    previous = last.with_name(PREVIOUS)
    with contextlib.suppress(OSError):  # where there are no hard links, nothing is kept
        if last.exists() and not (previous.exists() and previous.samefile(last)):
            with atomic_path(previous) as temporary:
                os.link(last, temporary)
