"""Subspace: the basis it finds, the rank it keeps, what a memory of components is told."""

import pytest
import torch

from cassi.priors import TV, Compose, Stages, Subspace
from cassi.priors.subspace import block_means


def _scene(rank=3, bands=8, noise=0.0):
    """Piecewise-constant mixtures of `rank` spectra, each with its own strength."""
    generator = torch.Generator().manual_seed(0)
    spectra = torch.linalg.qr(torch.rand(bands, rank, generator=generator).double())[0]
    amounts = torch.rand(2, rank, 4, 5, generator=generator).double()
    amounts = amounts.repeat_interleave(16, -2).repeat_interleave(16, -1)
    cube = torch.einsum("cr,brhw->bchw", spectra, amounts)
    return cube + noise * torch.randn(cube.shape, generator=generator, dtype=cube.dtype)


def _identity(x, sigma):
    return x


@pytest.mark.parametrize("pool", [1, 8])
def test_projects_onto_the_subspace(pool):
    x = _scene()
    kept = Subspace(_identity, rank=3, pool=pool)(x, 0.1)
    torch.testing.assert_close(kept, x)
    assert (Subspace(_identity, rank=2, pool=pool)(x, 0.1) - x).norm() > 0.01 * x.norm()


def test_rank_comes_from_the_data_once_sigma_has_settled():
    seen = []

    def count(x, sigma):
        seen.append(int((x.flatten(2).norm(dim=2) > 1e-9).sum(1).max()))
        return x

    x = _scene(rank=3, noise=1e-3)
    run = Subspace(count, rank=6).begin()
    for sigma in (1.0, 0.5, 0.3, 0.1):
        u = run(x, sigma)
    assert seen == [6, 6, 6, 3]
    torch.testing.assert_close(u, x, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "wrap", [lambda p: p, lambda p: Compose([p]), lambda p: Stages([p, p], [2, 1])]
)
def test_total_variation_follows_the_basis(wrap):
    """In all directions, a memory that turns with the basis makes the basis invisible."""
    x = _scene(noise=0.1)
    tv = wrap(TV(norm="nuclear", warm=True, iterations=2))
    inside, outside = Subspace(tv, rank=8, energy=0.0).begin(), tv.begin()
    for shift in range(4):
        cube = x * (1 + 0.5 * shift * torch.rand(8, 1, 1, dtype=x.dtype))
        torch.testing.assert_close(inside(cube, 0.2), outside(cube, 0.2), rtol=1e-9, atol=1e-9)


def test_block_means():
    x = torch.arange(2 * 40 * 50, dtype=torch.float64).view(1, 2, 40, 50)
    means = block_means(x, 8)
    assert means.shape == (1, 2, 5, 7)
    assert means[0, 1, 0, 0] == x[0, 1, :8, :8].mean()
    assert means[0, 0, 4, 6] == x[0, 0, 32:, 48:].mean()
    assert block_means(x[..., :3, :3], 8).shape == (1, 2, 3, 3)  # too few pixels to average


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"prior": 3}, TypeError, "Subspace prior: expected a callable, got 3"),
        ({"rank": 0}, ValueError, "Subspace rank: expected a whole number of at least 1, got 0"),
        ({"pool": 0}, ValueError, "Subspace pool"),
        ({"energy": -1.0}, ValueError, "Subspace energy: expected a number >= 0"),
    ],
)
def test_refuses(arguments, error, said):
    with pytest.raises(error, match=said):
        Subspace(**arguments)


def test_objective_is_that_of_the_components():
    x = _scene()
    tv = TV(norm="nuclear", warm=True)
    run = Subspace(tv, rank=3, energy=0.0).begin()
    assert run.penalty(x, 0.1) is None
    run(x, 0.1)
    value = run.penalty(x, 0.1)
    torch.testing.assert_close(value, tv.penalty(x, 0.1))
    assert Subspace(_identity).begin().penalty(x, 0.1) is None
