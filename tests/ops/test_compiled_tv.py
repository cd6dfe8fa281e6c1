"""Compiled total variation against its reference: sizes, sweeps, duals, layouts, dtypes."""

from functools import partial

import pytest
import torch
from shared import rand

from cassi import ops

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ITERATIONS = [0, 1, 2, 5, 8, 9, 20]  # a sweep takes eight at most
SIZES = [(1, 1, 1, 1), (2, 3, 1, 7), (1, 2, 7, 1), (1, 3, 9, 16), (3, 1, 5, 33), (2, 5, 67, 19)]
every_norm = pytest.mark.parametrize("norm", range(3), ids=ops.NORMS)


_rand = partial(rand, low=-0.3, dtype=torch.float32)


def _dual(batch, bands, height, width):
    return 0.1 * _rand(batch, 2, bands, height, width)


@every_norm
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_sizes_and_sweeps(iterations, norm, parity):
    for size in SIZES:
        x, weight = _rand(*size), torch.linspace(0.05, 0.3, size[0])
        parity("tv_prox", x, weight, iterations, norm)
        for dual in (None, _dual(*size)):
            parity("tv_prox_dual", x, weight[:1], dual, iterations, norm)


@every_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_column_tiles(dtype, norm, parity):
    for iterations, bands, width in ((8, 1, 3301), (8, 3, 1103), (9, 2, 1700)):
        x = _rand(1, bands, 4, width, dtype=dtype)
        parity("tv_prox", x, torch.tensor([0.1]), iterations, norm)
        parity("tv_prox_dual", x, torch.tensor([0.1]), _dual(*x.shape), iterations, norm)


@every_norm
def test_many_bands(norm, parity):
    """Tiles of all bands are narrow where one norm is theirs, or lie side by side in memory."""
    x = _rand(1, 28, 9, 135)
    for cube in (x, x.contiguous(memory_format=torch.channels_last)):
        parity("tv_prox", cube, torch.tensor([0.1]), 5, norm)
        parity("tv_prox_dual", cube, torch.tensor([0.1]), _dual(*x.shape), 9, norm)


@every_norm
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", DTYPES)
def test_mixed_dtypes(dtype, other, norm, parity):
    x = _rand(2, 3, 9, 21, dtype=dtype)
    weight = torch.tensor([0.125, 0.25], dtype=other)
    parity("tv_prox", x, weight, 5, norm)
    for dual in (None, _dual(*x.shape).to(other)):
        parity("tv_prox_dual", x, weight, dual, 9, norm)


@every_norm
def test_weights(norm, parity):
    x = _rand(3, 2, 9, 21)
    for weight in ([0.0], [0.0, 1e-3, 10.0], [float("inf")], [1e-38, 1e38, 0.1]):
        (u,) = parity("tv_prox", x, torch.tensor(weight), 9, norm)
        if weight[0] == 0:
            assert torch.equal(u[0], x[0])
        parity("tv_prox_dual", x, torch.tensor(weight), None, 5, norm)
    (u,) = parity("tv_prox", x, torch.tensor([0.1, torch.nan, 0.1]), 2, norm)
    assert u.flatten(1).isnan().any(1).tolist() == [False, True, False]


@every_norm
def test_flat_images_stay(norm, parity):
    for value in (0.0, 0.7, 1e-30, 1e15):
        x = torch.full((1, 2, 9, 21), value)
        (u,) = parity("tv_prox", x, torch.tensor([0.1]), 9, norm)
        assert torch.equal(u, x)


@every_norm
@pytest.mark.parametrize("iterations", [1, 5, 9])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.usefixtures("compiled")
def test_what_is_not_a_number_stays_near(iterations, value, norm):
    """One iteration looks one pixel further."""
    kernels = torch.ops.cassi
    x, dual, weight = _rand(2, 3, 40, 50), _dual(2, 3, 40, 50), torch.tensor([0.1])
    clean = kernels.tv_prox_dual(x, weight, dual, iterations, norm)
    for row, column in ((20, 25), (0, 0), (39, 49), (3, 49), (39, 16)):
        spoilt = x.clone()
        spoilt[1, 1, row, column] = value
        far = torch.ones(2, 3, 40, 50, dtype=torch.bool)
        reach = iterations + 1
        rows = slice(max(0, row - reach), row + reach + 1)
        columns = slice(max(0, column - reach), column + reach + 1)
        far[1, :, rows, columns] = False
        if norm == 0:
            far[1, ::2] = True
        u, last = kernels.tv_prox_dual(spoilt, weight, dual, iterations, norm)
        assert torch.equal(u[far], clean[0][far])
        assert torch.equal(last.movedim(1, 0)[:, far], clean[1].movedim(1, 0)[:, far])
        alone = kernels.tv_prox(spoilt, weight, iterations, norm)
        assert torch.equal(alone[far], kernels.tv_prox(x, weight, iterations, norm)[far])
