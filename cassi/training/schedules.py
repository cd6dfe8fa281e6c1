"""Schedules of the learning rate: warm-up with a cosine, and any schedule per epoch."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupCosine(LRScheduler):
    """A linear rise, then half a cosine down, one value per optimizer step.

        lr · (s + 1)/(w + 1)                                     for s < w
        eta_min + (lr − eta_min)/2 · (1 + cos(π (s − w)/(S − w)))  for w <= s <= S, then eta_min

    Args:
        optimizer: its learning rates are the lr above.
        steps: S, the step at which the cosine ends.
        warmup: w, the number of steps of the rise.
        eta_min: the last learning rate.
        last_epoch: number of the last step of an earlier run that is continued; -1 for a new run.

    Raises:
        ValueError: the rise does not end before the cosine, or `eta_min` is negative.

    >>> from torch import nn, optim
    >>> adam = optim.Adam(nn.Linear(1, 1).parameters(), lr=0.1)
    >>> schedule = WarmupCosine(adam, steps=10, warmup=1)
    >>> schedule.get_last_lr()
    [0.05]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        warmup: int = 0,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup < steps:
            raise ValueError(
                f"WarmupCosine: expected 0 <= warmup < steps, got warmup={warmup}, steps={steps}; "
                "set trainer.max_steps, or scheduler.steps where a time limit ends the training"
            )
        if not eta_min >= 0:
            raise ValueError(f"WarmupCosine eta_min: expected a number >= 0, got {eta_min!r}")
        self.steps, self.warmup, self.eta_min = steps, warmup, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each group at the current step."""
        step = self.last_epoch
        if step < self.warmup:
            return [lr * (step + 1) / (self.warmup + 1) for lr in self.base_lrs]
        progress = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        fraction = (1 + math.cos(math.pi * progress)) / 2
        return [self.eta_min + (lr - self.eta_min) * fraction for lr in self.base_lrs]


class PerEpoch(LRScheduler):
    """A schedule of torch that takes a step after every epoch, not after every optimizer step.

    Args:
        optimizer: the schedule changes its learning rates.
        schedule: function that makes the schedule from the optimizer; the schedule counts epochs.
        steps: number of optimizer steps in an epoch.

    Raises:
        ValueError: steps is below 1.

    >>> from functools import partial
    >>> from torch import nn, optim
    >>> adam = optim.Adam(nn.Linear(1, 1).parameters(), lr=0.1)
    >>> halve = partial(optim.lr_scheduler.MultiStepLR, milestones=[1], gamma=0.5)
    >>> schedule = PerEpoch(adam, halve, steps=2)
    >>> schedule.step(); schedule.get_last_lr()
    [0.1]
    >>> schedule.step(); schedule.get_last_lr()
    [0.05]
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Callable[[Optimizer], LRScheduler], steps: int
    ) -> None:
        if steps < 1:
            raise ValueError(f"PerEpoch steps: expected at least 1, got {steps}")
        self.optimizer, self.schedule = optimizer, schedule(optimizer)
        self.steps, self.done = steps, 0

    def step(self, epoch: int | None = None) -> None:
        """Count an optimizer step; step the schedule at the end of an epoch."""
        self.done += 1
        if self.done % self.steps == 0:
            self.schedule.step()

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each group."""
        return self.schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the counter and the state of the schedule."""
        return {"done": self.done, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.done = state_dict["done"]
        self.schedule.load_state_dict(state_dict["schedule"])
