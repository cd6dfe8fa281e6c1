"""gram_solve and data_step where matrices are singular, or ρ says nothing or everything.

Against dense linear algebra they are held with all cameras, see tests/systems/test_systems.py.
"""

import numpy as np
import pytest
import torch
from shared import rand

from cassi import ops

BANDS, HEIGHT, WIDTH = 3, 2, 5
MASKS = {
    "plane": (HEIGHT, WIDTH),
    "bands": (BANDS, HEIGHT, WIDTH),
    "three_shots_bands": (3, BANDS, HEIGHT, WIDTH),
    "samples": (2, 2, 1, HEIGHT, WIDTH),
    "samples_bands": (2, 1, BANDS, HEIGHT, WIDTH),
}
every_mask = pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS.keys())
every_step = pytest.mark.parametrize("step", [2, -1, 0, 6])


def _problem(shape, step):
    """A mask with dark pixels, an estimate v and a measurement, for a batch of two."""
    mask = rand(*shape) + 0.1
    mask[..., 0, 1] = 0
    v = rand(2, BANDS, HEIGHT, WIDTH) - 0.5
    shots = shape[-4] if len(shape) > 3 else 1
    return mask, v, rand(2, shots, HEIGHT, WIDTH + (BANDS - 1) * abs(step), seed=1)


def _close(actual, expected, tolerance=1e-9):
    atol = tolerance * max(1.0, np.abs(expected).max())
    wanted = torch.from_numpy(expected).reshape(actual.shape)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=atol)


@every_mask
@every_step
def test_dense_systems_behind_dark_pixels(shape, step, camera_matrices, damping_per_pixel):
    """Without damping, with one value for a sample, with one for each pixel, some infinite."""
    mask, v, y = _problem(shape, step)
    gram = ops.gram(mask, BANDS, step)
    each = torch.tensor([0.0, 0.7], dtype=torch.float64)
    for rho in (each, damping_per_pixel(y.shape), damping_per_pixel((1, *y.shape[1:]))):
        z, x = ops.gram_solve(y, gram, rho), ops.data_step(v, y, mask, step, rho)
        assert torch.equal(ops.data_step(v, y, mask, step, rho, gram), x)
        spread = rho.view(-1, 1, 1, 1) if rho.ndim == 1 else rho
        spread = spread.expand(-1, *y.shape[1:])
        absent = spread.isinf().expand_as(y)
        other = torch.where(absent, 1e30, y)
        assert torch.equal(ops.gram_solve(other, gram, spread), z)
        assert torch.equal(ops.data_step(v, other, mask, step, spread), x)
        for b, a in enumerate(camera_matrices(mask.numpy(), 2, BANDS, step)):
            d = spread[min(b, len(spread) - 1)].flatten().numpy()
            kept, start = np.isfinite(d), v[b].flatten().numpy()
            rows, target = a[kept], y[b].flatten().numpy()[kept]
            inverse = np.linalg.pinv(rows @ rows.T + np.diag(d[kept]), rcond=1e-12)
            expected = np.zeros(len(a))
            expected[kept] = inverse @ target
            _close(z[b], expected)
            _close(x[b], start + rows.T @ inverse @ (target - rows @ start))
            own = mask[b] if mask.ndim == 5 else mask
            part = rho[min(b, len(rho) - 1)]
            alone = ops.data_step(v[b], y[b], own, step, part)
            torch.testing.assert_close(alone, x[b], rtol=1e-12, atol=1e-13)


@every_mask
@every_step
def test_zero_rho_projects(shape, step):
    mask, v, _ = _problem(shape, step)
    y = ops.forward(rand(*v.shape, seed=2), mask, step)  # in the range of A
    x = ops.data_step(v, y, mask, step)
    torch.testing.assert_close(ops.forward(x, mask, step), y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ops.data_step(x, y, mask, step), x, rtol=1e-9, atol=1e-9)
    assert torch.equal(x[..., 0, 1], v[..., 0, 1])  # behind a dark mask
    assert torch.equal(ops.data_step(v, y, mask, step, float("inf")), v)


@every_mask
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_value_spread_over_all_pixels_gives_the_same_bits(shape, dtype):
    mask, v, y = (value.to(dtype) for value in _problem(shape, 2))
    gram = ops.gram(mask, BANDS, 2)
    for rho in (torch.tensor([0.0]), torch.tensor([0.3]), torch.tensor([0.2, 0.7])):
        wide = rho.view(-1, 1, 1, 1).expand(-1, *y.shape[1:])
        for spread in (wide, wide.contiguous()):
            x, z = ops.data_step(v, y, mask, 2, rho), ops.gram_solve(y, gram, rho)
            assert torch.equal(ops.data_step(v, y, mask, 2, spread), x)
            assert torch.equal(ops.gram_solve(y, gram, spread), z)


def test_gram_is_believed():
    """A gram that was passed is used: with a quarter of it the correction is four times as long."""
    mask, v, y = _problem((HEIGHT, WIDTH), 2)
    gram = ops.gram(mask, BANDS, 2)
    x = ops.data_step(v, y, mask, 2, 0.0, gram / 4)
    torch.testing.assert_close(x - v, 4 * (ops.data_step(v, y, mask, 2) - v))


@pytest.mark.parametrize("shots", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_shots_give_the_minimum_norm_solution(shots, dtype, camera_matrices):
    mask = (rand(1, 1, HEIGHT, WIDTH) + 0.1).expand(shots, -1, -1, -1)
    y = rand(1, shots, HEIGHT, WIDTH + 4)  # inconsistent: the shots saw different light
    (a,) = camera_matrices(mask.numpy(), 1, BANDS, 2)
    gram = ops.gram(mask, BANDS, 2).to(dtype)
    x = ops.adjoint(ops.gram_solve(y.to(dtype), gram), mask.to(dtype), BANDS, 2)
    expected = np.linalg.pinv(a, rcond=1e-6) @ y.flatten().numpy()
    _close(x.double(), expected, 1e-9 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("shots", [1, 2])
def test_what_is_not_a_number_is_not_hidden(shots):
    gram = ops.gram(rand(shots, 1, HEIGHT, WIDTH), BANDS, 2)
    y = rand(1, shots, HEIGHT, WIDTH + 4)
    assert ops.gram_solve(y, gram, torch.tensor(torch.nan)).isnan().all()
    v, mask = torch.zeros(1, BANDS, HEIGHT, WIDTH), torch.ones(shots, 1, HEIGHT, WIDTH)
    assert ops.data_step(v, y * torch.nan, mask, 2).isnan().all()


@pytest.mark.parametrize("shots", [1, 2])
def test_a_dark_mask_changes_nothing(shots):
    mask, v, y = torch.zeros(shots, 1, HEIGHT, WIDTH), *_problem((shots, 1, HEIGHT, WIDTH), 2)[1:]
    gram = ops.gram(mask.double(), BANDS, 2)
    assert not ops.gram_solve(y, gram).any()
    assert torch.equal(ops.data_step(v, y, mask.double(), 2), v)
    torch.testing.assert_close(ops.gram_solve(y, gram, 0.25), 4 * y)


def test_nearly_equal_shots_are_kept_apart():
    """The cut-off of the pseudo-inverse must not swallow a real difference of 1e-4."""
    mask = (rand(1, BANDS, HEIGHT, WIDTH) + 0.1).repeat(2, 1, 1, 1)
    mask[1] += 1e-4 * rand(BANDS, HEIGHT, WIDTH, seed=4)
    y = ops.forward(rand(1, BANDS, HEIGHT, WIDTH), mask, 0)
    x = ops.data_step(torch.zeros(1, BANDS, HEIGHT, WIDTH, dtype=y.dtype), y, mask, 0)
    torch.testing.assert_close(ops.forward(x, mask, 0), y, rtol=1e-7, atol=1e-9)
