"""What happens beside the steps of a training."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn


class EMA(WeightAveraging):
    """Keeps the exponential moving average of the weights, w̄ ← decay·w̄ + (1 − decay)·w.

    The average is what validation and the exported network use.

    Args:
        decay: in [0, 1).

    Raises:
        ValueError: decay is outside.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA decay: expected a number in [0, 1), got {decay!r}")
        # All tensors in one call: Lightning's own class averages them one by one.
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.decay = decay


class LastCheckpoint(ModelCheckpoint):
    """Overwrites one checkpoint now and then, at the last step, and when the process is to end.

    Args:
        dirpath: folder.
        filename: without suffix.
        every_n_train_steps: how often; 0 leaves it to the time.
        settings: further ones of Lightning's class.
    """

    def __init__(
        self,
        dirpath: str,
        filename: str = "last",
        every_n_train_steps: int = 500,
        **settings: Any,
    ) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=filename,
            every_n_train_steps=every_n_train_steps,
            save_top_k=1,
            save_on_train_epoch_end=False,
            enable_version_counter=False,
            **settings,
        )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        """Save where it is time to."""
        super().on_train_batch_end(trainer, pl_module, *rest)
        # The signal may have reached one process of many, and saving takes all of them.
        ends = trainer.received_sigterm and trainer.world_size == 1
        ends |= trainer.should_stop or trainer.global_step >= trainer.max_steps > 0
        if ends and not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after the last validation, which may have changed the best score."""
        if trainer.should_stop and trainer.state.fn == "fit":
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
