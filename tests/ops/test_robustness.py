"""Direct calls of operators that do not fit, are empty or enormous: an error, never a crash."""

import contextlib
import os
import subprocess
import sys
from itertools import product

import pytest
import torch
from kernel_calls import STEP, WIDE, B, C, H, W, kernel_calls
from torch import Tensor

from cassi.ops._library import operators

pytestmark = pytest.mark.usefixtures("compiled")
K = 2
FITTING = kernel_calls(K, B, C, torch.float32)
del FITTING["tv_prox_backward"]  # which is not compiled
every_op = pytest.mark.parametrize("name", FITTING)
OPTIONAL = {"tv_prox_dual": 2, "convolve3x3": 3}
SMALL_STEPS = ("forward", "forward_subspace", "gram")  # which have no measurement to fit
# Sizes that an operator takes as they are, since another argument has none to compare them with.
# Operator → (argument, dimension).
FREE = {
    "forward": [(1, 1)],  # shots
    "forward_subspace": [(2, 1)],  # shots
    "adjoint_subspace": [(1, 2)],  # rank
    "gram": [(0, 0), (0, 1), (0, 3), (0, 4)],
    "tv_prox": [(0, 1), (0, 2), (0, 3)],
    "shrink_groups": [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)],
    "orthogonal_iteration": [(1, 2)],  # columns
    "convolve1d": [(0, 1), (1, 1)],
    "convolve3x3": [(0, 0), (0, 2), (0, 3)],
    "convolve3x3_backward": [(0, 1), (1, 1)],
    "correlate1d": [(0, 1), (1, 1)],
    "trilinear": [(0, 2)],
    "mask_adjoint": [(1, 1)],  # shots
    "forward_taps": [(1, 1), (2, 2)],  # shots, taps
    "adjoint_taps": [(0, 3), (1, 4), (2, 2)],  # columns of the detector and of the cube, taps
    "add_adjoint_taps": [(1, 3), (3, 2)],  # columns of the detector, taps
    "mask_adjoint_taps": [(0, 3), (1, 1), (1, 3), (2, 2)],
    "band_solve": [(1, 0)],  # one gram for all samples, or one each
}


def _call(name, *args):
    return getattr(operators, name)(*args)


def _dimensions(name):
    """Yield number of the argument, dimension and tensor, for all of an operator."""
    for i, value in enumerate(FITTING[name]):
        if isinstance(value, Tensor):
            yield from ((i, dim, value) for dim in range(value.ndim))


def _with(name, i, value):
    """Call an operator with another argument number i."""
    return _call(name, *FITTING[name][:i], value, *FITTING[name][i + 1 :])


def _replaced(name, change):
    args = FITTING[name]
    return [
        (i, (*args[:i], change(value), *args[i + 1 :]))
        for i, value in enumerate(args)
        if isinstance(value, Tensor)
    ]


@every_op
def test_these_fit(name):
    _call(name, *FITTING[name])


RANKS_AND_DTYPES = [
    lambda t: t[0],
    lambda t: t[None],
    lambda t: t.flatten()[0],
    lambda t: t.short(),
    lambda t: t.bool(),
    lambda t: t.to(torch.complex64),
    lambda t: t.to(torch.float8_e4m3fn),
    lambda t: None,
]
KINDS = [
    lambda t: t.to("meta"),
    lambda t: t.to_sparse(),
    lambda t: t.to_mkldnn() if t.dtype == torch.float32 else t.to("meta"),
    lambda t: torch._efficientzerotensor(t.shape),
    lambda t: torch._neg_view(t),
]


@every_op
def test_wrong_ranks_and_dtypes(name):
    for change in RANKS_AND_DTYPES:
        for i, args in _replaced(name, change):
            if args[i] is None and OPTIONAL.get(name) == i:
                continue
            with pytest.raises((RuntimeError, TypeError, AttributeError)):
                _call(name, *args)


@every_op
def test_other_kinds_of_tensors(name):
    """Refused, or handed to another kernel; they have no elements that ours could read."""
    for change in KINDS:
        for _, args in _replaced(name, change):
            with contextlib.suppress(RuntimeError):
                _call(name, *args)


@every_op
def test_wrong_sizes(name):
    """One element more or less in every dimension of every tensor."""
    for i, dim, value in _dimensions(name):
        if (i, dim) in FREE.get(name, []):
            continue
        longer = torch.cat([value, value.narrow(dim, 0, 1)], dim)
        shorter = value.narrow(dim, 0, value.shape[dim] - 1)
        for wrong in (longer, shorter) if value.shape[dim] != 2 else (longer,):
            with pytest.raises(RuntimeError, match="expected"):
                _with(name, i, wrong)


@every_op
def test_without_elements(name):
    """Each dimension of each tensor in turn is empty: an error, or an empty or zero result."""
    for i, dim, value in _dimensions(name):
        try:
            _with(name, i, value.narrow(dim, 0, 0))
        except RuntimeError:
            continue
        assert (i, dim) in FREE.get(name, [])


@every_op
def test_wrong_numbers(name):
    """A step, number of bands or number of iterations that does not fit the tensors."""
    numbers = (0, -1, -(2**31), 2**31, 2**40, -(2**63), 2**63 - 1)
    for number, (i, value) in product(numbers, enumerate(FITTING[name])):
        if type(value) is not int or (name.startswith("tv_") and number >= 0):
            continue
        if number in (0, -1) and name in SMALL_STEPS and i == len(FITTING[name]) - 1:
            continue  # a small step fits everything
        with pytest.raises(RuntimeError):
            _with(name, i, number)


def test_gradient_without_samples():
    args = list(FITTING["data_step_backward"])
    args[:6] = [args[0][:0], args[1][:0], args[2][:0], args[3][:1], args[4][:1], args[5][:1]]
    *grads, grad_mask, grad_rho = operators.data_step_backward(*args)
    assert [tuple(g.shape) for g in grads] == [(0, C, H, W), (0, K, H, WIDE)]
    assert torch.equal(grad_mask, torch.zeros(1, K, C, H, W))
    assert tuple(grad_rho.shape) == (0, K, H, WIDE)
    args[5] = args[5][..., :1, :1, :1]
    assert tuple(operators.data_step_backward(*args)[-1].shape) == (0, 1, H, 1)
    m = operators.mask_adjoint(args[0], args[2], STEP, False, True)
    assert torch.equal(m, torch.zeros(1, K, C, H, W))


# No memory can hold these, or what they need: strides of 0 make them cheap to ask for.
HUGE = """
forward(ones(1, 2**31 - 1, 1, 2**31 - 1), ones(1, 1, 1, 1, 2**31 - 1), 0)
forward(ones(1, 2**30, 1, 2**19), ones(1, 1, 1, 1, 2**19), 0)
forward(ones(1, 2**30, 64, 2**19), ones(1, 1, 1, 64, 2**19), 0)
forward(ones(1, 2**20, 1, 8), ones(1, 1, 1, 1, 8), 2**28)
forward(ones(1, 2, 1, 1), ones(1, 2**60, 1, 1, 1), 0)
adjoint(ones(1, 1, 1, 1 + (2**31 - 2) * (2**31 - 1)), ones(1, 1, 1, 1, 1), 2**31 - 1, 2**31 - 1)
ratio_inverse(ones(1, 1, 1, 2**31 - 1), ones(1, 1, 1, 1, 2**31 - 1), 2**31 - 1, 0)
mask_adjoint(ones(1, 2**30, 1, 2**19), ones(1, 1, 1, 2**19), 0, False, False)
mask_adjoint(ones(1, 1, 1, 1), ones(1, 2**60, 1, 1), 0, True, True)
gram(ones(1, 1, 1, 1, 8), 2**31 - 1, 2**31 - 1)
gram(ones(1, 1, 1, 1, 2**19), 2**30, 0)
gram_solve(ones(1, 2**24, 1, 1), ones(1, 2**24, 2**24, 1, 1), R)
gram_solve(ones(1, 2**31 - 1, 1, 1), ones(1, 2**31 - 1, 2**31 - 1, 1, 1), R)
data_step(ones(1, 2**30, 1, 2**19), *[ones(*s, 1, 2**19) for s in ((1, 1), U, U)], R, 0)
tv_prox(ones(1, 2**30, 1, 2**19), ones(1), 3, True)
tv_prox(ones(1, 1, 2**60, 1), ones(1), 20, False)
convolve1d(ones(1, 2**48), ones(1, 2**48))
convolve1d(ones(1, 2**62), ones(1, 2**62 + 5))
correlate1d(ones(1, 2**48), ones(1, 2**48))
correlate1d(ones(2**4, 2**48), ones(2**4, 2**48))
correlate1d(ones(1, 2**62 + 5), ones(1, 2**62))
trilinear(ones(2**40, 8, 2**19), ones(2**40, 3))
forward_taps(ones(1, 2**30, 1, 2**19), ones(1, 1, 1, 1, 2**19), ones(1, 2**30, 1), S, 2**31 - 1)
forward_taps(ones(1, 1, 1, 8), ones(1, 1, 1, 1, 8), ones(1, 1, 2**40), S, 8)
forward_taps(ones(1, 1, 1, 8), ones(1, 1, 1, 1, 8), ones(1, 1, 1), S, 2**40)
adjoint_taps(ones(1, 1, 1, 2**31 - 1), ones(1, 1, 1, 1, 2**31 - 1), ones(1, 2**30, 1), S)
forward_taps(ones(1, 2**30, 1, 1), ones(1, 1, 1, 1, 2**19), ones(1, 2**30, 2**19), S, 8, True)
adjoint_taps(ones(1, 1, 1, 8), ones(1, 1, 1, 1, 8), ones(1, 1, 9), S, False, True)
mask_adjoint_taps(ones(1, 1, 1, 1), ones(1, 2**60, 1, 1), ones(1, 1, 1), S, False, True, True)
band_solve(ones(1, 2**24, 1, 1), ones(1, 2**24, 2**24, 1, 1), R)
band_solve(ones(1, 1, 1, 2**30), ones(1, 2**30, 1, 1, 2**30), R)
trilinear_backward(ones(2**40, 2**19), ones(2**40, 8, 2**19), ones(2**40, 3))
shrink_groups(ones(1, 2**50, 1, 1), S.expand(1, 1, 2), ones(1), 1)
shrink_groups(ones(1, 1, 2**31, 2**31), S.expand(1, 1, 2), ones(1), 1)
shrink_groups(ones(1, 1, 1, 1), S.expand(1, 2**60, 2), ones(1), 1)
shrink_groups(ones(1, 2**20, 1, 1), S.expand(1, 1, 2**60), ones(1), 1)
orthogonal_iteration(ones(1, 2**20, 2**20), ones(1, 2**20, 2**20), 1)
orthogonal_iteration(ones(1, 2**30, 2**30), ones(1, 2**30, 1), 1)
selective_scan(*[ones(1, 2**50, 1)] * 2, R[0], *[ones(1, 2**50, 1)] * 2)
selective_scan(*[ones(2**40, 1, 2**20)] * 2, ones(1, 2**20, 1), *[ones(2**40, 1, 1)] * 2)
selective_scan(*[ones(1, 1, 1)] * 2, ones(1, 1, 2**40), *[ones(1, 1, 2**40)] * 2)
selective_scan_backward(*[ones(1, 2**46, 1)] * 3, R[0], *[ones(1, 2**46, 1)] * 2)
""".strip().splitlines()

SCRIPT = """
import sys, torch, cassi
names = {name: getattr(torch.ops.cassi, name) for name in cassi.ops._library.SCHEMAS}
names |= {"ones": lambda *shape: torch.ones(()).expand(shape), "U": (1, 1, 1)}
names["R"] = torch.ones(1, 1, 1, 1)
names["S"] = torch.zeros(1, 1, dtype=torch.int64)
for line in sys.stdin.read().splitlines():
    try:
        eval(line, names)
    except RuntimeError:
        print(line, flush=True)
"""


def test_huge_calls_fail_softly():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(HUGE),
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    failed = result.stdout.splitlines()
    assert failed == HUGE, [line for line in HUGE if line not in failed]
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("iterations", [2**40, 2**63 - 1])
def test_iterations_on_nothing(iterations):
    x = torch.ones(0, C, H, W)
    assert operators.tv_prox(x, torch.ones(1), iterations, False).shape == x.shape


@pytest.fixture
def sparse_memory(tmp_path):
    """Six thousand million elements, of which only those that are written exist."""
    count = 6_000_000_000

    def open_file(dtype):
        path = tmp_path / "holes"
        try:
            with path.open("wb") as file:
                file.truncate(count * dtype.itemsize)
            elements = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
        except (OSError, RuntimeError) as error:
            pytest.skip(f"no sparse files in {tmp_path}: {error}")
        blocks = path.stat().st_blocks
        path.unlink()
        if blocks > 2048:
            pytest.skip(f"no sparse files in {tmp_path}: a hole takes space")
        return elements

    return open_file


@pytest.mark.parametrize("name", ["forward", "data_step", "data_step_backward", "tv_prox_dual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_addresses_beyond_32_bits(name, dtype, sparse_memory, parity):
    """Elements of one tensor lie up to 5·10⁹ elements apart, along every dimension but the last."""
    memory = sparse_memory(dtype)
    strides = {4: (3_000_000_019, 900_000_011, 200_000_003, 1)}
    strides[5] = (2_500_000_019, 1_200_000_007, 500_000_003, 100_000_007, 1)
    args, start = [], 0
    for value in FITTING[name]:
        if isinstance(value, Tensor) and value.ndim in strides:
            view = memory.as_strided(value.shape, strides[value.ndim], start)
            rising = torch.linspace(0.1, 1, value.numel()).reshape(value.shape)
            is_gram = value.ndim == 5 and value.shape[1] == value.shape[2]
            args.append(view.copy_(value if is_gram else rising))
            start += 64
        else:
            args.append(value)
    parity(name, *args)
