"""The CUDA kernels against those of the CPU."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from kernel_calls import B, C, kernel_calls
from torch import Tensor

from cassi.ops._library import SCHEMAS, operators
from scripts.checks import fuzz

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
pytestmark = pytest.mark.cuda
CAMERA = ("forward", "adjoint", "mask_adjoint", "gram", "gram_solve", "data_step", "add_adjoint")
CAMERA += ("forward_subspace", "adjoint_subspace")
ONLY_CPU = {"convolve3x3", "convolve3x3_backward", "tv_prox_backward"}
every_op = pytest.mark.parametrize("name", [*CAMERA, "data_step_backward"])
SIZES = [
    ((2, 28, 5, 64), 2),
    ((1, 28, 3, 660), -2),
    ((1, 9, 2, 48), 1),
    ((3, 5, 3, 33), -3),
    ((1, 1, 1, 1), 0),
    ((2, 33, 7, 5), 17),
]


def _moved(args, device="cuda"):
    return [value.to(device) if isinstance(value, Tensor) else value for value in args]


def _tuple(results):
    return results if isinstance(results, tuple) else (results,)


def _equal(results, others):
    return all(map(torch.equal, _tuple(results), _tuple(others)))


def _channels_last(value):
    return value.movedim(1, -1).contiguous().movedim(-1, 1) if value.ndim > 1 else value


def _compare(name, args, layout=lambda t: t):
    kernel = getattr(operators, name)
    args = [layout(value) if isinstance(value, Tensor) else value for value in args]
    expected, got, again = kernel(*args), kernel(*_moved(args)), kernel(*_moved(args))
    for e, g, a in zip(*map(_tuple, (expected, got, again)), strict=True):
        assert torch.equal(g, a)
        loose = {"rtol": 1e-4, "atol": 1e-4} if g.dtype == torch.float32 else {}
        torch.testing.assert_close(g.cpu(), e, **loose)


@every_op
@pytest.mark.parametrize(("size", "step"), SIZES)
@pytest.mark.parametrize(
    ("shots", "samples", "mask_bands"), [(1, 1, 1), (2, 1, 1), (1, None, None), (3, None, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rho", [(0.1,), "pixels"])
def test_camera(camera_arguments, name, size, step, shots, samples, mask_bands, dtype, rho):
    arguments = camera_arguments(
        name, size, step, shots, samples or size[0], mask_bands or size[1], (dtype,) * 3, rho
    )
    _compare(name, arguments)
    _compare(name, arguments, _channels_last)


@pytest.mark.parametrize("norm", range(3))
@pytest.mark.parametrize("iterations", [0, 1, 5, 20])
@pytest.mark.parametrize("shape", [(2, 3, 40, 70), (1, 28, 9, 5), (1, 1, 1, 1)])
def test_tv_prox(norm, iterations, shape):
    x, weight = torch.rand(shape), torch.tensor([0.1])
    dual = 0.05 * torch.rand(shape[0], 2, *shape[1:])
    _compare("tv_prox", [x, weight, iterations, norm])
    _compare("tv_prox_dual", [x, weight, dual, iterations, norm])


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - ONLY_CPU))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("shots", "samples", "bands"), [(1, 1, 1), (2, B, C), (2, 1, C)])
def test_every_operator(name, dtype, shots, samples, bands):
    # A singular value s just above the threshold t becomes √(s² − t²): half of the digits are lost.
    dtype = torch.float64 if name in ("shrink_groups", "orthogonal_iteration") else dtype
    args = kernel_calls(shots, samples, bands, dtype)[name]
    for layout in (lambda t: t, _channels_last):
        _compare(name, args, layout)


@every_op
@pytest.mark.parametrize("shots", [1, 3, 5])
def test_graph_capture(camera_arguments, name, shots):
    """A captured call reads what its tensors hold when the graph is replayed."""
    args = _moved(camera_arguments(name, (2, 28, 5, 64), 2, shots))
    kernel = getattr(operators, name)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # kernels are loaded, and shared memory is asked for, before
        kernel(*args)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(*args)
    for scale in (1.0, 0.5):
        for value in args:
            if isinstance(value, Tensor):
                value.mul_(scale)
        graph.replay()
        assert _equal(captured, kernel(*args))


@every_op
def test_side_stream(camera_arguments, name):
    """A call is queued on the current stream, behind what is to fill its tensors there."""
    args = _moved(camera_arguments(name, (2, 28, 5, 64), 2))
    expected = getattr(operators, name)(*args)
    late = [torch.full_like(v, torch.nan) if isinstance(v, Tensor) else v for v in args]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # some hundredths of a second
        for value, source in zip(late, args, strict=True):
            if isinstance(value, Tensor):
                value.copy_(source)
        got = getattr(operators, name)(*late)
    side.synchronize()
    assert _equal(got, expected)


@every_op
def test_second_device(camera_arguments, name):
    """On the device of the tensors, whichever is current; each has its limit of shared memory."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    args = camera_arguments(name, (1, 28, 2, 1100), 0)  # more than the 48 KB of every kernel
    expected = getattr(operators, name)(*_moved(args, "cuda:0"))
    for current in (0, 1):
        with torch.cuda.device(current):
            got = getattr(operators, name)(*_moved(args, "cuda:1"))
        assert all(result.device == torch.device("cuda:1") for result in _tuple(got))
        for result, other in zip(_tuple(got), _tuple(expected), strict=True):
            torch.testing.assert_close(result.cpu(), other.cpu())


def test_two_host_threads(camera_arguments):
    """Each with a stream; neither lowers the limit of shared memory that the other has raised."""
    calls = [_moved(camera_arguments("data_step", (1, 28, 1, w), 0)) for w in (460, 700, 1100)]
    expected = [operators.data_step(*args).cpu() for args in calls]
    torch.cuda.synchronize()

    def call(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            return torch.equal(operators.data_step(*calls[k % 3]).cpu(), expected[k % 3])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(60)))


def test_random_calls():
    """Those of scripts/checks/fuzz.py that fit, against the kernels of the CPU."""
    compared = 0
    for seed in range(300):
        call = fuzz.draw_call(np.random.default_rng([seed, 21]))
        tensors = [value for value in call.args.values() if isinstance(value, Tensor)]
        if not call.fits or call.public or not all(value.numel() for value in tensors):
            continue
        compared += 1
        results = call.run(*_moved(list(call.args.values())))
        if call.name != "tv_prox_backward":
            fuzz.compare(call, tuple(result.cpu() for result in _tuple(results)))
    assert compared > 60
