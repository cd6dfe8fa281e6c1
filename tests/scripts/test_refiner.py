"""What `train_refiner.py` fits is what reconstructs."""

from dataclasses import replace

import pytest
import torch

import cassi
from cassi.methods.refinement import MirroringDenoiser, refining
from cassi.models.pretrained import TV_PRIOR, refining_denoiser
from cassi.priors import Compose
from scripts.release import train_refiner
from scripts.release.train_refiner import Run, Sample, advance


@pytest.fixture(scope="module", params=[0.0, 0.02], ids=["no noise", "noise"])
def sample(request):
    random = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    bands = torch.arange(6).view(-1, 1, 1)
    truth = (0.5 + 0.3 * torch.sin(rows / 9 + bands / 4) * torch.cos(columns / 7))[None]
    system = cassi.SDCassi(torch.rand(64, 64, generator=random).round(), 6, 2)
    y = system(truth)
    y = y + request.param * y.square().mean().sqrt() * torch.randn(y.shape, generator=random)
    first = truth + 0.05 * torch.randn(truth.shape, generator=random)
    return Sample(truth.half(), y, system, first.half(), torch.tensor([request.param]))


def test_the_loop_that_is_fitted_is_the_one_that_refines(sample, monkeypatch):
    # Few iterations: what is rounded differs with the number of threads, and grows with each.
    def few(noise, prior):
        return replace(refining(noise, prior), iterations=3)

    monkeypatch.setattr(train_refiner, "refining", few)
    denoiser = replace(refining_denoiser(), precision="32-true")
    solver = few(float(sample.noise), Compose([TV_PRIOR, MirroringDenoiser(denoiser)]))
    first = sample.first.float()
    expected = solver.run(sample.y, sample.system, x0=first).x
    run = Run(replace(denoiser, learns=True), sample)
    found = [run.step() for _ in range(run.count)][-1]
    # Of the directions of noise in this cube, none is before the other: rounding turns them.
    assert float((found.detach() - expected).norm() / (expected - first).norm()) < 0.1


def test_every_weight_has_a_gradient(sample):
    denoiser = refining_denoiser(learns=True)
    for _ in range(2):  # the second window goes on from the first
        loss = advance(denoiser, sample, window=2)
    assert sample.run is not None
    assert sample.run.k == 4
    loss.backward()
    gradients = [parameter.grad for parameter in denoiser.network.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert sum(bool(g.any()) for g in gradients) > len(gradients) / 2
