"""Half precision and mixed dtypes of every operator."""

import pytest
import torch
from kernel_calls import kernel_calls
from torch import Tensor

from cassi import ops
from cassi.ops._library import SCHEMAS, operators

# Their results have the dtype of the sums, or their digits are those of a decomposition.
EXACT = ("gram", "shrink_groups", "orthogonal_iteration", "mask_adjoint", "mask_adjoint_taps")
ROUNDED = sorted(name for name in SCHEMAS if not name.endswith("_backward") and name not in EXACT)


def _converted(args, dtype):
    return [
        value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in args
    ]


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shots", [1, 2])
def test_half_is_single_rounded(name, dtype, shots):
    args = _converted(kernel_calls(shots, 1, 3)[name], dtype)
    got = getattr(operators, name)(*args)
    expected = getattr(operators, name)(*_converted(args, torch.float32))
    for g, e in zip(*((r,) if isinstance(r, Tensor) else r for r in (got, expected)), strict=True):
        assert g.dtype in (dtype, torch.float32)  # a dual keeps the precision of its sums
        assert torch.equal(g, e.to(g.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_result_has_the_dtype_of_cube_or_measurement(dtype):
    x, y, m, gram, rho, step = _converted(kernel_calls(2)["data_step"], torch.float32)
    assert ops.forward(x.to(dtype), m, step).dtype == dtype
    assert ops.adjoint(y.to(dtype), m, 3, step).dtype == dtype
    assert ops.data_step(x.to(dtype), y, m, step, rho, gram).dtype == dtype
    assert ops.forward(x, m.to(dtype), step).dtype == torch.float32
    assert ops.gram_solve(y, gram, torch.tensor([0.1], dtype=torch.float64)).dtype == torch.float32
    assert ops.tv_prox(x, torch.tensor([0.1], dtype=torch.float64)).dtype == torch.float32


def test_sums_run_in_float32():
    """256 + 1 + 1 + … stays at 256 when it is summed in bfloat16."""
    x = torch.ones(64, 1, 1, dtype=torch.bfloat16)
    x[0] = 256
    mask = torch.ones(1, 1, dtype=torch.bfloat16)
    assert ops.forward(x, mask, 0).item() == 320  # 319, rounded to even
    assert ops.gram(torch.ones(300, 1, 1, dtype=torch.bfloat16), 300, 0).item() == 300
