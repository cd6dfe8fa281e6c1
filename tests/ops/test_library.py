"""What torch asks of an operator: schema, fake kernel, autograd, compilation, determinism."""

import ctypes
import shutil
import subprocess
from functools import partial

import pytest
import torch
from kernel_calls import STEP, WIDE, B, C, H, W, kernel_calls
from shared import rand
from torch import Tensor

from cassi import ops
from cassi.ops import _library
from cassi.ops._library import operators

# Only called where none is recorded.
WITHOUT_GRADIENT = ("shrink_groups", "convolve3x3", "orthogonal_iteration")
_rand = partial(rand, low=0.1)


@pytest.mark.parametrize("name", sorted(_library.SCHEMAS))
@pytest.mark.parametrize(
    ("k", "samples", "bands", "dtype"),
    [(1, 1, 1, torch.float64), (2, B, C, torch.float64), (1, 1, C, torch.bfloat16)],
)
def test_opcheck(name, k, samples, bands, dtype):
    """A new op without arguments in `kernel_calls` fails here."""
    arguments = kernel_calls(k, samples, bands, dtype)[name]
    if dtype == torch.float64:
        floating = (
            a.requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in arguments
        )
        # The gram of a data step is a function of the mask and never a leaf; fused gradients are
        # only called where none is recorded.
        arguments = tuple(
            a.detach()
            if isinstance(a, Tensor)
            and (
                name.endswith("_backward")
                or name in WITHOUT_GRADIENT
                or (name == "data_step" and i == 3)
            )
            else a
            for i, a in enumerate(floating)
        )
    tests = ["test_schema", "test_faketensor"]
    if dtype == torch.float64:
        tests += ["test_autograd_registration"]
    torch.library.opcheck(getattr(operators, name).default, arguments, test_utils=tests)


def _cells(x):  # (N, 8, F), (N, 3)
    """Eight different corners for every row of a cube, and a point in each cell."""
    rows = x.flatten(0, 2)
    return torch.stack([rows.roll(i, 1) for i in range(8)], 1), rows[:, :3]


def _points(y):  # (B, K, H, W', 3)
    return torch.stack((y, y.flip(-1), y.flip(-2)), -1) * 2 - 1


def _shifts(t):
    bands = t["x"].shape[1]
    return ops.linear_taps(t["m"][0, 0, 0, :1] + 1.3 * torch.arange(bands, dtype=t["m"].dtype))


def _scanned(x, rates):  # (B, L, D), (N,)
    states = rates * x[:, :, :1]
    return ops.selective_scan(x, x + 0.1, -rates.expand(x.shape[2], -1), states, states + 1)


PUBLIC = {
    "forward": lambda t: ops.forward(t["x"], t["m"], STEP),
    "adjoint": lambda t: ops.adjoint(t["y"], t["m"], C, STEP),
    "add_adjoint": lambda t: ops.add_adjoint(t["x"], t["y"], t["m"], STEP),
    "forward_subspace": lambda t: ops.forward_subspace(
        t["x"][:, :2], t["x"][0, :, 0, :2], t["m"], STEP
    ),
    "adjoint_subspace": lambda t: ops.adjoint_subspace(t["y"], t["x"][0, :, 0, :2], t["m"], STEP),
    "ratio_inverse": lambda t: ops.ratio_inverse(t["y"][:, :1], t["m"][:1], C, STEP),
    "gram": lambda t: ops.gram(t["m"], C, STEP),
    "gram_solve": lambda t: ops.gram_solve(t["y"], t["g"], t["rho"]),
    "data_step": lambda t: ops.data_step(t["x"], t["y"], t["m"], STEP, t["rho"]),
    "gram_solve, ρ per pixel": lambda t: ops.gram_solve(t["y"], t["g"], t["pixels"]),
    "data_step, ρ per pixel": lambda t: ops.data_step(t["x"], t["y"], t["m"], STEP, t["pixels"]),
    "tv_prox": lambda t: ops.tv_prox(t["x"], t["rho"], 3),
    "linear_taps": lambda t: ops.linear_taps(t["rho"])[0],
    "forward_taps": lambda t: ops.forward_taps(t["x"], t["m"], *_shifts(t), t["y"].shape[-1]),
    "adjoint_taps": lambda t: ops.adjoint_taps(t["y"], t["m"], *_shifts(t)),
    "add_adjoint_taps": lambda t: ops.add_adjoint_taps(t["x"], t["y"], t["m"], *_shifts(t)),
    "forward_taps, after": lambda t: ops.forward_taps(
        t["x"][..., 1:], t["m"], *_shifts(t), t["y"].shape[-1], after=True
    ),
    "adjoint_taps, after": lambda t: ops.adjoint_taps(t["y"], t["m"], *_shifts(t), after=True),
    "add_adjoint_taps, after": lambda t: ops.add_adjoint_taps(
        t["x"][..., 1:], t["y"], t["m"], *_shifts(t), after=True
    ),
    "gram_taps, after": lambda t: ops.gram_taps(t["m"], *_shifts(t), t["y"].shape[-1], after=True),
    "gram_taps": lambda t: ops.gram_taps(t["m"], *_shifts(t), t["y"].shape[-1]),
    "band_solve": lambda t: ops.band_solve(
        t["y"], ops.gram_taps(t["m"], *_shifts(t), t["y"].shape[-1]), t["rho"]
    ),
    "band_solve, ρ per pixel": lambda t: ops.band_solve(
        t["y"], ops.gram_taps(t["m"], *_shifts(t), t["y"].shape[-1]), t["pixels"]
    ),
    "convolve1d": lambda t: ops.convolve1d(t["x"], t["m"][0, 0, :, :3]),
    "trilinear": lambda t: ops.trilinear(*_cells(t["x"])),
    "selective_scan": lambda t: _scanned(t["x"][:, :, :4, 0], t["m"][0, 0, 0, :2]),
    "sample_volume": lambda t: ops.sample_volume(t["x"][:, None], _points(t["y"])),
}
NOT_OPERATORS = {"assert_memory_format", "backend", "detector_columns", "step_offsets"}
PUBLIC_NAMES = sorted(set(PUBLIC) | (set(ops.__all__) - NOT_OPERATORS))


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _tensors(batch):
    shapes = {"x": (batch, C, H, W), "y": (batch, 2, H, WIDE), "m": (2, 1, H, W), "rho": (batch,)}
    shapes["pixels"] = (batch, 2, H, WIDE)
    tensors = {name: _rand(*shape) for name, shape in shapes.items()}
    return tensors | {"g": ops.gram(tensors["m"], C, STEP)}


def _gradients(function, batch):
    tensors = {name: value.requires_grad_() for name, value in _tensors(batch).items()}
    result = function(tensors)
    leaves = [value for value in tensors.values() if value.requires_grad]
    gradients = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
    return [result, *(g for g in gradients if g is not None)]


@pytest.mark.thorough
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_compiles_whole(name):
    """Once for all sizes. A new public op without an entry in `PUBLIC` fails here."""
    function = PUBLIC[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 3):
        pairs = zip(_gradients(compiled, batch), _gradients(function, batch), strict=True)
        for got, expected in pairs:
            torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_same_bits_for_every_thread_count_and_run(name, assert_same_bits):
    height, width, bands, shots = 161, 203, 5, 2  # above torch's grain of 32768
    wide = width + (bands - 1) * abs(STEP)
    tensors = {
        "x": _rand(2, bands, height, width, dtype=torch.float32),
        "y": _rand(2, shots, height, wide, dtype=torch.float32),
        "m": _rand(shots, 1, height, width, dtype=torch.float32),
        "rho": _rand(2, dtype=torch.float32),
        "pixels": _rand(1, shots, height, wide, dtype=torch.float32),
    }
    tensors["g"] = ops.gram(tensors["m"], bands, STEP)
    function = {
        "adjoint": lambda t: ops.adjoint(t["y"], t["m"], bands, STEP),
        "ratio_inverse": lambda t: ops.ratio_inverse(t["y"][:, :1], t["m"][:1], bands, STEP),
        "gram": lambda t: ops.gram(t["m"], bands, STEP),
    }.get(name, PUBLIC[name])

    def run():
        leaves = [value.clone().requires_grad_() for value in tensors.values()]
        result = function(dict(zip(tensors, leaves, strict=True)))
        gradients = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
        return [result, *(g for g in gradients if g is not None)]

    assert_same_bits(run)


def test_backend_is_named():
    assert ops.backend(torch.device("cpu")) in ("compiled", "reference")
    assert ops.backend(torch.device("meta")) == "reference"


@pytest.mark.parametrize(
    ("build", "capabilities", "reason"),
    [
        ("13.0 80-real 90-real 90-virtual", [(8, 0), (8, 9), (9, 0), (12, 0)], None),
        ("12.8 80-real", [(8, 6)], None),
        ("12.8 90a-real", [(9, 0)], None),
        ("13.0 80-real 90-virtual", [(8, 0), (7, 5)], "TORCH_CUDA_ARCH_LIST=7.5"),
        ("13.0 86-real", [(8, 0)], "code for 86-real, and device 0 is of compute capability 8.0"),
        ("13.0 80-real", [(9, 0)], "capability 9.0"),
        ("13.0 90a-virtual", [(10, 0)], "capability 10.0"),
        ("14.1 80-real", [(8, 0)], "built with CUDA 14.1, the driver is made for CUDA 13"),
        ("13.1 80-virtual", [(8, 0)], None),
        ("13.2 80-real", [(8, 6)], None),
        ("13.2.51 80-virtual", [(8, 0)], "TORCH_CUDA_ARCH_LIST=8.0"),
    ],
)
def test_a_cuda_library_that_cannot_run_is_not_loaded(
    build, capabilities, reason, monkeypatch, tmp_path
):
    monkeypatch.setattr(_library, "driver_version", lambda: (13, 1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device])
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    library = tmp_path / "_cuda.so"
    library.write_bytes(b"\x7fELF\0cassi-cuda-build:" + build.encode() + b";\0")
    if reason is None:
        _library._load_cuda(library)
        assert loaded == [library]
    else:
        with pytest.warns(RuntimeWarning, match=f"{reason}.*run on their pure-torch reference"):
            _library._load_cuda(library)
        assert not loaded


def test_a_driver_that_cannot_be_asked_does_not_keep_torch_from_its_device(monkeypatch, tmp_path):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(_library.ctypes, "CDLL", missing)
    library = tmp_path / "_cuda.so"
    library.write_bytes(b"cassi-cuda-build:13.0 80-real;")
    message = r"driver could not be asked .*libcuda\.so\.1: cannot open"
    with pytest.warns(RuntimeWarning, match=message):
        _library._load_cuda(library)


def test_the_driver_says_its_version(monkeypatch, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "driver.c").write_text(
        "int cuDriverGetVersion(int* version) { *version = 13020; return 0; }"
    )
    driver = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    load = ctypes.CDLL
    monkeypatch.setattr(_library.ctypes, "CDLL", lambda name: load(str(tmp_path / name)))
    assert _library.driver_version() == (13, 2)
