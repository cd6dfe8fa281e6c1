"""What each step of a training sees and draws."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from cassi.data.simulation import RandomMasks, Simulator
from cassi.training import RMSE, PerEpoch
from cassi.training.callbacks import EMA, LastCheckpoint
from cassi.training.data import StepSampler, TrainingData
from cassi.training.denoising import Denoising
from cassi.training.module import Training, merge_bands


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


@pytest.mark.parametrize("name", ["batch_size", "steps_per_epoch", "workers", "pool"])
def test_counts(name):
    settings = {"batch_size": 1, "steps_per_epoch": 1, "workers": 0, name: -1}
    with pytest.raises(ValueError, match=rf"data\.{name}"):
        TrainingData(torch.ones(1), torch.ones(1), **settings)


def test_scores_are_on_the_scale_of_the_file():
    """A scene that was divided for its highlights is no easier than the same without them."""

    class Off(nn.Module):
        def forward(self, y, system):
            return torch.full((1, *system.cube_shape), 0.25)

    simulate = Simulator(RandomMasks(), step=1)
    truth = torch.full((1, 3, 8, 8), 0.5)
    for scale, error in ((1.0, 0.25), (1.6, 0.4)):
        module = Training(Off(), simulate, RMSE(), torch.optim.Adam, scales=[scale])
        module.validation_step(truth, 0)
        assert module.scores[0].item() == pytest.approx(-20 * math.log10(error), abs=0.05)


def test_scores_may_be_those_of_the_log_of_mst():
    """Rounded to 1/256, a peak of 255, the mean over bands."""

    class Wrong(nn.Module):
        def forward(self, y, system):
            return truth + torch.tensor([0.02, 0.05, 0.11]).view(1, 3, 1, 1)

    truth = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    simulate = Simulator(RandomMasks(), step=1)
    made = Training(Wrong(), simulate, RMSE(), torch.optim.Adam, preset="torch-256")
    made.validation_step(truth, 0)
    estimate = Wrong()(None, None)
    errors = ((estimate * 256).round() - (truth * 256).round()).square().mean((0, 2, 3))
    expected = (10 * torch.log10(255**2 / errors)).mean().item()
    assert made.scores[0].item() == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="torch-265"):
        Training(Wrong(), simulate, RMSE(), torch.optim.Adam, preset="torch-265")


class Dropping(nn.Module):
    """x = dropout(Aᵀy)·w."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, y, system):
        return nn.functional.dropout(system.adjoint(y), 0.5, self.training) * self.weight


def fit(
    steps,
    rate=0.0,
    callbacks=(),
    accumulate=1,
    net=None,
    task=Training,
    pool=None,
    reuse=None,
    **more,
):
    from lightning.pytorch import Trainer

    seen = []

    class Watched(task):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            seen.append(loss.item())
            return loss

    module = Watched(
        net or Dropping(), Simulator(RandomMasks()), RMSE(),
        lambda parameters: torch.optim.SGD(parameters, lr=rate), seed=3, pool=pool, reuse=reuse,
        **more,
    )  # fmt: skip
    cubes = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = TrainingData(cubes, cubes[:2], batch_size=2, steps_per_epoch=2, pool=pool, reuse=reuse)
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


def test_a_pool_is_refreshed():
    _, _, seen = fit(8, pool=2, reuse=2)
    assert seen[:2] == seen[2:4]
    assert seen[4:6] == seen[6:]
    assert len(set(seen)) == 4
    # The batches are those of a training that sees each once.
    assert [*seen[:2], *seen[4:6]] == fit(4)[2]


class Beginning(nn.Module):
    """x = w·Aᵀy, counted."""

    def __init__(self):
        super().__init__()
        self.weight, self.begun = nn.Parameter(torch.ones(())), 0

    def begin(self, y, system):
        self.begun += 1
        return system.adjoint(y)

    def outputs(self, y, system, start=None):
        return [self.weight * (self.begin(y, system) if start is None else start)]

    def forward(self, y, system):
        return self.outputs(y, system)[0]

    def denoise(self, x, sigma):
        return self.weight * x / (1 + sigma**2)


def test_starts_of_a_pool_are_computed_once(tmp_path):
    net = Beginning()
    _, _, seen = fit(4, net=net, pool=2, starts=str(tmp_path / "starts"))
    files = sorted(file.name for file in (tmp_path / "starts").iterdir())
    assert files == ["0-0.pt", "1-0.pt"]
    validations = 2 * 2
    assert net.begun == 2 + validations
    assert seen[:2] == seen[2:]
    plain = fit(4, net=Beginning(), pool=2)[2]
    assert seen == pytest.approx(plain, rel=1e-3)
    # New batches take the places of those of the pool.
    net = Beginning()
    more = {"pool": 2, "reuse": 2, "starts": str(tmp_path / "refreshed")}
    assert fit(8, net=net, **more)[2] == pytest.approx(
        fit(8, net=Beginning(), pool=2, reuse=2)[2], rel=1e-3
    )
    assert len(list((tmp_path / "refreshed").iterdir())) == 2
    assert net.begun == 4 + 2 * 4
    # Another run in the same folder finds them.
    net = Beginning()
    assert fit(2, net=net, pool=2, starts=str(tmp_path / "starts"))[2] == seen[:2]
    assert net.begun == 2


def test_a_prior_is_trained_on_noisy_cubes():
    _, trainer, seen = fit(3, net=Beginning(), task=Denoising, sigma=(0.1, 0.1))
    # RMSE of (x + 0.1 n) / 1.01 with x in [0, 1].
    assert seen == pytest.approx([0.1] * 3, rel=0.25)
    assert len(set(seen)) == 3
    assert 19 < trainer.callback_metrics["val_psnr"] < 22


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
        (lambda: fit(1, starts="x"), "starts: expected data.pool, and a network with"),
        (lambda: fit(1, starts="x", pool=2), "Dropping"),
        (lambda: fit(1, reuse=2), "data.reuse: expected null without data.pool"),
        (lambda: fit(1, task=Denoising), "Dropping has none"),
        (lambda: fit(1, task=Denoising, net=Beginning(), sigma=(0.2, 0.1)), "sigma"),
        (lambda: LastCheckpoint("x"), "every_minutes"),
        (lambda: LastCheckpoint("x", every_n_train_steps=2, every_minutes=2), "every_minutes"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(ValueError, match=said):
        make()


class Narrow(Dropping):
    def forward(self, y, system):
        return super().forward(y, system)[:, :1]


def test_a_cube_of_another_shape_is_not_broadcast(monkeypatch):
    monkeypatch.setattr(RMSE, "forward", lambda self, x, truth: (x - truth).abs().mean())
    place, shapes = (
        r"Narrow.forward \(test_steps.py, line \d+\)",
        r"\(2, 3, 8, 8\), .* got \(2, 1, 8, 8\)",
    )
    with pytest.raises(ValueError, match=f"{place}: .* {shapes}"):
        fit(1, net=Narrow())


def test_bands_are_merged_by_means_of_neighbours():
    x = torch.arange(12.0).view(1, 6, 1, 2)
    torch.testing.assert_close(merge_bands(x, 3), x.view(1, 3, 2, 1, 2).mean(2))
    assert merge_bands(x, 6) is x
    assert merge_bands(x, 4).shape == (1, 4, 1, 2)
    with pytest.raises(ValueError, match="at most the 6"):
        merge_bands(x, 7)


def test_steps_take_turns_with_the_numbers_of_bands():
    class Counting(Dropping):
        def forward(self, y, system):
            if self.training:
                seen.append(system.bands)
            return super().forward(y, system)

    seen = []
    fit(4, net=Counting(), bands=[3, 2, 1])
    assert seen == [3, 2, 1, 3]
    with pytest.raises(ValueError, match="bands: expected a list"):
        fit(1, bands=[])


def test_a_schedule_of_epochs_is_that_of_torch():
    """Also where the run is resumed in the middle of an epoch."""
    from torch.optim.lr_scheduler import CosineAnnealingLR

    def make():
        optimizer = torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=4e-4)
        return optimizer, partial(CosineAnnealingLR, T_max=5, eta_min=1e-6)

    optimizer, schedule = make()
    plain, expected = schedule(optimizer), []
    for _ in range(5):
        expected += 3 * plain.get_last_lr()
        optimizer.step()
        plain.step()
    optimizer, schedule = make()
    per_epoch, seen = PerEpoch(optimizer, schedule, steps=3), []
    for step in range(15):
        if step == 7:
            states = per_epoch.state_dict(), optimizer.state_dict()
            optimizer, schedule = make()
            per_epoch = PerEpoch(optimizer, schedule, steps=3)
            per_epoch.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        seen.append(optimizer.param_groups[0]["lr"])
        assert per_epoch.get_last_lr() == seen[-1:]
        optimizer.step()
        per_epoch.step()
    assert seen == expected
    with pytest.raises(ValueError, match="steps: expected at least 1"):
        PerEpoch(optimizer, schedule, steps=0)
