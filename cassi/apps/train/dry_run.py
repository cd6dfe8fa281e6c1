"""What a training would take: a few of its steps are made, and nothing is written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from cassi.apps.results import peak_memory
from cassi.apps.settings import Train
from cassi.evaluation.runner import PeakMemory

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from cassi.training.module import Training

Given = ParamSpec("Given")
Made = TypeVar("Made")

STEPS = 3
"""Steps of a whole batch that are made: the first pays for what later ones find done."""
ENOUGH = 5.0
"""Seconds after which no further step of a whole batch is begun."""
DAY, HOUR, MINUTE = 86400, 3600, 60

ADVICE = {
    "data": "more processes read and augment with data.workers",
    "simulation": "batches come again with data.pool=8 data.reuse=8",
    "start": "starts are kept with data.pool=8 data.reuse=8 task.starts=FOLDER",
    "network": "trainer.precision=bf16-mixed where the device is fast in it, or a smaller network",
    "gradient": "trainer.precision=bf16-mixed where the device is fast in it, or a smaller network",
    "optimizer": "+optimizer.fused=true, or a larger data.batch_size",
}
"""What a step spends its time on, and what makes that less."""


@dataclass(frozen=True)
class Step:
    """A step that was made: seconds and bytes, of tensors on a GPU, of the process on a CPU."""

    size: int
    waited: float
    seconds: float
    peak: int
    parts: dict[str, float] = field(default_factory=dict)


def next_size(done: Sequence[Step], whole: int) -> int | None:
    """Return how many cubes of a batch the next step is to have; None: enough is known.

    Whole batches, if they take a few seconds only. Of others one cube tells the time, which a CPU
    takes in proportion, and one and two cubes the memory: the first step of a large batch is
    several times slower than those after it, because the system clears the memory that it takes.
    """
    if not done:
        return whole if whole <= 2 else 1
    last = done[-1]
    if last.size == whole:
        made = [step.seconds for step in done if step.size == whole]
        return whole if len(made) < STEPS and sum(made) <= ENOUGH else None
    if len(done) == 1 and last.seconds <= ENOUGH:
        return 1
    if last.size == 2:
        return None
    return whole if STEPS * whole * last.seconds <= ENOUGH else 2


def of_whole(done: Sequence[Step], whole: int) -> tuple[float, int]:
    """Return seconds and peak of a whole batch, measured or in proportion to smaller ones."""
    made = [step for step in done if step.size == whole]
    taken = made or [step for step in done if step.size == 1]
    seconds = min(step.waited + step.seconds * whole / step.size for step in taken)
    peak = max(step.peak for step in done)
    if not made:
        one, two = (max(step.peak for step in done if step.size == size) for size in (1, 2))
        peak = max(peak, two + (whole - 2) * (two - one))
    return seconds, peak


class _Clock:
    """Chooses how many cubes each step has, and times it, by the hooks of a Lightning callback."""

    def __init__(self, may_cut: bool) -> None:
        self.may_cut, self.done = may_cut, list[Step]()  # whether a CPU may try parts of a batch
        self.size = self.whole = 0  # cubes of the next step and of a batch
        self.ended = self.began = 0.0

    def on_train_start(self, trainer: Trainer, module: Training) -> None:
        self.device = trainer.strategy.root_device
        self.parts: dict[str, float] = {}
        vars(module)["simulate"] = self.timed("simulation", module.simulate)
        if (begin := getattr(module.net, "begin", None)) is not None:
            vars(module.net)["begin"] = self.timed("start", begin)
        self.ended = time.perf_counter()

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def timed(self, part: str, function: Callable[Given, Made]) -> Callable[Given, Made]:
        def run(*args: Given.args, **more: Given.kwargs) -> Made:
            begun = self.now()
            result = function(*args, **more)
            self.parts[part] = self.parts.get(part, 0.0) + self.now() - begun
            return result

        return run

    def on_before_backward(self, *_: object) -> None:
        self.turned = self.now()
        self.parts["network"] = self.turned - self.began - sum(self.parts.values())

    def on_after_backward(self, *_: object) -> None:
        self.followed = self.now()
        self.parts["gradient"] = self.followed - self.turned

    def on_train_batch_start(self, trainer: Trainer, _: object, batch: Tensor, index: int) -> None:
        device = trainer.strategy.root_device
        if self.whole == 0:
            self.whole = len(batch)
            cut = self.may_cut and trainer.world_size == 1 and device.type == "cpu"
            self.size = next_size(self.done, self.whole) or 1 if cut else self.whole
        batch.data = batch[: self.size]  # in place: the step is given this tensor
        self.memory = PeakMemory(device)
        self.parts.clear()
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        ended = self.now()
        waited, self.ended = self.began - self.ended, ended
        parts = {"data": waited, **self.parts, "optimizer": ended - self.followed}
        peak = self.memory.highest() or peak_memory(self.device)
        self.done.append(Step(self.size, waited, ended - self.began, peak, parts))
        size = next_size(self.done, self.whole)
        # Processes that measured different times stop together.
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(size is None, all=False)
        self.size = size or self.size


def rehearse(settings: Train, fit: Callable[[Train, list[Callback]], Trainer]) -> str:
    """Make a few steps of a training and say, in lines, what all of them would take.

    The steps are the training's own: its batches, network, precision and devices. On a CPU a batch
    that takes long is tried with one and with two of its cubes. Validation and checkpoints are left
    out, and so is what loggers and callbacks other than the moving average do.
    """
    from lightning.pytorch.callbacks import LambdaCallback

    steps = int(settings.trainer["max_steps"])
    batches = settings.trainer.get("accumulate_grad_batches", 1)  # of an optimizer's step
    most = STEPS + 2
    tried = min(most, steps) if steps > 0 else most
    changes = {"max_steps": tried, "max_time": None, "enable_progress_bar": False}
    changes |= {"enable_checkpointing": False, "limit_val_batches": 0, "accumulate_grad_batches": 1}
    average = {k: v for k, v in settings.callbacks.items() if v and v["_target_"].endswith("EMA")}
    small = replace(
        settings, trainer=settings.trainer | changes, callbacks=average, logger={}, ckpt=None
    )
    clock = _Clock(may_cut=tried == most)
    methods = [(name, each) for name, each in vars(_Clock).items() if name.startswith("on_")]
    hooks = {name: partial(each, clock) for name, each in methods}
    trainer, done = fit(small, [LambdaCallback(**hooks)]), clock.done
    seconds, peak = of_whole(done, clock.whole)
    cost = _cost(batches * seconds, steps, peak, str(trainer.strategy.root_device))
    if done[-1].size < clock.whole:
        cost += " (in proportion to batches of 1 and 2)"
    elif len(done) == 1:
        cost += " (of one step, the first, which may be the slowest)"
    return "\n".join([_work(settings, steps, batches), cost, name_bottleneck(done[-1], settings)])


def name_bottleneck(step: Step, settings: Train) -> str:
    """Say what a step spends its time on, the most first, and what makes the first of it less."""
    parts = dict(step.parts)
    reuse = settings.data.reuse or (settings.data.pool and math.inf) or 1
    if settings.task.get("starts") and "start" in parts:
        parts["start"] /= reuse  # only the first time that a batch comes
    most = sorted(parts, key=parts.__getitem__, reverse=True)
    total = max(sum(parts.values()), 1e-9)
    shares = ", ".join(f"{name} {100 * parts[name] / total:.0f} %" for name in most)
    return f"of a step: {shares}; less of the first: {ADVICE[most[0]]}"


def _work(settings: Train, steps: int, batches: int) -> str:
    data = settings.data
    crop = data.crop if isinstance(data.crop, list | tuple) else [data.crop, data.crop]
    several = f"{batches} batches of " if batches > 1 else ""
    size = f"{several}{data.batch_size} crops of {crop[0]}×{crop[1]}"
    if steps <= 0:
        return f"steps until a time limit ends them, of {size}"
    epochs = batches * steps / max(int(data.steps_per_epoch or 1), 1)
    return f"{steps} steps of {size}, {epochs:.4g} epochs of {data.steps_per_epoch}"


def _cost(seconds: float, steps: int, peak: int, device: str) -> str:
    threads = f" ({torch.get_num_threads()} threads)" if device == "cpu" else ""
    text = f"a step takes {seconds:.3g} s on {device}{threads}, {peak / 2**30:.2f} GiB at its peak"
    return text if steps <= 0 else f"{text}: {duration(seconds * steps)} without validation"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(90000), duration(7000), duration(100), duration(2)
    ('1.0 days', '1.9 hours', '1.7 minutes', '2 seconds')
    """
    for length, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")):
        if seconds >= length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.0f} seconds"
