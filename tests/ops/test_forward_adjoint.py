"""forward, adjoint, mask_adjoint, gram and ratio_inverse against loops over the equations."""

from functools import partial

import numpy as np
import pytest
import torch
from shared import rand

from cassi import ops
from cassi.ops._library import operators

BANDS, HEIGHT, WIDTH = 4, 3, 5
STEPS = [2, -1, 0, 3, -4, 7]  # 7 > W leaves columns that no band reaches
MASKS = {
    "plane": (HEIGHT, WIDTH),
    "bands": (BANDS, HEIGHT, WIDTH),
    "shot": (1, 1, HEIGHT, WIDTH),
    "two_shots": (2, 1, HEIGHT, WIDTH),
    "three_shots_bands": (3, BANDS, HEIGHT, WIDTH),
    "samples": (3, 2, 1, HEIGHT, WIDTH),
    "samples_bands": (2, 2, BANDS, HEIGHT, WIDTH),
    "one_sample": (1, 1, BANDS, HEIGHT, WIDTH),
}
every_mask = pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS.keys())
every_step = pytest.mark.parametrize("step", STEPS)


_rand = partial(rand, low=0.1)


def _batches(shape):
    """Leading dimensions to try: none (an unbatched tensor) and some batch sizes."""
    if len(shape) == 5 and shape[0] > 1:
        yield (shape[0],)
    else:
        yield from [(), (1,), (2,), (3,)]


def _equal(actual, expected):
    torch.testing.assert_close(actual, torch.from_numpy(expected), rtol=1e-13, atol=1e-13)


@every_mask
@every_step
def test_forward_and_adjoint_are_the_matrix_and_its_transpose(shape, step, camera_matrices):
    mask = _rand(*shape)
    for lead in _batches(shape):
        batch = lead[0] if lead else 1
        matrices = camera_matrices(mask.numpy(), batch, BANDS, step)
        x = _rand(*lead, BANDS, HEIGHT, WIDTH)
        flat = x.reshape(batch, -1).numpy()
        y = ops.forward(x, mask, step)
        shots = shape[-4] if len(shape) > 3 else 1
        assert y.shape == (*lead, shots, HEIGHT, WIDTH + (BANDS - 1) * abs(step))
        _equal(y.reshape(batch, -1), np.stack([a @ v for a, v in zip(matrices, flat, strict=True)]))

        y = _rand(*y.shape, seed=1)
        flat = y.reshape(batch, -1).numpy()
        back = ops.adjoint(y, mask, BANDS, step)
        assert back.shape == x.shape
        _equal(
            back.reshape(batch, -1),
            np.stack([a.T @ v for a, v in zip(matrices, flat, strict=True)]),
        )


@every_mask
@every_step
def test_gram_is_the_matrix_times_its_transpose(shape, step, camera_matrices):
    mask = _rand(*shape)
    samples = shape[0] if len(shape) == 5 else 1
    got = ops.gram(mask, BANDS, step)
    assert got.ndim == (5 if len(shape) == 5 else 4)
    got = got.reshape(samples, *got.shape[-4:])
    shots, wide = got.shape[1], got.shape[-1]
    for sample, a in zip(got, camera_matrices(mask.numpy(), samples, BANDS, step), strict=True):
        dense = (a @ a.T).reshape(shots, HEIGHT, wide, shots, HEIGHT, wide)
        _equal(sample, np.einsum("khwlhw->klhw", dense))
        # Nothing couples different pixels: the K×K blocks hold all of A Aᵀ.
        assert np.square(dense).sum() == pytest.approx(sample.square().sum().item(), rel=1e-12)


@every_step
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("per_band", [False, True])
def test_mask_adjoint(step, per_sample, per_band):
    batch, shots = 2, 3
    x = _rand(batch, BANDS, HEIGHT, WIDTH)
    y = _rand(batch, shots, HEIGHT, WIDTH + (BANDS - 1) * abs(step))
    full = np.zeros((batch, shots, BANDS, HEIGHT, WIDTH))
    for b, k, c, h, w in np.ndindex(full.shape):
        start = c * step if step >= 0 else (BANDS - 1 - c) * abs(step)
        full[b, k, c, h, w] = x[b, c, h, w] * y[b, k, h, w + start]
    expected = full if per_sample else full.sum(0, keepdims=True)
    expected = expected if per_band else expected.sum(2, keepdims=True)
    _equal(operators.mask_adjoint(x, y, step, per_sample, per_band), expected)


@pytest.mark.parametrize("name", ["plane", "bands", "shot", "one_sample"])
@every_step
def test_ratio_inverse(name, step, full_masks):
    mask = _rand(*MASKS[name])
    wide = WIDTH + (BANDS - 1) * abs(step)
    starts = [c * step if step >= 0 else (BANDS - 1 - c) * abs(step) for c in range(BANDS)]
    for lead in [(), (1,), (3,)]:
        batch = lead[0] if lead else 1
        y = _rand(*lead, 1, HEIGHT, wide)
        flat = y.reshape(batch, HEIGHT, wide).numpy()
        expected = np.zeros((batch, BANDS, HEIGHT, WIDTH))
        for b, c, h, w in np.ndindex(expected.shape):
            column = w + starts[c]
            reach = sum(start <= column < start + WIDTH for start in starts)
            m = full_masks(mask.numpy(), batch, BANDS)[b, 0, c, h, w]
            expected[b, c, h, w] = flat[b, h, column] / reach / m
        x = ops.ratio_inverse(y, mask, BANDS, step)
        _equal(x, expected.reshape(*lead, BANDS, HEIGHT, WIDTH))
        lit = torch.tensor([any(s <= w < s + WIDTH for s in starts) for w in range(wide)])
        torch.testing.assert_close(ops.forward(x, mask, step), y * lit, rtol=1e-13, atol=0)


def test_by_hand():
    mask = torch.tensor([[1.0, 2.0]])
    x = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    assert ops.forward(x, mask, 1).tolist() == [[[1, 4 + 3, 8 + 5, 12]]]
    assert ops.forward(x, mask, -1).tolist() == [[[5, 12 + 3, 8 + 1, 4]]]
    assert ops.forward(x, mask, 3).tolist() == [[[1, 4, 0, 3, 8, 0, 5, 12]]]
    y = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    assert ops.adjoint(y, mask, 3, 1).tolist() == [[[1, 4]], [[2, 6]], [[3, 8]]]
    assert ops.gram(mask, 3, 1).tolist() == [[[[1, 5, 5, 4]]]]


def test_empty_batch():
    mask = _rand(2, 1, HEIGHT, WIDTH)
    y = ops.forward(torch.zeros(0, BANDS, HEIGHT, WIDTH), mask, 2)
    assert y.shape == (0, 2, HEIGHT, WIDTH + 6)
    assert ops.adjoint(y, mask, BANDS, 2).shape == (0, BANDS, HEIGHT, WIDTH)
    assert ops.ratio_inverse(y[:, :1], mask[:1], BANDS, 2).shape == (0, BANDS, HEIGHT, WIDTH)
    assert ops.tv_prox(torch.zeros(0, BANDS, HEIGHT, WIDTH), 0.1).shape[0] == 0
    v = torch.zeros(0, BANDS, HEIGHT, WIDTH, dtype=torch.float64, requires_grad=True)
    m = mask.clone().requires_grad_()
    out = ops.data_step(v, y.double(), m, 2, rho=0.5)
    out.sum().backward()
    assert out.shape == v.shape
    assert v.grad is not None
    assert torch.equal(m.grad, torch.zeros_like(m))
