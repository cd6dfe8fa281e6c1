"""The priors that need no training, each against loops in NumPy or a property that pins it down."""

from functools import partial

import numpy as np
import pytest
import torch
from shared import uniform

from cassi.priors import TV, Compose, LowRank, NonLocalLowRank, SpectralTV, Stages, Wavelet
from cassi.priors.subspace import from_subspace, spectral_basis, to_subspace

_cube = partial(uniform, dtype=torch.float64)


def test_basis_is_that_of_the_singular_vectors():
    x = _cube(2, 5, 6, 7)
    basis = spectral_basis(x, 3)
    assert basis.shape == (2, 5, 3)
    u, _, _ = np.linalg.svd(x[1].flatten(1).numpy(), full_matrices=False)
    np.testing.assert_allclose(np.abs(u[:, :3].T @ basis[1].numpy()), np.eye(3), atol=1e-9)
    whole = spectral_basis(x, 9)
    torch.testing.assert_close(from_subspace(to_subspace(x, whole), whole), x)
    assert spectral_basis(x.bfloat16(), 2).dtype == torch.float32
    with pytest.raises(ValueError, match="rank: expected at least 1, got 0"):
        spectral_basis(x, 0)


def test_low_rank_is_the_truncated_svd():
    x = _cube(2, 5, 6, 7)
    u, s, v = np.linalg.svd(x[0].flatten(1).numpy(), full_matrices=False)
    expected = (u[:, :2] * s[:2]) @ v[:2]
    got = LowRank(2)(x, 0.3)[0].flatten(1).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(LowRank(7)(x, 0.3), x)


def test_automatic_rank_is_each_samples_own():
    generator = torch.Generator().manual_seed(1)
    x = torch.zeros(3, 8, 40, 50, dtype=torch.float64)
    for index, rank in enumerate((1, 2, 4)):
        spectra, maps = _cube(8, rank, seed=index), _cube(rank, 2000, seed=9)
        x[index] = (spectra @ maps).view(8, 40, 50)
    x += 0.01 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    u = LowRank()(x, 0.011)
    ranks = [torch.linalg.matrix_rank(sample.flatten(1)).item() for sample in u]
    assert ranks == [1, 2, 4]
    each = LowRank()(x, torch.tensor([1e9, 0.011, 0.0]))
    ranks = [torch.linalg.matrix_rank(sample.flatten(1)).item() for sample in each]
    assert ranks == [1, 2, 8]


def test_spectral_tv_tends_to_the_minimum():
    x = _cube(1, 3, 5, 4)
    prior = SpectralTV(iterations=5000)
    u = prior(x, 0.1)

    def objective(v):
        return (0.5 * (v - x).square().sum() + prior.penalty(v, 0.1).sum()).item()

    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        for length in (-1e-2, 1e-2):
            assert objective(u + length * direction) > objective(u)
    run = SpectralTV(iterations=100, warm=True).begin()
    for _ in range(50):
        warm = run(x, 0.1)
    torch.testing.assert_close(warm, u)
    strong = SpectralTV(spectral=100.0, iterations=20000)(x, 0.01)
    torch.testing.assert_close(strong[:, 0], strong[:, 2], rtol=0, atol=1e-2)


def test_wavelet_of_haar_is_the_threshold_of_differences():
    x = _cube(1, 1, 2, 2)
    a, b, c, d = x.flatten().tolist()
    details = np.array([a + b - c - d, a - b + c - d, a - b - c + d]) / 2
    h, v, g = np.sign(details) * np.maximum(np.abs(details) - 0.1, 0)
    mean = (a + b + c + d) / 2
    expected = np.array([mean + h + v + g, mean + h - v - g, mean - h + v - g, mean - h - v + g])
    got = Wavelet(wavelet="haar")(x, 0.1).flatten().numpy()
    np.testing.assert_allclose(got, expected / 2, rtol=1e-12)


@pytest.mark.parametrize("wavelet", ["haar", "db2", "sym4"])
@pytest.mark.parametrize("shape", [(1, 2, 16, 32), (2, 3, 7, 9), (1, 1, 1, 5), (1, 2, 3, 1)])
def test_wavelet_of_any_size(wavelet, shape):
    x = _cube(*shape)
    prior = Wavelet(wavelet=wavelet, shifts=2)
    torch.testing.assert_close(prior(x, 0.0), x)
    assert prior.penalty(x, 0.1) is None
    once = Wavelet(wavelet=wavelet)
    u = once(x, 0.05)
    assert (once.penalty(u, 0.05) <= once.penalty(x, 0.05) + 1e-12).all()
    flat = torch.full(shape, 0.3, dtype=torch.float64)
    torch.testing.assert_close(Wavelet(wavelet="haar")(flat, 0.05), flat)


@pytest.mark.parametrize("rank", [None, 4])
def test_non_local_keeps_a_cube_without_noise_and_searches_seldom(rank):
    x = _cube(2, 4, 12, 13)
    torch.testing.assert_close(NonLocalLowRank(rank=rank)(x, 0.0), x)
    run = NonLocalLowRank(rank=rank, refresh=2).begin()
    first = run(x, 0.1)
    other = _cube(2, 4, 12, 13, seed=1)
    assert not torch.equal(run(other, 0.1), NonLocalLowRank(rank=rank)(other, 0.1))
    assert torch.equal(run(x, 0.1), first)


@pytest.mark.parametrize("shape", [(1, 3, 2, 19), (2, 1, 19, 3), (1, 2, 1, 1)])
def test_non_local_of_any_size(shape):
    x = _cube(*shape)
    torch.testing.assert_close(NonLocalLowRank()(x, 0.0), x)
    assert NonLocalLowRank()(x, 0.3).isfinite().all()


@pytest.mark.parametrize("prior", [LowRank(), NonLocalLowRank()])
def test_what_is_not_finite_is_left_to_the_solver(prior):
    x = _cube(1, 4, 12, 13)
    x[0, 1, 2, 3] = torch.nan
    assert not prior(x, 0.1).isfinite().all()


@pytest.mark.parametrize("named", [False, True])
def test_compose_applies_all_and_remembers(named):
    x = _cube(1, 4, 6, 7)
    warm = TV(iterations=2, warm=True)
    parts = {"tv": warm, "low": LowRank(2)} if named else [warm, LowRank(2)]
    prior = Compose(parts)
    assert torch.equal(prior(x, 0.1), LowRank(2)(TV(iterations=2)(x, 0.1), 0.1))
    run, alone = prior.begin(), warm.begin()
    for _ in range(2):
        got, expected = run(x, 0.1), LowRank(2)(alone(x, 0.1), 0.1)
    assert torch.equal(got, expected)


def test_stages_follow_each_other():
    x = torch.zeros(1, 1, 2, 2)
    run = Stages([lambda v, s: v + 1, lambda v, s: v - 1], [2, 1]).begin()
    assert [run(x, 0.1).max().item() for _ in range(4)] == [1, 1, -1, -1]
    assert Stages({"a": lambda v, s: v, "b": lambda v, s: v + 5}, [1, 1])(x, 0.1).max() == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LowRank(0), "LowRank rank: expected a whole number of at least 1, got 0"),
        (lambda: LowRank("all"), "LowRank rank: expected a whole number"),
        (lambda: LowRank(weight=-1), "LowRank weight: expected a number >= 0, got -1"),
        (lambda: SpectralTV(spectral=-1), "SpectralTV spectral: expected a number >= 0, got -1"),
        (lambda: Wavelet(levels=0), "Wavelet levels: expected a whole number"),
        (lambda: Wavelet(wavelet="bior2.2"), "Wavelet wavelet: expected an orthogonal one"),
        (lambda: Wavelet(wavelet="nothing"), "Wavelet wavelet: expected an orthogonal one"),
        (lambda: NonLocalLowRank(matches=0), "NonLocalLowRank matches: expected a whole number"),
        (lambda: NonLocalLowRank(stride=7), "stride: expected at most patch = 6, got 7"),
        (lambda: Compose([]), "Compose priors: expected at least one, got none"),
        (lambda: Stages([TV()], [1, 2]), "Stages counts: expected one for each of 1 priors"),
        (lambda: Stages([TV()], [0]), "Stages counts: expected a whole number of at least 1"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
