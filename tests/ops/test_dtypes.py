"""Half precision and mixed dtypes of the public functions, whose arguments are left alone."""

import pytest
import torch

from cassi import ops

BANDS, STEP = 5, 2
BASIS = torch.tensor([[0.5, 0.25], [0.5, -0.25], [0.75, 0.5], [0.25, -0.5], [1.0, 0.0]])

# Functions of (cube, measurement, mask, gram); `leading` is the argument that gives the dtype.
OPS = {
    "forward": lambda x, y, m, g: ops.forward(x, m, STEP),
    "adjoint": lambda x, y, m, g: ops.adjoint(y, m, BANDS, STEP),
    "ratio_inverse": lambda x, y, m, g: ops.ratio_inverse(y[:, :1], m[:1], BANDS, STEP),
    "gram": lambda x, y, m, g: ops.gram(m, BANDS, STEP),
    "gram_solve": lambda x, y, m, g: ops.gram_solve(y, g, 0.3),
    "add_adjoint": lambda x, y, m, g: ops.add_adjoint(x, y, m, STEP),
    "forward_subspace": lambda x, y, m, g: ops.forward_subspace(x[:, :2], BASIS.to(x), m, STEP),
    "adjoint_subspace": lambda x, y, m, g: ops.adjoint_subspace(y, BASIS.to(y), m, STEP),
    "data_step": lambda x, y, m, g: ops.data_step(x, y, m, STEP, 0.3, g),
    "tv_prox": lambda x, y, m, g: ops.tv_prox(x, 0.05, 5),
}
every_op = pytest.mark.parametrize("name", OPS)
SHOTS = [1, 3]


def _arguments(shots, dtype=torch.float64):
    generator = torch.Generator().manual_seed(shots)
    shapes = [(2, BANDS, 7, 9), (2, shots, 7, 17), (shots, BANDS, 7, 9)]
    x, y, m = (torch.rand(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
    return x, y, 0.2 + 0.8 * m, ops.gram(0.2 + 0.8 * m, BANDS, STEP)


@every_op
@pytest.mark.parametrize("shots", SHOTS)
def test_float32_is_close_to_float64(name, shots):
    exact = OPS[name](*_arguments(shots))
    single = OPS[name](*(value.float() for value in _arguments(shots)))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=2e-5, atol=2e-6)


@every_op
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shots", SHOTS)
def test_half_is_single_rounded(name, dtype, shots):
    args = _arguments(shots, dtype)
    got = OPS[name](*args)
    expected = OPS[name](*(value.float() for value in args))
    # A gram keeps the precision of its sums.
    kept = torch.float32 if name == "gram" else dtype
    assert got.dtype == kept
    torch.testing.assert_close(got, expected.to(kept), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_result_has_the_dtype_of_cube_or_measurement(dtype):
    x, y, m, g = _arguments(2, torch.float32)
    for name in ("forward", "adjoint", "ratio_inverse", "data_step"):
        got = OPS[name](x.to(dtype), y.to(dtype), m, g)
        assert got.dtype == dtype
        wide = torch.promote_types(dtype, torch.float32)
        exact = OPS[name](x.to(dtype).to(wide), y.to(dtype).to(wide), m.to(wide), g.to(wide))
        tolerance = 1e-12 if dtype == torch.float64 else 0.0
        torch.testing.assert_close(got, exact.to(dtype), rtol=tolerance, atol=tolerance)
    assert ops.forward(x, m.to(dtype), STEP).dtype == torch.float32
    assert ops.gram_solve(y, g, torch.tensor([0.1], dtype=torch.float64)).dtype == torch.float32
    assert ops.tv_prox(x, torch.tensor([0.1], dtype=torch.float64)).dtype == torch.float32


def test_sums_run_in_float32():
    """256 + 1 + 1 + … stays at 256 when it is summed in bfloat16."""
    x = torch.ones(64, 1, 1, dtype=torch.bfloat16)
    x[0] = 256
    mask = torch.ones(1, 1, dtype=torch.bfloat16)
    assert ops.forward(x, mask, 0).item() == 320  # 319, rounded to even
    assert ops.gram(torch.ones(300, 1, 1, dtype=torch.bfloat16), 300, 0).item() == 300


@every_op
def test_arguments_are_left_alone(name):
    args = _arguments(2)
    copies = [value.clone() for value in args]
    result = OPS[name](*args)
    result.zero_()
    assert all(torch.equal(a, b) for a, b in zip(args, copies, strict=True))
