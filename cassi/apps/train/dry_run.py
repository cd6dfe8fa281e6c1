"""A dry run of a training: time and memory of all steps, estimated from a few of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from cassi.apps.memory import peak_memory
from cassi.apps.settings import Train
from cassi.evaluation.runner import PeakMemory

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from cassi.training.module import Training

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

MAX_TIMED_STEPS = 3
"""Largest number of timed steps of a whole batch.

The fastest step counts, because the first one also takes memory from the system.
"""
ENOUGH_SECONDS = 5.0
"""After this time no further step of a whole batch is started. A longer time disturbs the user."""
DAY, HOUR, MINUTE = 86400, 3600, 60

ADVICE = {
    "data": "read and augment in more processes with data.workers",
    "simulation": "use batches again with data.pool=8 data.reuse=8",
    "start": "keep first cubes with data.pool=8 data.reuse=8 task.starts=FOLDER",
    "network": "set trainer.precision=bf16-mixed if this device is fast in it, or a smaller model",
    "gradient": "set trainer.precision=bf16-mixed if this device is fast in it, or a smaller model",
    "optimizer": "set +optimizer.fused=true, or a larger data.batch_size",
}
"""Parts of a step, and the settings that make each of them faster."""


@dataclass(frozen=True)
class Step:
    """Time and memory of one step.

    Attributes:
        n_cubes: cubes of its batch.
        waiting_seconds: time until the batch was there.
        step_seconds: time of the step itself.
        peak_bytes: largest memory of tensors on a GPU, or of the process on a CPU.
        part_seconds: time of each part of `ADVICE`.
    """

    n_cubes: int
    waiting_seconds: float
    step_seconds: float
    peak_bytes: int
    part_seconds: dict[str, float] = field(default_factory=dict)


def choose_batch_size(steps: Sequence[Step], batch_size: int) -> int | None:
    """Return the number of cubes in the next step, or None if time and memory are known.

    If whole batches take only a few seconds, they are timed. Otherwise the time is measured on one
    cube, because on a CPU it is proportional to the number of cubes, and the memory on one and on
    two cubes. A single step of a large batch would give a wrong time: the first step is several
    times slower than later ones, because the system clears the memory that it takes.
    """
    if not steps:
        return batch_size if batch_size <= 2 else 1
    last_step = steps[-1]
    if last_step.n_cubes == batch_size:
        batch_seconds = [step.step_seconds for step in steps if step.n_cubes == batch_size]
        is_quick = sum(batch_seconds) <= ENOUGH_SECONDS
        return batch_size if is_quick and len(batch_seconds) < MAX_TIMED_STEPS else None
    # The first step is slower than the others, so one cube is timed a second time.
    if len(steps) == 1 and last_step.step_seconds <= ENOUGH_SECONDS:
        return 1
    if last_step.n_cubes == 2:
        return None
    return (
        batch_size if MAX_TIMED_STEPS * batch_size * last_step.step_seconds <= ENOUGH_SECONDS else 2
    )


def estimate_whole_batch(steps: Sequence[Step], batch_size: int) -> tuple[float, int]:
    """Return seconds and peak bytes of a whole batch, measured or extrapolated from less."""
    whole_steps = [step for step in steps if step.n_cubes == batch_size]
    timed_steps = whole_steps or [step for step in steps if step.n_cubes == 1]
    seconds = min(
        step.waiting_seconds + step.step_seconds * batch_size / step.n_cubes for step in timed_steps
    )
    peak_bytes = max(step.peak_bytes for step in steps)
    if not whole_steps:
        # The memory is a constant part, for weights and libraries, and a part for each cube.
        peak_of_one, peak_of_two = (
            max(step.peak_bytes for step in steps if step.n_cubes == size) for size in (1, 2)
        )
        peak_bytes = max(peak_bytes, peak_of_two + (batch_size - 2) * (peak_of_two - peak_of_one))
    return seconds, peak_bytes


class _StepTimer:
    """Chooses the number of cubes of each step, and times the parts of the step.

    Its methods `on_…` are hooks of a Lightning callback.

    Args:
        may_split: whether a step on a CPU may have a part of its batch only.
    """

    def __init__(self, may_split: bool) -> None:
        self.may_split, self.steps = may_split, list[Step]()
        self.n_cubes = self.batch_size = 0  # cubes of the next step, and of a whole batch
        self.end_time = self.start_time = 0.0

    def on_train_start(self, trainer: Trainer, module: Training) -> None:
        self.device = trainer.strategy.root_device
        self.part_seconds: dict[str, float] = {}
        # The timed functions hide the methods of the class for this object only.
        vars(module)["simulate"] = self.add_timing("simulation", module.simulate)
        if (begin := getattr(module.net, "begin", None)) is not None:
            vars(module.net)["begin"] = self.add_timing("start", begin)
        self.end_time = time.perf_counter()

    def read_clock(self) -> float:
        # A GPU works in the background. Without waiting for it, the time of a part would be wrong.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def add_timing(
        self, part: str, function: Callable[Parameters, Returned]
    ) -> Callable[Parameters, Returned]:
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            start = self.read_clock()
            result = function(*args, **kwargs)
            self.part_seconds[part] = self.part_seconds.get(part, 0.0) + self.read_clock() - start
            return result

        return run

    def on_before_backward(self, *_: object) -> None:
        self.backward_start = self.read_clock()
        self.part_seconds["network"] = (
            self.backward_start - self.start_time - sum(self.part_seconds.values())
        )

    def on_after_backward(self, *_: object) -> None:
        self.backward_end = self.read_clock()
        self.part_seconds["gradient"] = self.backward_end - self.backward_start

    def on_train_batch_start(self, trainer: Trainer, _: object, batch: Tensor, index: int) -> None:
        device = trainer.strategy.root_device
        if self.batch_size == 0:
            self.batch_size = len(batch)
            self.n_cubes = self.batch_size
            # A GPU computes the cubes of a batch at the same time, so its time is not proportional
            # to their number. Several processes could choose different numbers of cubes.
            if self.may_split and trainer.world_size == 1 and device.type == "cpu":
                self.n_cubes = choose_batch_size(self.steps, self.batch_size) or 1
        # The tensor is changed in place, because Lightning gives this same object to the step.
        batch.data = batch[: self.n_cubes]
        self.memory = PeakMemory(device)
        self.part_seconds.clear()
        self.start_time = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        end_time = self.read_clock()
        waiting_seconds, self.end_time = self.start_time - self.end_time, end_time
        part_seconds = {
            "data": waiting_seconds,
            **self.part_seconds,
            "optimizer": end_time - self.backward_end,
        }
        peak_bytes = self.memory.highest() or peak_memory(self.device)
        step_seconds = end_time - self.start_time
        step = Step(self.n_cubes, waiting_seconds, step_seconds, peak_bytes, part_seconds)
        self.steps.append(step)
        size = choose_batch_size(self.steps, self.batch_size)
        # All processes must stop after the same step, also if they measured different times.
        # Otherwise one of them would wait for the others for ever.
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(size is None, all=False)
        self.n_cubes = size or self.n_cubes


def run_a_few_steps(settings: Train, fit: Callable[[Train, list[Callback]], Trainer]) -> str:
    """Make a few steps of a training, and return lines about the cost of all of them.

    The steps have the batches, network, precision and devices of the training. On a CPU a batch
    that takes long is tried with one and with two of its cubes. Validation, checkpoints, loggers
    and callbacks are left out, except for the moving average of the weights.

    Args:
        settings: settings of the training.
        fit: trains with other settings and further callbacks, and returns the Trainer.
    """
    from lightning.pytorch.callbacks import LambdaCallback

    steps = int(settings.trainer["max_steps"])
    # A step of the optimizer may take several batches; here every batch is timed as a step.
    batches_per_step = settings.trainer.get("accumulate_grad_batches", 1)
    max_steps = MAX_TIMED_STEPS + 2  # two steps of one cube may come first
    n_steps = min(max_steps, steps) if steps > 0 else max_steps
    trainer_changes = {"max_steps": n_steps, "max_time": None, "enable_progress_bar": False}
    trainer_changes |= {
        "enable_checkpointing": False,
        "limit_val_batches": 0,
        "accumulate_grad_batches": 1,
    }
    # The moving average is part of the cost of a step; other callbacks write files.
    averaging = {
        name: node
        for name, node in settings.callbacks.items()
        if node and node["_target_"].endswith("EMA")
    }
    short_settings = replace(
        settings,
        trainer=settings.trainer | trainer_changes,
        callbacks=averaging,
        logger={},
        ckpt=None,
    )
    timer = _StepTimer(may_split=n_steps == max_steps)
    methods = vars(_StepTimer).items()
    hooks = {name: partial(method, timer) for name, method in methods if name.startswith("on_")}
    trainer, timed_steps = fit(short_settings, [LambdaCallback(**hooks)]), timer.steps
    seconds, peak_bytes = estimate_whole_batch(timed_steps, timer.batch_size)
    cost_line = _describe_cost(
        batches_per_step * seconds, steps, peak_bytes, str(trainer.strategy.root_device)
    )
    if timed_steps[-1].n_cubes < timer.batch_size:
        cost_line += " (extrapolated from batches of 1 and 2)"
    elif len(timed_steps) == 1:
        cost_line += " (measured on the first step only, which may be the slowest)"
    work_line = _describe_work(settings, steps, batches_per_step)
    return "\n".join([work_line, cost_line, name_bottleneck(timed_steps[-1], settings)])


def name_bottleneck(step: Step, settings: Train) -> str:
    """Return the share of each part of a step, and a setting that makes the slowest part faster."""
    part_seconds = dict(step.part_seconds)
    reuse = settings.data.reuse or (settings.data.pool and math.inf) or 1
    if settings.task.get("starts") and "start" in part_seconds:
        part_seconds["start"] /= reuse  # first cubes are computed once and kept for further uses
    slowest_first = sorted(part_seconds, key=part_seconds.__getitem__, reverse=True)
    total = max(sum(part_seconds.values()), 1e-9)
    shares = ", ".join(f"{name} {100 * part_seconds[name] / total:.0f} %" for name in slowest_first)
    return f"parts of a step: {shares}; to speed up the first: {ADVICE[slowest_first[0]]}"


def _describe_work(settings: Train, steps: int, batches_per_step: int) -> str:
    data = settings.data
    crop = data.crop if isinstance(data.crop, list | tuple) else [data.crop, data.crop]
    batches_text = f"{batches_per_step} batches of " if batches_per_step > 1 else ""
    size = f"{batches_text}{data.batch_size} crops of {crop[0]}×{crop[1]}"
    if steps <= 0:
        return f"steps of {size} until a time limit"
    epochs = batches_per_step * steps / max(int(data.steps_per_epoch or 1), 1)
    return f"{steps} steps of {size}, {epochs:.4g} epochs of {data.steps_per_epoch}"


def _describe_cost(seconds: float, steps: int, peak_bytes: int, device: str) -> str:
    threads = f" ({torch.get_num_threads()} threads)" if device == "cpu" else ""
    memory = f"{peak_bytes / 2**30:.2f} GiB at its peak"
    text = f"a step takes {seconds:.3g} s on {device}{threads}, {memory}"
    return text if steps <= 0 else f"{text}: {format_duration(seconds * steps)} without validation"


def format_duration(seconds: float) -> str:
    """Return a time in words.

    >>> format_duration(90000), format_duration(7000), format_duration(100), format_duration(2)
    ('1.0 days', '1.9 hours', '1.7 minutes', '2 seconds')
    """
    for length, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.0f} seconds"
