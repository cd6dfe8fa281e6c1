"""What `train_refiner.py` fits is what reconstructs."""

from dataclasses import replace

import pytest
import torch

import cassi
from cassi.methods.refining import refining
from cassi.models.inference import SHARES
from cassi.models.pretrained import SMOOTHER, refining_denoiser
from cassi.priors import Compose
from cassi.solvers.heldout import weighted_mean
from scripts.release import train_refiner
from scripts.release.train_refiner import Sample, Unrolled


@pytest.fixture(scope="module", params=[0.0, 0.02], ids=["no noise", "noise"])
def sample(request):
    random = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    bands = torch.arange(6).view(-1, 1, 1)
    truth = (0.5 + 0.3 * torch.sin(rows / 9 + bands / 4) * torch.cos(columns / 7))[None]
    system = cassi.SDCassi(torch.rand(64, 64, generator=random).round(), 6, 2)
    y = system(truth)
    y = y + request.param * y.square().mean().sqrt() * torch.randn(y.shape, generator=random)
    cubes = (truth + 0.05 * torch.randn(truth.shape, generator=random) for _ in range(2))
    return Sample(
        truth.half(), y, system, *(x.half() for x in cubes), torch.tensor([request.param])
    )


def test_the_loop_that_is_fitted_is_the_one_that_refines(sample, monkeypatch):
    # Few iterations: what is rounded differs with the number of threads, and grows with each.
    def few(noise, prior):
        return replace(refining(noise, prior), iterations=3)

    monkeypatch.setattr(train_refiner, "refining", few)
    denoiser = replace(refining_denoiser(), precision="32-true")
    solver = few(float(sample.noise), Compose([SMOOTHER, denoiser]))
    x, first = sample.x.float(), sample.first.float()
    refined = solver.run(sample.y, sample.system, x0=x).x
    expected = weighted_mean((first, x, refined), SHARES[2])
    found = Unrolled(replace(denoiser, learns=True), last=2)(sample)
    # Of the directions of noise in these cubes, none is before the other: rounding turns them.
    change = (expected - weighted_mean((first, x, x), SHARES[2])).norm()
    assert float((found.detach() - expected).norm() / change) < 0.1


def test_every_weight_has_a_gradient(sample):
    denoiser = refining_denoiser(learns=True)
    x = Unrolled(denoiser, last=2)(sample)
    (x - sample.truth.float()).square().mean().backward()
    gradients = [parameter.grad for parameter in denoiser.network.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert sum(bool(g.any()) for g in gradients) > len(gradients) / 2
