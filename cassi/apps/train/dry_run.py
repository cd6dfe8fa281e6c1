"""What a training would take: at most three of its steps are made, and nothing is written."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from cassi.apps.settings import Train

STEPS = 3
"""Steps that are made: the first pays for what later ones find done."""
ENOUGH = 5.0
"""Seconds after which no further step is begun."""
DAY, HOUR, MINUTE = 86400, 3600, 60


def rehearse(settings: Train, fit: Callable[[Train, list[Any]], Any]) -> str:
    """Make a few steps of a training and say what all of them would take.

    The steps are the training's own: its batches, network, precision and devices. Validation and
    checkpoints are left out, and so is what loggers and callbacks other than the moving average do.

    Args:
        settings: of the training.
        fit: trains with other settings and more callbacks; returns Lightning's Trainer.

    Returns:
        Lines for people to read: steps, seconds of each, their sum, peak memory.
    """
    from lightning.pytorch.callbacks import Callback

    moments: list[float] = []  # the start of the first step, and the end of each

    class Clock(Callback):
        def on_train_start(self, trainer: Any, *_: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            moments.append(time.perf_counter())

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            moments.append(time.perf_counter())
            trainer.should_stop = moments[-1] - moments[0] > ENOUGH

    steps = int(settings.trainer["max_steps"])
    tried = min(STEPS, steps) if steps > 0 else STEPS
    changes = {"max_steps": tried, "max_time": None, "enable_progress_bar": False}
    changes |= {"enable_checkpointing": False, "limit_val_batches": 0}
    average = {k: v for k, v in settings.callbacks.items() if v and v["_target_"].endswith("EMA")}
    small = replace(
        settings, trainer=settings.trainer | changes, callbacks=average, logger={}, ckpt=None
    )
    trainer = fit(small, [Clock()])
    each = min(after - before for before, after in pairwise(moments))
    device = trainer.strategy.root_device
    cost = _cost(each, steps, _peak(device), str(device))
    if len(moments) == 2:
        cost += " (of one step, the first, which may be the slowest)"
    return "\n".join([_work(settings, steps), cost])


def _work(settings: Train, steps: int) -> str:
    data = settings.data
    crop = data.crop if isinstance(data.crop, list | tuple) else [data.crop, data.crop]
    size = f"{data.batch_size} crops of {crop[0]}×{crop[1]}"
    if steps <= 0:
        return f"steps until a time limit ends them, of {size}"
    epochs = steps / max(int(data.steps_per_epoch or 1), 1)
    return f"{steps} steps of {size}, {epochs:.4g} epochs of {data.steps_per_epoch}"


def _cost(seconds: float, steps: int, peak: int, device: str) -> str:
    threads = f" ({torch.get_num_threads()} threads)" if device == "cpu" else ""
    text = f"a step takes {seconds:.3g} s on {device}{threads}, {peak / 2**30:.2f} GiB at its peak"
    return text if steps <= 0 else f"{text}: {duration(seconds * steps)} without validation"


def _peak(device: torch.device) -> int:
    """Return bytes: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(90000), duration(7000), duration(100), duration(2)
    ('1.0 days', '1.9 hours', '1.7 minutes', '2 seconds')
    """
    for length, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.0f} seconds"
