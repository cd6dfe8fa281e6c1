"""tv_prox: what it minimises, how fast, and the cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.restoration import denoise_tv_chambolle
from torch import Tensor

from cassi import ops


def _noisy(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.zeros(shape, dtype=torch.float64)
    x[..., shape[-2] // 2 :, shape[-1] // 3 :] = 1
    return x + 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def _objective(u: Tensor, x: Tensor, weight: float) -> float:
    down, right = torch.zeros_like(u), torch.zeros_like(u)
    down[..., :-1, :] = u[..., 1:, :] - u[..., :-1, :]
    right[..., :-1] = u[..., 1:] - u[..., :-1]
    return (0.5 * (u - x).square().sum() + weight * (down**2 + right**2).sqrt().sum()).item()


def _dual_gradient(image: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    """The same iteration, pixel by pixel: u = x − Dᵀp, p ← project(p + Du/8)."""
    height, width = image.shape
    p = np.zeros((height, width, 2))
    u = image.copy()
    for _ in range(iterations):
        for i, j in np.ndindex(height, width):
            if i + 1 < height:
                p[i, j, 0] += (u[i + 1, j] - u[i, j]) / 8
            if j + 1 < width:
                p[i, j, 1] += (u[i, j + 1] - u[i, j]) / 8
            length = np.hypot(*p[i, j])
            if length > weight:
                p[i, j] *= weight / length
        u = image.copy()
        for i, j in np.ndindex(height, width):
            if i + 1 < height:
                u[i, j] += p[i, j, 0]
                u[i + 1, j] -= p[i, j, 0]
            if j + 1 < width:
                u[i, j] += p[i, j, 1]
                u[i, j + 1] -= p[i, j, 1]
    return u


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 6)])
@pytest.mark.parametrize("iterations", [0, 1, 2, 6])
def test_against_loops(size: tuple[int, int], iterations: int) -> None:
    x = _noisy(2, 3, *size)
    got = ops.tv_prox(x, 0.11, iterations)
    assert got.shape == x.shape
    for b, c in np.ndindex(2, 3):
        expected = _dual_gradient(x[b, c].numpy(), 0.11, iterations)
        np.testing.assert_allclose(got[b, c].numpy(), expected, rtol=1e-13, atol=1e-13)


def test_objective_falls_to_that_of_an_independent_solver() -> None:
    x, weight = _noisy(1, 1, 13, 17), 0.15
    cubes = [ops.tv_prox(x, weight, n) for n in (0, 1, 2, 5, 20, 100, 700)]
    values = [_objective(u, x, weight) for u in cubes]
    assert values == sorted(values, reverse=True)
    other = torch.from_numpy(
        denoise_tv_chambolle(x[0, 0].numpy(), weight=weight, eps=1e-15, max_num_iter=3000)
    )
    best = _objective(other, x[0, 0], weight)
    assert values[-1] == pytest.approx(best, rel=2e-4)
    assert values[0] > 1.9 * best
    torch.testing.assert_close(cubes[-1][0, 0], other, rtol=0, atol=1e-2)


def test_two_pixels_in_closed_form() -> None:
    x = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
    for weight, expected in ((0.2, [0.2, 0.8]), (0.5, [0.5, 0.5]), (9.0, [0.5, 0.5])):
        for image in (x, x.mT):
            got = ops.tv_prox(image, weight, 200)
            assert got.flatten().tolist() == pytest.approx(expected)


def test_cases_with_a_known_answer() -> None:
    x = _noisy(2, 3, 6, 5)
    assert torch.equal(ops.tv_prox(x, 0.0, 9), x)
    assert torch.equal(ops.tv_prox(x, 0.3, 0), x)
    flat = torch.full((1, 2, 6, 5), 0.7, dtype=torch.float64)
    assert torch.equal(ops.tv_prox(flat, 5.0, 9), flat)
    mean = x.mean((-1, -2), keepdim=True).expand_as(x)
    torch.testing.assert_close(ops.tv_prox(x, 1e6, 900), mean, rtol=0, atol=1e-6)
    got = ops.tv_prox(x, 0.2, 7).mean((-1, -2), keepdim=True).expand_as(x)
    torch.testing.assert_close(got, mean, rtol=0, atol=1e-14)  # the mean of a band is kept


def test_symmetries() -> None:
    x = _noisy(1, 2, 6, 5)
    torch.testing.assert_close(ops.tv_prox(x.mT, 0.1, 8).mT, ops.tv_prox(x, 0.1, 8))
    torch.testing.assert_close(ops.tv_prox(7 * x, 0.7, 8), 7 * ops.tv_prox(x, 0.1, 8))
    torch.testing.assert_close(ops.tv_prox(x + 3, 0.1, 8), ops.tv_prox(x, 0.1, 8) + 3)
    torch.testing.assert_close(ops.tv_prox(-x, 0.1, 8), -ops.tv_prox(x, 0.1, 8))


def test_bands_and_samples_are_independent() -> None:
    x = _noisy(2, 3, 6, 5)
    weight = torch.tensor([0.05, 0.3], dtype=torch.float64)
    got = ops.tv_prox(x, weight, 8)
    for b in range(2):
        assert torch.equal(got[b], ops.tv_prox(x[b], weight[b].item(), 8))
        for c in range(3):
            assert torch.equal(got[b, c], ops.tv_prox(x[b, c : c + 1], weight[b], 8)[0])


def test_many_planes_are_all_denoised() -> None:
    """More pixels than one cache-sized piece of work holds."""
    x = _noisy(2, 5, 96, 100).float()
    got = ops.tv_prox(x, torch.tensor([0.1, 0.2]), 2)
    for b, c in ((0, 0), (0, 4), (1, 0), (1, 4)):
        alone = ops.tv_prox(x[b, c][None], 0.1 * (b + 1), 2)[0]
        torch.testing.assert_close(got[b, c], alone, rtol=0, atol=1e-6)


def test_default_is_five_iterations() -> None:
    x = _noisy(1, 6, 5)
    assert torch.equal(ops.tv_prox(x, 0.1), ops.tv_prox(x, 0.1, 5))
