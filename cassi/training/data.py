"""Samples of a training: which ones each step gets, and the scenes for validation."""

from collections.abc import Callable, Iterator

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from cassi.checks import whole_number
from cassi.data.datasets import TrainingCrops, WholeScenes
from cassi.data.mst import ToolboxBatches


def batch_number(step: int, pool: int | None = None, reuse: int | None = None) -> int:
    """Return the number of the batch of a step, counted from the start of the training.

    If `pool` is None, every step has a new batch. Otherwise the same `pool` batches are used again
    and again. If `reuse` is given too, each of these batches is used `reuse` times, and then `pool`
    new batches follow.

    >>> [batch_number(step, pool=2, reuse=2) for step in range(8)]
    [0, 1, 0, 1, 2, 3, 2, 3]
    """
    if pool is None:
        return step
    pool_number = 0 if reuse is None else step // (pool * reuse)
    return pool_number * pool + step % pool


class StepSampler(Sampler[list[int]]):
    """Yields the samples of each step, as a function of the step's number.

    Batch s has the samples s·B … s·B + B − 1, and process r of R gets the r-th part of them.
    Iteration starts at the step that `position()` returns, and ends with the epoch of this step. So
    a resumed run continues with the next sample.

    Args:
        batch_size: B, over all processes.
        steps: steps per epoch.
        rank: r, the number of this process.
        world: R, the number of processes.
        position: returns the current step.
        pool, reuse: see `batch_number`.

    Raises:
        ValueError: the batch size is not a multiple of the number of processes.
    """

    def __init__(
        self,
        batch_size: int,
        steps: int,
        rank: int,
        world: int,
        position: Callable[[], int],
        pool: int | None = None,
        reuse: int | None = None,
    ) -> None:
        if batch_size < 1 or batch_size % world:
            raise ValueError(
                f"data.batch_size: expected a multiple of the {world} processes, got {batch_size}"
            )
        self.batch_size, self.steps, self.position = batch_size, steps, position
        self.pool, self.reuse = pool, reuse
        samples_per_process = batch_size // world
        self.batch_part = range(rank * samples_per_process, (rank + 1) * samples_per_process)

    def __len__(self) -> int:
        """Return the steps per epoch, also if less than an epoch remains."""
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the sample numbers of one step after another."""
        first = self.position()
        for step in range(first, (first // self.steps + 1) * self.steps):
            batch = batch_number(step, self.pool, self.reuse)
            yield [batch * self.batch_size + i for i in self.batch_part]


def check_reuse(pool: int | None, reuse: int | None) -> None:
    """Raise a ValueError unless `reuse` is None, or is a count >= 1 with a pool."""
    if reuse is not None:
        whole_number("data.reuse", reuse, 1)
        if pool is None:
            raise ValueError(f"data.reuse: expected null without data.pool, got {reuse}")


class StepLoader(DataLoader):
    """A loader whose position is computed from the number of the step.

    `state_dict` returns an empty state, but must exist: without it, Lightning does not resume in
    the middle of an epoch.
    """

    def state_dict(self) -> dict[str, object]:
        """Return an empty state, because the Trainer stores the step."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Do nothing."""


class TrainingData(LightningDataModule):
    """Samples of a training by step, and the scenes that validate it.

    Args:
        samples: map-style data set; item i is a cube `(C, h, w)` that depends on i alone. It has at
            least as many items as the training uses samples.
        scenes: map-style data set of whole cubes `(C, H, W)`, for validation.
        batch_size: cubes per step, over all processes.
        steps_per_epoch: number of steps between two validations.
        workers: number of processes that load samples; 0 loads in the process of the training.
        pool, reuse: see `batch_number`.

    Raises:
        ValueError: a number is no count, or `reuse` is given without `pool`.
    """

    def __init__(
        self,
        samples: TrainingCrops | ToolboxBatches,
        scenes: WholeScenes,
        *,
        batch_size: int,
        steps_per_epoch: int,
        workers: int = 0,
        pool: int | None = None,
        reuse: int | None = None,
    ) -> None:
        super().__init__()
        whole_number("data.batch_size", batch_size, 1)
        whole_number("data.steps_per_epoch", steps_per_epoch, 1)
        whole_number("data.workers", workers, 0)
        if pool is not None:
            whole_number("data.pool", pool, 1)
        check_reuse(pool, reuse)
        self.samples, self.scenes = samples, scenes
        self.batch_size, self.steps_per_epoch = batch_size, steps_per_epoch
        self.workers, self.pool, self.reuse = workers, pool, reuse

    def train_dataloader(self) -> DataLoader:
        """Return a loader of this process's part of each batch, `(b, C, h, w)`.

        Raises:
            ValueError: the steps per epoch are not a multiple of the accumulated batches.
        """
        trainer = self.trainer
        assert trainer is not None
        if self.steps_per_epoch % trainer.accumulate_grad_batches:
            raise ValueError(
                "data.steps_per_epoch: expected a multiple of trainer.accumulate_grad_batches="
                f"{trainer.accumulate_grad_batches}, got {self.steps_per_epoch}"
            )

        def position() -> int:
            return int(trainer.global_step * trainer.accumulate_grad_batches)

        size, steps = self.batch_size, self.steps_per_epoch
        process = trainer.global_rank, trainer.world_size
        sampler = StepSampler(size, steps, *process, position, self.pool, self.reuse)
        return StepLoader(
            self.samples,
            batch_sampler=sampler,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def val_dataloader(self) -> DataLoader:
        """Return a loader of single scenes; every process gets all scenes."""
        return DataLoader(self.scenes, batch_size=1, shuffle=False)
