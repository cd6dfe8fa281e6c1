"""gram_solve and data_step against dense linear algebra."""

import numpy as np
import pytest
import torch
from shared import rand

from cassi import ops

BANDS, HEIGHT, WIDTH = 3, 2, 5
MASKS = {
    "plane": (HEIGHT, WIDTH),
    "bands": (BANDS, HEIGHT, WIDTH),
    "two_shots": (2, 1, HEIGHT, WIDTH),
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
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_both_solve_their_dense_systems(shape, step, rho, camera_matrices):
    mask, v, y = _problem(shape, step)
    matrices = camera_matrices(mask.numpy(), 2, BANDS, step)
    gram = ops.gram(mask, BANDS, step)
    z = ops.gram_solve(y, gram, rho)
    x = ops.data_step(v, y, mask, step, rho)
    for b, a in enumerate(matrices):
        target, start = y[b].flatten().numpy(), v[b].flatten().numpy()
        inverse = np.linalg.pinv(a @ a.T + rho * np.eye(len(a)), rcond=1e-12)
        _close(z[b], inverse @ target)
        if rho > 0:  # the normal equations
            expected = np.linalg.solve(
                a.T @ a + rho * np.eye(a.shape[1]), a.T @ target + rho * start
            )
        else:
            expected = start + np.linalg.pinv(a, rcond=1e-12) @ (target - a @ start)
        _close(x[b], expected)


@every_mask
@every_step
def test_zero_rho_projects(shape, step, camera_matrices):
    mask, v, _ = _problem(shape, step)
    y = ops.forward(rand(*v.shape, seed=2), mask, step)  # in the range of A
    x = ops.data_step(v, y, mask, step)
    torch.testing.assert_close(ops.forward(x, mask, step), y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ops.data_step(x, y, mask, step), x, rtol=1e-9, atol=1e-9)
    for b, a in enumerate(camera_matrices(mask.numpy(), 2, BANDS, step)):
        moved = (x - v)[b].flatten().numpy()
        _close(torch.from_numpy(np.linalg.pinv(a) @ (a @ moved)), moved)  # no null-space part
    assert torch.equal(x[..., 0, 1], v[..., 0, 1])  # behind a dark mask


@every_mask
def test_known_gram_and_unbatched_and_per_sample_rho(shape):
    mask, v, y = _problem(shape, 2)
    rho = torch.tensor([0.0, 0.7], dtype=torch.float64)
    x = ops.data_step(v, y, mask, 2, rho)
    gram = ops.gram(mask, BANDS, 2)
    assert torch.equal(ops.data_step(v, y, mask, 2, rho, gram), x)
    z = ops.gram_solve(y, gram, rho)
    for b, r in enumerate(rho.tolist()):
        own = mask[b] if mask.ndim == 5 else mask
        alone = ops.data_step(v[b], y[b], own, 2, r)
        torch.testing.assert_close(alone, x[b], rtol=1e-12, atol=1e-13)
        alone = ops.gram_solve(y[b], ops.gram(own, BANDS, 2), rho[b])
        torch.testing.assert_close(alone, z[b], rtol=1e-12, atol=1e-13)


@every_mask
@every_step
@pytest.mark.parametrize("samples", [1, 2])
def test_one_rho_per_detector_pixel(shape, step, samples, camera_matrices, damping_per_pixel):
    """Noise of another variance in each pixel; rows of A without influence are removed."""
    mask, v, y = _problem(shape, step)
    rho = damping_per_pixel((samples, *y.shape[1:]))
    z = ops.gram_solve(y, ops.gram(mask, BANDS, step), rho)
    x = ops.data_step(v, y, mask, step, rho)
    for b, a in enumerate(camera_matrices(mask.numpy(), 2, BANDS, step)):
        d = rho[min(b, samples - 1)].flatten().numpy()
        kept = np.isfinite(d)
        rows, target, start = a[kept], y[b].flatten().numpy()[kept], v[b].flatten().numpy()
        expected = np.zeros(len(a))
        expected[kept] = np.linalg.solve(rows @ rows.T + np.diag(d[kept]), target)
        _close(z[b], expected)
        weighed = rows.T / d[kept]  # the normal equations
        _close(x[b], np.linalg.solve(weighed @ rows + np.eye(start.size), weighed @ target + start))


@every_mask
def test_pixels_without_influence_leave_the_projection_of_the_others(shape, camera_matrices):
    mask, v, y = _problem(shape, 2)
    absent = rand(*y.shape[1:], seed=5) < 0.3
    rho = torch.zeros(y.shape[1:], dtype=y.dtype).masked_fill(absent, torch.inf)
    x = ops.data_step(v, y, mask, 2, rho)
    assert torch.equal(ops.data_step(v, torch.where(absent, 1e30, y), mask, 2, rho), x)
    for b, a in enumerate(camera_matrices(mask.numpy(), 2, BANDS, 2)):
        rows, start = a[~absent.flatten().numpy()], v[b].flatten().numpy()
        target = y[b].flatten().numpy()[~absent.flatten().numpy()]
        _close(x[b], start + np.linalg.pinv(rows, rcond=1e-12) @ (target - rows @ start))
    nothing = torch.full((), torch.inf)
    assert torch.equal(ops.data_step(v, y, mask, 2, nothing), v)
    assert torch.equal(ops.data_step(v, y, mask, 2, float("inf")), v)


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
            if len(rho) == 1:
                assert torch.equal(ops.data_step(v, y, mask, 2, spread[0]), x)


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


def test_nearly_equal_shots_are_kept_apart():
    """The cut-off of the pseudo-inverse must not swallow a real difference of 1e-4."""
    mask = (rand(1, BANDS, HEIGHT, WIDTH) + 0.1).repeat(2, 1, 1, 1)
    mask[1] += 1e-4 * rand(BANDS, HEIGHT, WIDTH, seed=4)
    y = ops.forward(rand(1, BANDS, HEIGHT, WIDTH), mask, 0)
    x = ops.data_step(torch.zeros(1, BANDS, HEIGHT, WIDTH, dtype=y.dtype), y, mask, 0)
    torch.testing.assert_close(ops.forward(x, mask, 0), y, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shots", [1, 2])
def test_dim_light_is_light(shots):
    """Nothing absolute decides what is dark: a mask a million times darker gives z 1e12 higher."""
    mask, _, y = _problem((shots, BANDS, HEIGHT, WIDTH), 2)
    z, dim = (ops.gram_solve(y, ops.gram(m, BANDS, 2)) for m in (mask, mask * 1e-6))
    torch.testing.assert_close(dim * 1e-12, z, rtol=1e-6, atol=1e-9)


def test_dark_pixels_give_zero_not_nan():
    mask = torch.zeros(2, 1, HEIGHT, WIDTH)
    y = torch.ones(1, 2, HEIGHT, WIDTH + 4)
    v = torch.rand(1, BANDS, HEIGHT, WIDTH)
    for shots in (1, 2):
        gram = ops.gram(mask[:shots], BANDS, 2)
        assert torch.equal(ops.gram_solve(y[:, :shots], gram), torch.zeros_like(y[:, :shots]))
        assert torch.equal(ops.data_step(v, y[:, :shots], mask[:shots], 2), v)
        damped = ops.gram_solve(y[:, :shots], gram, 0.25)
        torch.testing.assert_close(damped, 4 * y[:, :shots])


def test_infinite_rho_keeps_v():
    mask, v, y = _problem((2, 1, HEIGHT, WIDTH), 2)
    assert torch.equal(ops.data_step(v, y, mask, 2, float("inf")), v)


@pytest.mark.parametrize("shots", [1, 2])
def test_nan_rho_tensor_is_not_hidden(shots):
    gram = ops.gram(rand(shots, 1, HEIGHT, WIDTH), BANDS, 2)
    z = ops.gram_solve(rand(1, shots, HEIGHT, WIDTH + 4), gram, torch.tensor(float("nan")))
    assert z.isnan().all()


def test_nan_measurement_is_not_hidden():
    y = torch.full((1, 1, HEIGHT, WIDTH + 4), float("nan"))
    assert ops.data_step(torch.zeros(1, BANDS, HEIGHT, WIDTH), y, torch.ones(2, 5), 2).isnan().all()


def test_gradient_of_a_gram_that_samples_share():
    def solve(r, root):
        return ops.gram_solve(r, torch.einsum("kmhw,lmhw->klhw", root, root), 0.5)

    generator = torch.Generator().manual_seed(0)
    r, root = (
        torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 2, 4), (3, 3, 2, 4))
    )
    torch.autograd.gradcheck(solve, (r, root))
