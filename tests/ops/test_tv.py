"""tv_prox: what it minimises, how fast, known answers; one norm for all bands; a dual passed on."""

import numpy as np
import pytest
import torch

from cassi import ops


def _noisy(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.zeros(shape, dtype=torch.float64)
    x[..., shape[-2] // 2 :, shape[-1] // 3 :] = 1
    return x + 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def _objective(u, x, weight):
    down, right = torch.zeros_like(u), torch.zeros_like(u)
    down[..., :-1, :] = u[..., 1:, :] - u[..., :-1, :]
    right[..., :-1] = u[..., 1:] - u[..., :-1]
    return (0.5 * (u - x).square().sum() + weight * (down**2 + right**2).sqrt().sum()).item()


@pytest.mark.parametrize("norm", ["band", "frobenius"])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (5, 6)])
@pytest.mark.parametrize("iterations", [0, 1, 2, 9])
def test_against_loops(size, iterations, norm):
    x, weight = _noisy(2, 3, *size), torch.tensor([0.11, 0.3], dtype=torch.float64)
    got = ops.tv_prox(x, weight, iterations, norm=norm)
    for b in range(2):
        parts = x[b].split(1 if norm == "band" else 3)
        expected = [_by_loops(part.numpy(), weight[b].item(), iterations) for part in parts]
        np.testing.assert_allclose(got[b], np.concatenate(expected), rtol=1e-12, atol=1e-13)


def test_objective_falls_to_that_of_an_independent_solver():
    x, weight = _noisy(1, 1, 13, 17), 0.15
    cubes = [ops.tv_prox(x, weight, n) for n in (0, 1, 2, 5, 20, 100, 700)]
    values = [_objective(u, x, weight) for u in cubes]
    assert values == sorted(values, reverse=True)
    theirs = pytest.importorskip("skimage.restoration").denoise_tv_chambolle
    other = torch.from_numpy(theirs(x[0, 0].numpy(), weight=weight, eps=1e-15, max_num_iter=3000))
    best = _objective(other, x[0, 0], weight)
    assert values[-1] == pytest.approx(best, rel=2e-4)
    assert values[0] > 1.9 * best
    torch.testing.assert_close(cubes[-1][0, 0], other, rtol=0, atol=1e-2)


def test_cases_with_a_known_answer():
    x = _noisy(2, 3, 6, 5)
    assert torch.equal(ops.tv_prox(x, 0.0, 9), x)
    assert torch.equal(ops.tv_prox(x, 0.3, 0), x)
    flat = torch.full((1, 2, 6, 5), 0.7, dtype=torch.float64)
    assert torch.equal(ops.tv_prox(flat, 5.0, 9), flat)
    mean = x.mean((-1, -2), keepdim=True).expand_as(x)
    torch.testing.assert_close(ops.tv_prox(x, 1e6, 900), mean, rtol=0, atol=1e-6)
    got = ops.tv_prox(x, 0.2, 7).mean((-1, -2), keepdim=True).expand_as(x)
    torch.testing.assert_close(got, mean, rtol=0, atol=1e-14)  # the mean of a band is kept


def test_symmetries():
    x = _noisy(1, 2, 6, 5)
    torch.testing.assert_close(ops.tv_prox(x.mT, 0.1, 8).mT, ops.tv_prox(x, 0.1, 8))
    torch.testing.assert_close(ops.tv_prox(7 * x, 0.7, 8), 7 * ops.tv_prox(x, 0.1, 8))
    torch.testing.assert_close(ops.tv_prox(x + 3, 0.1, 8), ops.tv_prox(x, 0.1, 8) + 3)
    torch.testing.assert_close(ops.tv_prox(-x, 0.1, 8), -ops.tv_prox(x, 0.1, 8))


def test_bands_and_samples_are_independent():
    x = _noisy(2, 3, 6, 5)
    weight = torch.tensor([0.05, 0.3], dtype=torch.float64)
    got = ops.tv_prox(x, weight, 8)
    for b in range(2):
        assert torch.equal(got[b], ops.tv_prox(x[b], weight[b].item(), 8))
        for c in range(3):
            assert torch.equal(got[b, c], ops.tv_prox(x[b, c : c + 1], weight[b], 8)[0])


def _by_loops(image, weight, iterations):
    """Iterate u = x − Dᵀp, p ← project(p + Du/8), the length of p over all bands of a pixel."""
    bands, height, width = image.shape
    p = np.zeros((height, width, bands, 2))
    u = image.copy()
    for _ in range(iterations):
        for i, j in np.ndindex(height, width):
            if i + 1 < height:
                p[i, j, :, 0] += (u[:, i + 1, j] - u[:, i, j]) / 8
            if j + 1 < width:
                p[i, j, :, 1] += (u[:, i, j + 1] - u[:, i, j]) / 8
            length = np.sqrt((p[i, j] ** 2).sum())
            if length > weight:
                p[i, j] *= weight / length
        u = image.copy()
        for i, j in np.ndindex(height, width):
            if i + 1 < height:
                u[:, i, j] += p[i, j, :, 0]
                u[:, i + 1, j] -= p[i, j, :, 0]
            if j + 1 < width:
                u[:, i, j] += p[i, j, :, 1]
                u[:, i, j + 1] -= p[i, j, :, 1]
    return u


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_one_band_has_one_norm(norm):
    x = _noisy(2, 1, 8, 9)
    torch.testing.assert_close(ops.tv_prox(x, 0.1, 7, norm=norm), ops.tv_prox(x, 0.1, 7))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_turns_with_the_bands(norm):
    """A rotation of the spectra commutes with a norm over all bands."""
    x = _noisy(1, 3, 8, 9)
    q = torch.linalg.qr(torch.rand(3, 3, dtype=torch.float64))[0]
    turned = torch.einsum("ij,bjhw->bihw", q, x)
    expected = torch.einsum("ij,bjhw->bihw", q, ops.tv_prox(x, 0.2, 6, norm=norm))
    torch.testing.assert_close(ops.tv_prox(turned, 0.2, 6, norm=norm), expected)


@pytest.mark.parametrize("iterations", [1, 6])
def test_nuclear_against_singular_values(iterations):
    """The projection cuts the singular values of every pixel's matrix at the weight."""
    x, weight = _noisy(2, 3, 7, 6), torch.tensor([0.05, 0.2], dtype=torch.float64)
    dual = torch.zeros(2, 2, 3, 7, 6, dtype=torch.float64)
    for _ in range(iterations):
        u = x.clone()
        u[..., :, :] += dual[:, 0] + dual[:, 1]
        u[..., 1:, :] -= dual[:, 0, :, :-1]
        u[..., 1:] -= dual[:, 1, :, :, :-1]
        gradient = torch.zeros_like(dual)
        gradient[:, 0, :, :-1] = u.diff(dim=-2)
        gradient[:, 1, :, :, :-1] = u.diff(dim=-1)
        matrices = (dual + gradient / 8).permute(0, 3, 4, 1, 2)
        left, values, right = torch.linalg.svd(matrices, full_matrices=False)
        values = torch.minimum(values, weight.view(2, 1, 1, 1))
        dual = (left @ torch.diag_embed(values) @ right).permute(0, 3, 4, 1, 2)
    _, last = ops.tv_prox(x, weight, iterations, norm="nuclear", return_dual=True)
    torch.testing.assert_close(last, dual, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ops.NORMS)
@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 5), (0, 3), (9, 20)])
def test_warm_dual_continues_where_the_last_call_stopped(norm, parts):
    x = _noisy(2, 3, 11, 13)
    dual = None
    for part in parts:
        u, dual = ops.tv_prox(x, 0.2, part, norm=norm, dual=dual, return_dual=True)
    whole, last = ops.tv_prox(x, 0.2, sum(parts), norm=norm, return_dual=True)
    torch.testing.assert_close(u, whole, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(dual, last, rtol=1e-12, atol=1e-13)
    assert last.shape == (2, 2, 3, 11, 13)
    matrices = last.permute(0, 3, 4, 1, 2)  # 2×C at every pixel
    sizes = {
        "band": lambda: matrices.square().sum(-2).sqrt(),
        "frobenius": lambda: torch.linalg.matrix_norm(matrices),
        "nuclear": lambda: torch.linalg.matrix_norm(matrices, 2),
    }[norm]()
    assert sizes.max() <= 0.2 * (1 + 1e-9)
    torch.testing.assert_close(
        ops.tv_prox(x, 0.2, parts[-1], norm=norm, dual=dual).mean((-1, -2)), x.mean((-1, -2))
    )


def test_dual_without_a_batch():
    x = _noisy(3, 6, 5)
    u, dual = ops.tv_prox(x, 0.1, 3, return_dual=True)
    assert (u.shape, dual.shape) == ((3, 6, 5), (2, 3, 6, 5))
    again = ops.tv_prox(x[None], 0.1, 3, dual=dual[None])
    assert torch.equal(ops.tv_prox(x, 0.1, 3, dual=dual), again[0])
