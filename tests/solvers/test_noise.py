"""How noisy a measurement is taken to be, and how the data step answers."""

import pytest
import torch

from cassi import ADMM, GAP, TV, SDCassi, Solver
from cassi.metrics import psnr
from cassi.solvers import noise_damping, noise_level


def _scene(shots=1):
    """Large plain areas of smooth spectra, as most scenes have somewhere."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand((shots, 1, 96, 112), generator=generator, dtype=torch.float64)
    system = SDCassi(mask, bands=8, step=2)
    t = torch.linspace(0, 1, 8, dtype=torch.float64).view(8, 1, 1)
    x = torch.ones((2, 8, 96, 112), dtype=torch.float64)
    x[0, :, :, :60] = 0.5 + 0.4 * t
    x[1, :, 40:, :] = 1.2 - t
    return system, x, system(x)


def _disturbed(y, relative):
    generator = torch.Generator().manual_seed(1)
    size = y.square().flatten(1).mean(1).sqrt().view(-1, 1, 1, 1)
    return y + relative * size * torch.randn(y.shape, generator=generator, dtype=y.dtype)


@pytest.mark.parametrize("shots", [1, 2])
@pytest.mark.parametrize("relative", [0.01, 0.03, 0.1, 0.3])
def test_level_is_that_of_the_noise(relative, shots):
    system, _, y = _scene(shots)
    size = y.square().flatten(1).mean(1).sqrt()
    found = noise_level(_disturbed(y, relative), system) / size
    assert found.tolist() == pytest.approx([relative] * 2, rel=0.15)


def test_level_of_a_clean_or_a_small_measurement_is_nothing():
    system, _, y = _scene()
    assert (noise_level(y, system) < 2e-3 * y.std()).all()
    small = SDCassi(torch.rand(20, 20), bands=3)
    assert noise_level(torch.rand(2, 1, 20, 24), small).tolist() == [0.0, 0.0]


def test_damping_rises_with_noise_and_gram():
    system, _, y = _scene()
    values = [noise_damping(y, system, n)[0].item() for n in (0.0, 0.003, 0.01, 0.1, 1.0)]
    assert values[:2] == [0.0, 0.0]
    assert values == sorted(values)
    twice = SDCassi(2 * system.mask, bands=8, step=2)
    torch.testing.assert_close(noise_damping(y, twice, 0.1), 4 * noise_damping(y, system, 0.1))


@pytest.mark.parametrize("algorithm", [ADMM(), GAP()])
def test_a_noisy_snapshot_is_followed_less_closely(algorithm):
    system, truth, y = _scene()
    noisy = _disturbed(y, 0.1)
    scores, residuals = [], []
    for noise in (0.0, "auto", 0.1):
        solution = Solver(TV(), algorithm, iterations=30, noise=noise).run(noisy, system)
        scores.append(psnr(solution.x, truth, "unit").mean().item())
        residuals.append(solution.history[-1].residual)
    assert residuals[1] > residuals[0]
    assert residuals[1] == pytest.approx(residuals[2], rel=0.1)
    assert scores[1] > scores[0]
    clean = [Solver(TV(), algorithm, iterations=3, noise=n)(y, system) for n in (0.0, "auto")]
    assert torch.equal(*clean)


def test_samples_with_masks_of_their_own_are_judged_alone():
    generator = torch.Generator().manual_seed(3)
    masks = torch.rand(2, 1, 1, 96, 96, generator=generator)
    x = torch.rand(2, 6, 1, 1, generator=generator).expand(-1, -1, 96, 96).contiguous()
    y = SDCassi(masks, bands=6, step=2)(x)
    y = y + 0.05 * torch.randn(y.shape, generator=generator)
    alone = [noise_level(y[i : i + 1], SDCassi(masks[i], bands=6, step=2)) for i in range(2)]
    torch.testing.assert_close(noise_level(y, SDCassi(masks, bands=6, step=2)), torch.cat(alone))
