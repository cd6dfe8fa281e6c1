"""What each step of a training sees and draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cassi.data.masks import RandomMasks
from cassi.data.simulation import Simulator
from cassi.training import RMSE
from cassi.training.callbacks import EMA, LastCheckpoint
from cassi.training.data import StepSampler, TrainingData
from cassi.training.module import Training, combine_seeds


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_the_samples_of_a_step(world):
    parts = [list(StepSampler(8, 3, rank, world, lambda: 0)) for rank in range(world)]
    for step in range(3):
        together = [index for part in parts for index in part[step]]
        assert together == list(range(8 * step, 8 * step + 8))


def test_a_resumed_epoch_goes_on_with_the_next_sample():
    done = 0
    sampler = StepSampler(2, 5, 0, 1, lambda: done)
    whole = list(sampler)
    done = 3
    assert list(sampler) == whole[3:]
    done = 5
    assert next(iter(sampler)) == [10, 11]
    assert len(sampler) == 5


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"batch_size": 0}])
def test_a_batch_that_cannot_be_shared(settings):
    with pytest.raises(ValueError, match="multiple of the 2 processes"):
        StepSampler(**settings, steps=1, rank=0, world=2, position=lambda: 0)


@pytest.mark.parametrize("name", ["batch_size", "steps_per_epoch", "workers"])
def test_counts(name):
    settings = {"batch_size": 1, "steps_per_epoch": 1, "workers": 0, name: -1}
    with pytest.raises(ValueError, match=rf"data\.{name}"):
        TrainingData(torch.ones(1), torch.ones(1), **settings)


def test_seeds_differ_in_every_part():
    seeds = {combine_seeds(a, b, c) for a in range(4) for b in range(4) for c in range(4)}
    assert len(seeds) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)


class Dropping(nn.Module):
    """x = dropout(Aᵀy)·w."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, y, system):
        return nn.functional.dropout(system.adjoint(y), 0.5, self.training) * self.weight


def fit(steps, rate=0.0, callbacks=(), accumulate=1):
    from lightning.pytorch import Trainer

    seen = []

    class Watched(Training):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            seen.append(loss.item())
            return loss

    module = Watched(
        Dropping(), Simulator(RandomMasks()), RMSE(),
        lambda parameters: torch.optim.SGD(parameters, lr=rate), seed=3,
    )  # fmt: skip
    cubes = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = TrainingData(cubes, cubes[:2], batch_size=2, steps_per_epoch=2)
    trainer = Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, logger=False, callbacks=list(callbacks),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, use_distributed_sampler=False, accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return module, trainer, seen


def test_steps_draw_the_same_whatever_was_drawn_before():
    torch.manual_seed(1)
    _, _, first = fit(4)
    torch.manual_seed(2)
    _, _, second = fit(4)
    assert first == second
    assert len(set(first)) == 4


def test_accumulated_steps_see_other_samples():
    _, trainer, seen = fit(2, accumulate=2)
    assert trainer.global_step == 2
    assert len(set(seen)) == 4


def test_the_last_step_is_validated():
    _, trainer, _ = fit(3)
    assert trainer.global_step == 3
    assert trainer.callback_metrics["val_psnr"].isfinite()


def test_the_average_follows_its_equation():
    # One weight whose gradient is the mean of the loss: watch it step by step.
    path = []

    class Watch(EMA):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            super().on_train_batch_end(trainer, pl_module, *rest)
            path.append((pl_module.net.weight.item(), self._average_model.module.net.weight.item()))

    module, _, _ = fit(4, rate=0.5, callbacks=[Watch(decay=0.75)])
    average = path[0][0]
    for weight, averaged in path[1:]:
        average = 0.75 * average + 0.25 * weight
        assert averaged == pytest.approx(average, rel=1e-5)
    assert module.net.weight.item() == pytest.approx(average, rel=1e-5)
    assert path[-1][0] != path[0][0]


def test_what_is_not_finite_is_told():
    with pytest.raises(ValueError, match=r"not finite after step 2; lower optimizer\.lr"):
        fit(4, rate=float("inf"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EMA(1.0), "decay"),
        (lambda: LastCheckpoint("x"), "every_minutes"),
        (lambda: LastCheckpoint("x", every_n_train_steps=2, every_minutes=2), "every_minutes"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(ValueError, match=said):
        make()
