"""convolve1d, trilinear, sample_volume: values, derivatives, dtypes, errors."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from cassi.ops._library import operators
from cassi.ops._signal import convolve1d, sample_volume, trilinear

SIZES = [(1, 1), (7, 1), (1, 4), (6, 3), (3, 6), (5, 5)]


def _rand(*shape, low=-1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (low + (1 - low) * values).to(dtype)


def _turned(value):
    """Equal values, other strides, with gaps."""
    return value.mT.repeat_interleave(2, 0)[::2].mT


def _convolved(a, v):
    rows = zip(a.double().numpy(), v.double().numpy(), strict=True)
    return torch.from_numpy(np.stack([np.convolve(x, k) for x, k in rows]))


def _interpolated(features, points):
    """The polynomial, corner by corner."""
    f, u = features.double().numpy(), (points.double().numpy() + 1) / 2
    out = np.zeros((f.shape[0], f.shape[2]))
    for corner in np.ndindex(2, 2, 2):
        weight = np.prod([u[:, a] if corner[a] else 1 - u[:, a] for a in range(3)], axis=0)
        out += weight[:, None] * f[:, 4 * corner[0] + 2 * corner[1] + corner[2]]
    return torch.from_numpy(out)


def _sampled(volume, points):
    grid = points.flip(-1).reshape(points.shape[0], 1, 1, -1, 3)
    out = torch.nn.functional.grid_sample(volume, grid, padding_mode="border", align_corners=True)
    return out.flatten(2).mT.reshape(*points.shape[:-1], volume.shape[1])


# Values


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("layout", [lambda value: value, _turned])
def test_convolution_against_numpy(n, m, layout):
    a, v = layout(_rand(4, n)), layout(_rand(4, m))
    before = a.clone(), v.clone()
    got = convolve1d(a, v)
    torch.testing.assert_close(got, _convolved(a, v), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(got, convolve1d(v, a), rtol=1e-14, atol=1e-14)
    assert torch.equal(a, before[0])
    assert torch.equal(v, before[1])


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 1), (6, 3), (7, 6), (5, 5)])
def test_correlation_is_the_adjoint_of_convolution(n, m):
    g, v = _rand(4, n), _rand(4, m)
    got = operators.correlate1d(_turned(g), _turned(v))
    expected = np.stack(
        [np.correlate(x, k, "valid") for x, k in zip(g.numpy(), v.numpy(), strict=True)]
    )
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-14, atol=1e-14)
    a = _rand(4, n - m + 1)
    left, right = (convolve1d(a, v) * g).sum(), (a * got).sum()
    assert left.item() == pytest.approx(right.item(), rel=1e-13)


def test_leading_dimensions_broadcast():
    a, v = _rand(3, 1, 5), _rand(2, 3)
    got = convolve1d(a, v)
    assert got.shape == (3, 2, 7)
    for i, j in np.ndindex(3, 2):
        torch.testing.assert_close(got[i, j], convolve1d(a[i, 0], v[j]))
    assert convolve1d(a[0, 0], v).shape == (2, 7)


def test_corners_of_a_cell_are_exact_and_in_order():
    features = _rand(8, 8, 3)
    corners = torch.tensor(list(np.ndindex(2, 2, 2)), dtype=torch.float64) * 2 - 1
    got = trilinear(features, corners)
    assert torch.equal(got, features[torch.arange(8), torch.arange(8)])


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (9, 1)])
def test_trilinear_against_the_formula(shape):
    features, points = _rand(shape[0], 8, shape[1]), 1.5 * _rand(shape[0], 3)
    got = trilinear(_turned(features), _turned(points))
    torch.testing.assert_close(got, _interpolated(features, points), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 4, 5), (3, 1, 2), (1, 1, 1)])
def test_sample_volume_against_grid_sample(sizes):
    volume, points = _rand(2, 4, *sizes), 1.3 * _rand(2, 3, 5, 3)
    leaves = [volume.requires_grad_(), points.requires_grad_()]
    got, expected = sample_volume(volume, points), _sampled(volume, points)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    upstream = torch.linspace(-1, 1, got.numel(), dtype=torch.float64).reshape(got.shape)
    gradients = zip(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(expected, leaves, upstream),
        strict=True,
    )
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    alone = sample_volume(volume[1], points[1])
    torch.testing.assert_close(alone, expected[1], rtol=1e-13, atol=1e-13)


def test_samples_of_a_volume_are_exact_at_their_centres():
    volume = _rand(2, 3, 2, 5)
    axes = [torch.linspace(-1, 1, n, dtype=torch.float64) for n in (3, 2, 5)]
    points = torch.cartesian_prod(*axes).reshape(3, 2, 5, 3)
    assert torch.equal(sample_volume(volume, points).movedim(-1, 0), volume)


def test_outside_a_volume_is_its_border():
    volume = _rand(2, 3, 4, 5)
    points = torch.tensor([[-7.0, 1.2, 0.3]], dtype=torch.float64, requires_grad=True)
    got = sample_volume(volume, points)
    inside = points.detach().clamp(-1, 1)
    torch.testing.assert_close(got, sample_volume(volume, inside))
    (gradient,) = torch.autograd.grad(got.sum(), points)
    assert gradient[0, :2].tolist() == [0, 0]
    assert gradient[0, 2] != 0


def test_a_point_that_is_not_a_number_gives_none():
    volume = _rand(2, 3, 4, 5).float()
    points = torch.tensor([[float("nan"), 0, 0], [0, float("inf"), 0]])
    got = sample_volume(volume, points)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


def test_empty_inputs():
    assert convolve1d(torch.empty(0, 5), torch.empty(0, 3)).shape == (0, 7)
    assert convolve1d(torch.empty(2, 0, 5), torch.empty(3)).shape == (2, 0, 7)
    assert trilinear(torch.empty(0, 8, 2), torch.empty(0, 3)).shape == (0, 2)
    assert sample_volume(torch.rand(2, 3, 4, 5), torch.empty(0, 6, 3)).shape == (0, 6, 2)
    assert sample_volume(torch.rand(0, 2, 3, 4, 5), torch.empty(0, 6, 3)).shape == (0, 6, 2)


# Errors


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


CASES = {
    "convolve1d": (convolve1d, (_rand(3, 6), _rand(3, 4))),
    "correlate1d": (operators.correlate1d, (_rand(3, 6), _rand(3, 4))),
    "correlate1d_long": (operators.correlate1d, (_rand(3, 6), _rand(3, 5))),
    "trilinear": (trilinear, (_rand(4, 8, 2), _rand(4, 3))),
    "sample_volume": (sample_volume, (_rand(2, 3, 1, 4), 1.2 * _rand(4, 3))),
}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", DTYPES)
def test_result_is_the_sum_in_the_widest_dtype_rounded(name, dtype, other):
    function, (first, second) = CASES[name]
    first, second = first.to(dtype, copy=True), second.to(other, copy=True)
    got = function(first, second)
    sums = torch.promote_types(torch.promote_types(dtype, other), torch.float32)
    assert got.dtype == dtype
    assert torch.equal(got, function(first.to(sums), second.to(sums)).to(dtype))
    leaves = [first.requires_grad_(), second.requires_grad_()]
    gradients = torch.autograd.grad(function(*leaves).sum(), leaves)
    assert [g.dtype for g in gradients] == [dtype, other]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(function(*exact).sum(), exact)
    for g, e in zip(gradients, expected, strict=True):
        eps = torch.finfo(g.dtype).eps
        torch.testing.assert_close(g.double(), e, rtol=2 * eps, atol=max(eps / 100, 1e-6))


@every_case
def test_first_and_second_derivatives(name):
    function, values = CASES[name]
    leaves = tuple(value.clone().requires_grad_() for value in values)
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


def test_one_long_row_has_the_same_bits_for_every_thread_count(assert_same_bits):
    leaves = [_rand(1, size).float().requires_grad_() for size in (70001, 3)]

    def run():
        result = convolve1d(*leaves)
        return [result, *torch.autograd.grad(result.square().sum(), leaves)]

    assert_same_bits(run)
