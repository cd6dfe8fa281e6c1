"""convolve1d, trilinear, sample_volume: dtypes, derivatives, compilation, vmap, determinism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cassi.ops._library import kernels
from cassi.ops._signal import convolve1d, sample_volume, trilinear

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
Function = Callable[[Tensor, Tensor], Tensor]


def _rand(*shape: int, low: float = -1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (low + (1 - low) * values).to(dtype)


def _turned(value: Tensor) -> Tensor:
    """Equal values, other strides, with gaps."""
    return value.mT.repeat_interleave(2, 0)[::2].mT


CASES: dict[str, tuple[Function, tuple[Tensor, Tensor]]] = {
    "convolve1d": (convolve1d, (_rand(3, 6), _rand(3, 4))),
    "correlate1d": (kernels.correlate1d, (_rand(3, 6), _rand(3, 4))),
    "correlate1d_long": (kernels.correlate1d, (_rand(3, 6), _rand(3, 5))),
    "trilinear": (trilinear, (_rand(4, 8, 2), _rand(4, 3))),
    "sample_volume": (sample_volume, (_rand(2, 3, 1, 4), 1.2 * _rand(4, 3))),
}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", DTYPES)
def test_result_is_the_sum_in_the_widest_dtype_rounded(
    name: str, dtype: torch.dtype, other: torch.dtype
) -> None:
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
def test_autocast_runs_in_the_widest_dtype(name: str) -> None:
    function, (first, second) = CASES[name]
    expected = function(first.float(), second.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        got = function(first.float(), second.bfloat16())
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


@every_case
def test_first_and_second_derivatives(name: str) -> None:
    function, values = CASES[name]
    leaves = tuple(value.clone().requires_grad_() for value in values)
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


@every_case
def test_no_rows_have_a_gradient(name: str) -> None:
    function, values = CASES[name]
    if name == "sample_volume":
        values = (values[0][:0], values[1])  # no features
    else:
        values = (values[0][:0], values[1][:0])
    leaves = [value.clone().requires_grad_() for value in values]
    gradients = torch.autograd.grad(function(*leaves).sum(), leaves)
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves]


@every_case
@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_argument(name: str, wanted: int) -> None:
    function, values = CASES[name]
    both = [value.clone().requires_grad_() for value in values]
    expected = torch.autograd.grad(function(*both).square().sum(), both)[wanted]
    leaves = [value.clone().requires_grad_(i == wanted) for i, value in enumerate(values)]
    result = function(*leaves).square().sum()
    (got,) = torch.autograd.grad(result, leaves[wanted], create_graph=True)
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)
    assert got.requires_grad


def test_third_derivative() -> None:
    a, v = _rand(2, 4).requires_grad_(), _rand(2, 3)
    value = convolve1d(a, v).pow(3).sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, a, create_graph=True)
        value = gradient.sum()
    expected = 6 * convolve1d(torch.ones_like(a), v).pow(3).sum()
    torch.testing.assert_close(value, expected)


KERNELS: dict[str, tuple[Tensor, ...]] = {
    "convolve1d": (_rand(3, 6), _rand(3, 4)),
    "correlate1d": (_rand(3, 6), _rand(3, 4)),
    "trilinear": (_rand(4, 8, 2), _rand(4, 3)),
    "trilinear_backward": (_rand(4, 2), _rand(4, 8, 2), _rand(4, 3)),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    arguments = tuple(_turned(value).to(dtype) for value in KERNELS[name])
    tests = ["test_schema", "test_faketensor"]
    if dtype == torch.float64:
        # The fused gradient is only called where none is recorded.
        arguments = tuple(a.requires_grad_(not name.endswith("_backward")) for a in arguments)
        tests += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(getattr(kernels, name).default, arguments, test_utils=tests)


@every_kernel
def test_fake_kernel_foretells_shape_dtype_and_strides(name: str) -> None:
    kernel = getattr(kernels, name)
    for layout in (_turned, Tensor.bfloat16):
        arguments = [layout(value) for value in KERNELS[name]]
        real = kernel(*arguments)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = kernel(*(mode.from_tensor(value) for value in arguments))
        pairs = zip(_as_tuple(fake), _as_tuple(real), strict=True)
        for f, r in pairs:
            assert (f.shape, f.dtype, f.stride()) == (r.shape, r.dtype, r.stride())


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@every_case
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(name: str, dynamic: bool) -> None:
    function, values = CASES[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    rows = [slice(None), slice(0, 2)] if dynamic and name != "sample_volume" else [slice(None)]
    for some in rows:
        leaves = [value[some].clone().requires_grad_() for value in values]
        results = []
        for each in (function, compiled):
            value = each(*leaves)
            results.append([value, *torch.autograd.grad(value.square().sum(), leaves)])
        for expected, got in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@every_case
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, 1)])
def test_vmap(name: str, dims: tuple[int | None, int | None]) -> None:
    function, values = CASES[name]
    scales = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    mapped, single = [], []
    for value, dim in zip(values, dims, strict=True):
        many = [value * s if dim is not None else value for s in scales]
        single.append(many)
        mapped.append(value if dim is None else torch.stack(many, dim))
    got = torch.vmap(function, in_dims=dims)(*mapped)
    expected = torch.stack([function(a, b) for a, b in zip(*single, strict=True)])
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


LARGE: dict[str, tuple[Function, tuple[Tensor, Tensor]]] = {
    "convolve1d_rows": (convolve1d, (_rand(50, 2001), _rand(50, 5))),
    "convolve1d_one_row": (convolve1d, (_rand(1, 70001), _rand(1, 3))),
    "trilinear": (trilinear, (_rand(3001, 8, 3), _rand(3001, 3))),
    "sample_volume": (sample_volume, (_rand(3, 2, 3, 4), _rand(5003, 3))),
}


@pytest.mark.parametrize("name", LARGE)
def test_same_bits_for_every_thread_count_and_run(
    name: str, assert_same_bits: Callable[..., None]
) -> None:
    function, values = LARGE[name]
    leaves = [value.float().requires_grad_() for value in values]

    def run() -> list[Tensor]:
        result = function(*leaves)
        return [result, *torch.autograd.grad(result.square().sum(), leaves)]

    assert_same_bits(run)
