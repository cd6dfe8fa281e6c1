"""selective_scan: values, derivatives, dtypes, errors."""

import numpy as np
import pytest
import torch

from cassi.ops._scan import selective_scan


def _rand(*shape):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1


def _arguments(batch, length, channels, states):
    u, delta = _rand(batch, length, channels), 1 + _rand(batch, length, channels).flip(1)
    b, c = _rand(batch, length, states), _rand(batch, length, states).flip(1)
    return [u, delta, -1 - _rand(channels, states), b, c]


def _by_definition(u, delta, rates, b, c):
    """y_t = Σ_{s<=t} c_t · exp(a Σ_{s<r<=t} Δ_r) b_s Δ_s u_s, without a recurrence."""
    y = np.zeros(u.shape)
    for i, t, d in np.ndindex(u.shape):
        for s in range(t + 1):
            kept = np.exp(rates[d] * delta[i, s + 1 : t + 1, d].sum())
            y[i, t, d] += (c[i, t] * kept * b[i, s]).sum() * delta[i, s, d] * u[i, s, d]
    return y


def test_the_recurrence_is_a_sum_over_earlier_steps():
    values = _arguments(2, 9, 5, 3)
    expected = torch.from_numpy(_by_definition(*(value.numpy() for value in values)))
    torch.testing.assert_close(selective_scan(*values), expected, rtol=1e-13, atol=1e-13)


def test_a_part_of_a_sequence_comes_out_the_same():
    """Nothing comes from later steps, from other samples or from other channels."""
    u, delta, rates, b, c = _arguments(2, 150, 20, 4)
    whole = selective_scan(u, delta, rates, b, c)
    part = selective_scan(u[1:, :70, 3:], delta[1:, :70, 3:], rates[3:], b[1:, :70], c[1:, :70])
    torch.testing.assert_close(part, whole[1:, :70, 3:], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_result_is_the_sum_in_the_widest_dtype_rounded(dtype):
    u, *others = _arguments(2, 9, 5, 3)
    u, others = u.to(dtype), [value.float() for value in others]
    got = selective_scan(u, *others)
    assert got.dtype == dtype
    assert torch.equal(got, selective_scan(u.float(), *others).to(dtype))
    leaves = [value.requires_grad_() for value in (u, *others)]
    gradients = torch.autograd.grad(selective_scan(*leaves).float().sum(), leaves)
    assert [g.dtype for g in gradients] == [dtype, *[torch.float32] * 4]
    with torch.autocast("cpu", torch.bfloat16):
        assert selective_scan(u, *others).dtype == torch.float32


@pytest.mark.parametrize("sizes", [(0, 4, 3, 2), (2, 0, 3, 2), (2, 4, 0, 2)])
def test_nothing_to_scan(sizes):
    leaves = [value.requires_grad_() for value in _arguments(*sizes)]
    y = selective_scan(*leaves)
    assert y.shape == sizes[:3]
    gradients = torch.autograd.grad(y.sum(), leaves)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert torch.equal(gradient, torch.zeros_like(leaf))
