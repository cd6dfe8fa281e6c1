"""Which samples a step of a training sees."""

from collections.abc import Callable, Iterator

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from cassi.checks import whole_number
from cassi.data.datasets import TrainingCrops, WholeScenes
from cassi.data.mst import ToolboxBatches


def place_of(step: int, pool: int | None = None, reuse: int | None = None) -> int:
    """Return the number of the batch that a step, counted from the start, sees.

    Without a pool every step has a batch of its own. The batches of a pool come again, `reuse`
    times before new ones take their places, or always.

    >>> [place_of(step, pool=2, reuse=2) for step in range(8)]
    [0, 1, 0, 1, 2, 3, 2, 3]
    """
    if pool is None:
        return step
    refreshed = 0 if reuse is None else step // (pool * reuse)
    return refreshed * pool + step % pool


class StepSampler(Sampler[list[int]]):
    """The samples of each step, by the number of the step.

    Step s, counted from the start of the training, sees the samples s·B … s·B + B − 1, of which
    process r of R gets the r-th part. Iteration starts at the step that `position` tells and ends
    with the epoch that this step lies in: a resumed run goes on with the next sample.
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
        share = batch_size // world
        self.part = range(rank * share, (rank + 1) * share)

    def __len__(self) -> int:
        """Steps per epoch, also where less than an epoch is left."""
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the samples of one step after the other."""
        first = self.position()
        for step in range(first, (first // self.steps + 1) * self.steps):
            place = place_of(step, self.pool, self.reuse)
            yield [place * self.batch_size + i for i in self.part]


def check_reuse(pool: int | None, reuse: int | None) -> None:
    """Raise ValueError unless it is a count of a pool, or None."""
    if reuse is not None:
        whole_number("data.reuse", reuse, 1)
        if pool is None:
            raise ValueError(f"data.reuse: expected null without data.pool, got {reuse}")


class StepLoader(DataLoader):
    """A loader that finds its place by the number of the step.

    That it has a state, though an empty one, tells Lightning that it can be resumed anywhere.
    """

    def state_dict(self) -> dict[str, object]:
        """Return nothing: the Trainer knows the step."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take nothing."""


class TrainingData(LightningDataModule):
    """Samples of a training by step, and the scenes that validate it.

    Args:
        samples: map-style; item i is a cube `(C, h, w)` that depends on i alone. It has as many
            items as the training has samples, or is unlimited.
        scenes: map-style, whole cubes `(C, H, W)`.
        batch_size: cubes per step, over all processes.
        steps_per_epoch: after so many steps the scenes are reconstructed.
        workers: processes that load; 0 loads in the training's own.
        pool, reuse: see `place_of`.
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
        """Return the batches of an epoch, `(b, C, h, w)` each."""
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
        place = trainer.global_rank, trainer.world_size
        sampler = StepSampler(size, steps, *place, position, self.pool, self.reuse)
        return StepLoader(
            self.samples,
            batch_sampler=sampler,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def val_dataloader(self) -> DataLoader:
        """Return the scenes one by one, to every process all of them."""
        return DataLoader(self.scenes, batch_size=1, shuffle=False)
