"""Losses against their equations, and the schedule of the learning rate."""

import math

import pytest
import torch
from torch import nn

from cassi.training import RMSE, Charbonnier, LogRMSE, MultiStage, WarmupCosine


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 4, 5, 6, generator=generator), torch.rand(3, 4, 5, 6, generator=generator)


def test_rmse_is_the_mean_over_cubes_or_one_root(pair):
    x, truth = pair
    each = [((a - b) ** 2).mean().sqrt() for a, b in zip(x, truth, strict=True)]
    torch.testing.assert_close(RMSE()(x, truth), torch.stack(each).mean())
    torch.testing.assert_close(RMSE(batch=True)(x, truth), nn.functional.mse_loss(x, truth).sqrt())


def test_rmse_of_equal_cubes_has_a_finite_gradient(pair):
    x = pair[0].clone().requires_grad_()
    loss = RMSE()(x, pair[0])
    loss.backward()
    assert loss < 1e-18
    assert x.grad.isfinite().all()


def test_charbonnier(pair):
    x, truth = pair
    expected = ((x - truth) ** 2 + 0.1**2).sqrt().mean()
    torch.testing.assert_close(Charbonnier(0.1)(x, truth), expected)


def test_multi_stage_weighs_the_last_stages(pair):
    x, truth = pair
    loss = MultiStage((1.0, 0.5), Charbonnier())
    base = Charbonnier()
    expected = base(x, truth) + 0.5 * base(2 * x, truth)
    torch.testing.assert_close(loss([x, 2 * x, 3 * x], truth), expected)
    torch.testing.assert_close(loss(x, truth), base(x, truth))


@pytest.mark.parametrize("loss", [RMSE(), LogRMSE(), Charbonnier(), MultiStage()])
def test_a_loss_of_low_precision_is_computed_in_single(loss, pair):
    assert loss(pair[0].bfloat16(), pair[1]).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Charbonnier(0), "eps"),
        (lambda: MultiStage(()), "weights"),
        (lambda: MultiStage((1, -1)), "weights"),
        (lambda: RMSE()(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 4, 3)), "one shape"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_warmup_cosine_follows_its_equation():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = WarmupCosine(optimizer, steps=10, warmup=2, eta_min=0.1)
    rates = []
    for _ in range(12):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * s / 8)) / 2 for s in range(9)]
    assert rates[2:11] == pytest.approx(expected)
    assert rates[11] == pytest.approx(0.1)


@pytest.mark.parametrize("settings", [{"steps": 3, "warmup": 3}, {"steps": 3, "eta_min": -1}])
def test_warmup_cosine_refuses(settings):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match="WarmupCosine"):
        WarmupCosine(optimizer, **settings)
