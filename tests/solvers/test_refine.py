"""Refinement: cubes consistent with the measurement, which are never further from the truth."""

import torch
from shared import disc

import cassi
from cassi.solvers import refine


def _camera(bands=5, size=96):
    mask = (torch.rand(size, size, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    return cassi.SDCassi(mask, bands=bands, step=1)


def _scene():
    return disc(5, 96).repeat(2, 1, 1, 1)


def _residual(x, y, system):
    return (y - system(x)).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)


def test_reaches_data_consistency_and_comes_nearer_to_the_truth():
    system, truth = _camera(), _scene()
    y = system(truth)
    wrong = truth + 0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    x = refine(wrong, y, system)
    assert (_residual(x, y, system) <= 1e-3).all()
    assert ((x - truth).flatten(1).norm(dim=1) < (wrong - truth).flatten(1).norm(dim=1)).all()


def test_does_not_fit_noise():
    system, truth = _camera(), _scene()
    y = system(truth)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    noisy = y + 0.2 * y.square().mean().sqrt() * noise
    assert torch.equal(refine(truth, noisy, system), truth)


def test_each_sample_stops_for_itself():
    system, truth = _camera(), _scene()
    y = system(truth)
    cubes = torch.stack((truth[0], truth[1] + 0.1))
    x = refine(cubes, y, system)
    assert torch.equal(x[0], truth[0])
    torch.testing.assert_close(x[1:], refine(cubes[1:], y[1:], system))
