"""What every compiled operator keeps: any layout, any dtype, any thread count, any processor."""

import os
import re
from pathlib import Path

import pytest
import torch
from kernel_calls import CAMERA
from shared import python
from torch import Tensor

from cassi import ops
from cassi.ops._library import SCHEMAS, operators

# Arguments of the other operators, in float32.
OTHERS = {
    "tv_prox": lambda: [_rand(2, 5, 9, 33), torch.tensor([0.1, 0.2]), 3, True],
    "tv_prox_dual": lambda: [
        _rand(2, 5, 9, 33),
        torch.tensor([0.1]),
        0.1 * _rand(2, 2, 5, 9, 33),
        9,
        False,
    ],
    "convolve1d": lambda: [_rand(7, 31), _rand(7, 5)],
    "correlate1d": lambda: [_rand(7, 31), _rand(7, 5)],
    "trilinear": lambda: [_rand(9, 8, 33), _rand(9, 3)],
    "trilinear_backward": lambda: [_rand(9, 33), _rand(9, 8, 33), _rand(9, 3)],
    "forward_taps": lambda: [_rand(2, 5, 9, 33), _rand(2, 2, 5, 9, 34), *_taps(5, 2), 41, True],
    "adjoint_taps": lambda: [
        *(_rand(2, 2, 9, 41), _rand(2, 2, 5, 9, 33), *_taps(5, 3)),
        *(False, False),
    ],
    "add_adjoint_taps": lambda: [
        *(_rand(2, 5, 9, 33), _rand(2, 2, 9, 41), _rand(2, 2, 5, 9, 34)),
        *(*_taps(5, 2), True),
    ],
    "mask_adjoint_taps": lambda: [
        *(_rand(2, 5, 9, 33), _rand(2, 2, 9, 41), *_taps(5, 2)),
        *(False, True, True),
    ],
    "band_solve": lambda: [_rand(2, 2, 9, 41), _band_gram(2, 9, 41), _damping(2, 2, 9, 41)],
    "selective_scan": lambda: _scan(2, 67, 19, 5),
    "selective_scan_backward": lambda: [_rand(2, 67, 19), *_scan(2, 67, 19, 5)],
    "shrink_groups": lambda: [_rand(2, 5, 9, 33), _groups(2, 21, 7, 9 * 33), _levels(2), 3],
    "orthogonal_iteration": lambda: [*_moments(2, 11, 5), 2],
    "convolve3x3": lambda: [
        _rand(2, 5, 9, 33),
        _rand(7, 5, 3, 3),
        _rand(7),
        _rand(2, 7, 9, 33),
        True,
    ],
    "convolve3x3_backward": lambda: [_rand(2, 7, 19, 33), _rand(2, 5, 19, 33)],
}
# The same, of which every thread gets a part.
LARGE = {
    "tv_prox": lambda: [
        [_rand(1, 3, 100, 130), torch.tensor([0.1]), iterations, norm]
        for iterations, norm in ((5, 0), (9, 1), (4, 2))
    ],
    "tv_prox_dual": lambda: [
        [_rand(1, 3, 100, 130), torch.tensor([0.1]), 0.1 * _rand(1, 2, 3, 100, 130), 9, norm]
        for norm in range(3)
    ],
    "convolve1d": lambda: [[_rand(3, 3000), _rand(3, 65)]],
    "correlate1d": lambda: [[_rand(3, 3000), _rand(3, 65)]],
    "trilinear": lambda: [[_rand(2000, 8, 5), _rand(2000, 3)]],
    "trilinear_backward": lambda: [[_rand(2000, 5), _rand(2000, 8, 5), _rand(2000, 3)]],
    "forward_taps": lambda: [
        [_rand(3, 9, 37, 133), _rand(3, 1, shares, 37, 133 + more), *_taps(9, count), 171, more > 0]
        for shares, count, more in ((1, 2, 0), (9, 2, 0), (9, 2, 1), (1, 4, 3))
    ],
    "adjoint_taps": lambda: [
        [_rand(3, 1, 37, 171), _rand(1, 1, 1, 37, 133 + after), *_taps(9, 2), False, after]
        for after in (False, True)
    ],
    "add_adjoint_taps": lambda: [
        [
            *(_rand(3, 9, 37, 133), _rand(3, shots, 37, 171), _rand(3, shots, 9, 37, 133 + after)),
            *(*_taps(9, 2), after),
        ]
        for shots, after in ((1, False), (1, True), (2, True))
    ],
    "mask_adjoint_taps": lambda: [
        [_rand(3, 9, 37, 133), _rand(3, 1, 37, 171), *_taps(9, 3), after, each, each]
        for after in (False, True)
        for each in (False, True)
    ],
    "band_solve": lambda: [
        [_rand(3, 2, 37, 133), _band_gram(2, 37, 133), rho]
        for rho in (torch.full((1, 1, 1, 1), 0.1), _damping(1, 2, 37, 133))
    ],
    "selective_scan": lambda: [_scan(3, 70, 90, 16)],
    "selective_scan_backward": lambda: [[_rand(3, 70, 90), *_scan(3, 70, 90, 16)]],
    "shrink_groups": lambda: [
        [_rand(2, 8, 40, 50), _groups(2, 500, 24, 2000), _levels(2), 4],
        [_rand(1, 3, 40, 50), _groups(1, 70, 48, 2000), _levels(1), 5],
    ],
    "orthogonal_iteration": lambda: [[*_moments(5, 31, 8), 3], [*_moments(1, 40, 40), 16]],
    "convolve3x3": lambda: [
        [_rand(2, 17, 40, 50), _rand(33, 17, 3, 3), _rand(33), None, False],
        [_rand(1, 64, 20, 30), _rand(64, 64, 3, 3), _rand(64), _rand(1, 64, 20, 30), True],
    ],
    "convolve3x3_backward": lambda: [
        [_rand(2, 33, 40, 50), _rand(2, 17, 40, 50)],
        [_rand(1, 64, 20, 30), _rand(1, 64, 20, 30)],
    ],
}
NAMES = [*CAMERA, *OTHERS]
ONLY_REFERENCE = {"tv_prox_backward"}
ONLY_CPU = {
    "convolve3x3",
    "convolve3x3_backward",
}  # the kernels of CUDA, and their emulation, lack it
every_op = pytest.mark.parametrize("name", NAMES)


def _rand(*shape):
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) - 1


def _scan(batch, length, channels, states):
    """Sequences whose states decay."""
    rates = -1 - _rand(1, channels, states)
    of_states = [_rand(batch, length, states) + shift for shift in (0.0, 0.3)]
    return [_rand(batch, length, channels), 0.5 + 0.5 * _rand(batch, length, channels), rates,
            *of_states]  # fmt: skip


def _moments(batch, size, rank):
    """Symmetric matrices, and orthonormal columns."""
    spectra, near = _rand(batch, size, size + 1), _rand(batch, size, rank)
    return spectra @ spectra.mT, torch.linalg.qr(near)[0].contiguous()


def _groups(batch, count, matches, pixels):
    """Positions of patches, a few of which reach beyond the image."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-5, pixels + 5, (batch, count, matches), generator=generator)


def _levels(batch):
    return torch.tensor([1.5, 0.4])[:batch]


def _damping(*shape):
    """Some pixels have no influence."""
    rho = 1.1 + _rand(*shape)
    return torch.where(rho > 1.9, torch.inf, rho)


def _taps(bands, count):
    """Weights for two samples or three, and starts that reach over both ends of a detector."""
    samples = 2 if bands == 5 else 3
    starts = torch.linspace(-4, 39 if bands == 9 else 11, bands).round().long()
    return _rand(samples, bands, count), torch.stack([starts + i for i in range(samples)])


def _band_gram(shots, height, detector):
    taps, starts = ops.linear_taps(torch.linspace(0.2, 7.7, 5))
    return ops.gram_taps(_rand(shots, 5, height, detector - 8), taps, starts, detector).contiguous()


@pytest.fixture
def arguments(camera_arguments):
    def build(name, **options):
        if name in OTHERS:
            return OTHERS[name]()
        return camera_arguments(name, **options)

    return build


def _tensors(args):
    return (i for i, value in enumerate(args) if _is_floating(value))


def _is_floating(value):
    return isinstance(value, Tensor) and value.is_floating_point()


def _convert(args, change):
    return [change(value) if _is_floating(value) else value for value in args]


@pytest.mark.usefixtures("compiled")
def test_every_operator_is_here():
    """A new operator must get a case, in `CAMERA` or `OTHERS`, and a kernel."""
    assert set(NAMES) == set(SCHEMAS) - ONLY_REFERENCE
    cpu = torch.device("cpu")
    compiled = {name for name in SCHEMAS if ops.backend(cpu, name) == "compiled"}
    emulated = "CASSI_EMULATED_ORDER" in os.environ
    assert compiled == set(NAMES) - (ONLY_CPU if emulated else set())


def _sliced(value):
    """Equal values in every third column of a larger tensor, between values that must not count."""
    wide = torch.full((*value.shape[:-1], 3 * value.shape[-1] + 2), torch.nan, dtype=value.dtype)
    wide[..., 2::3] = value
    return wide[..., 2::3]


def _narrowed(value):
    large = torch.full([size + 2 for size in value.shape], torch.nan, dtype=value.dtype)
    for dim, size in enumerate(value.shape):
        large = large.narrow(dim, 1, size)
    return large.copy_(value)


# Applied to every tensor with two dimensions or more.
LAYOUTS = {
    "channels_last": lambda t: t.movedim(-3, -1).contiguous().movedim(-1, -3) if t.ndim > 2 else t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "first_innermost": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "sliced": _sliced,
    "narrowed": _narrowed,
    "expanded_first": lambda t: t[:1].expand_as(t),
    "expanded_last": lambda t: t[..., :1].expand_as(t),
    "one_value": lambda t: t.flatten()[0].expand_as(t),
}


@every_op
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name, layout, parity, arguments):
    """All tensors in a layout, one of them, all but one; in float32 and converted."""
    options = {"shots": 1 if name == "ratio_inverse" else 2, "samples": 2, "mask_bands": 5}
    options |= {"rho": "pixels"}
    plain = arguments(name, **options)
    if (name, layout) == ("band_solve", "one_value"):  # singular unless the diagonal dominates
        plain[2] = plain[2] + 8 * plain[1].flatten()[0]
    turned = _convert(plain, lambda t: LAYOUTS[layout](t) if t.ndim > 1 else t)
    if layout.startswith("expanded") or layout == "one_value":
        for i in _tensors(plain):  # a gram that is one
            if plain[i].ndim == 5 and plain[i].shape[1] == plain[i].shape[2]:
                turned[i] = plain[i]
    cases = [turned]
    for i in _tensors(plain):
        cases.append([*plain[:i], turned[i], *plain[i + 1 :]])
        cases.append([*turned[:i], plain[i], *turned[i + 1 :]])
    for case in cases:
        parity(name, *case)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        parity(name, *_convert(turned, lambda t, d=dtype: _keep_strides(t, d)))


def _keep_strides(value, dtype):
    """Convert a tensor with all memory it lies in."""
    storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return torch.as_strided(storage.to(dtype), value.shape, value.stride(), value.storage_offset())


@every_op
def test_one_mask_and_gram_for_all(name, parity, arguments):
    """Of one sample and band, in every layout."""
    for turn in LAYOUTS.values():
        args = arguments(name)
        parity(name, *_convert(args, lambda t, f=turn: f(t) if t.ndim == 5 else t))


@every_op
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_stays_where_it_belongs(name, value, parity, arguments):
    """The same results are spoilt as in the reference; some operators have tests of their own."""
    if name.startswith(("tv_", "convolve3x3")):
        return
    for i in _tensors(arguments(name)):
        for place in (0.0, 0.4, 1.0):
            args = arguments(name)
            args[i].view(-1)[round(place * (args[i].numel() - 1))] = value
            parity(name, *args)


@every_op
@pytest.mark.usefixtures("compiled")
def test_same_bits_for_every_thread_count(name, camera_arguments, assert_same_bits):
    shares = [(1, 1), (1, 3)] if name == "ratio_inverse" else [(1, 1), (1, 3), (3, 1)]
    cases = (
        LARGE[name]()
        if name in LARGE
        else [
            camera_arguments(name, (3, 9, 37, 133), 2, *share, rho=rho)
            for share in shares
            for rho in ((0.1,), "pixels")
        ]
    )

    def run():
        results = [getattr(operators, name)(*args) for args in cases]
        return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]

    assert_same_bits(run)


KINDS = "mixed_dtypes or sizes or tiles or lengths or cells or channels_last or conversions"


@pytest.mark.release
@pytest.mark.parametrize(
    ("isa", "chosen"),
    [
        ("baseline", KINDS),
        pytest.param("baseline", "geometry", marks=pytest.mark.thorough),
        pytest.param(
            *("avx2", f"geometry or {KINDS}"),
            marks=pytest.mark.skipif(
                torch.backends.cpu.get_cpu_capability() == "AVX2", reason="every test runs in it"
            ),
        ),
    ],
)
@pytest.mark.usefixtures("compiled")
def test_other_instruction_sets(isa, chosen):
    """What this processor does not choose by itself, in a process of its own."""
    files = sorted(Path(__file__).parent.glob("test_compiled*.py"))
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    command += ["-k", f"({chosen}) and not instruction"]
    python(*command, CASSI_ISA=isa, OMP_NUM_THREADS="1")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc")
def test_large_results_ask_for_large_pages():
    """Page by page of 4 KiB, new memory takes longer than what is computed into it."""
    if ops.backend(torch.device("cpu")) != "compiled":
        pytest.skip("the operators are not compiled for the CPU")
    x = ops.adjoint(torch.ones(1, 512, 562), torch.ones(512, 512), 26, 2)
    middle = x.data_ptr() + x.numel() * x.element_size() // 2
    flags, inside = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if first := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(first[1], 16) <= middle < int(first[2], 16)
        elif inside and line.startswith("VmFlags"):
            flags = line
    if "hg" not in flags.split() and not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("the kernel has no large pages")
    assert "hg" in flags.split()


def _large(value, dtype=torch.float32):
    y = torch.full((2, 1, 256, 310), value, dtype=dtype)
    return ops.adjoint(y, torch.ones(256, 256, dtype=dtype), 28, 2)


def test_large_results_are_tensors_like_others():
    x = _large(1.0)
    assert x.is_contiguous()
    x.add_(1).share_memory_()
    assert x.clone().resize_(3, 5).shape == (3, 5)
    assert x.min() == 2
    cube = torch.ones(1, 28, 256, 256).contiguous(memory_format=torch.channels_last)
    y, mask = torch.zeros(1, 1, 256, 310), torch.ones(256, 256)
    stepped = ops.data_step(cube, y, mask, 2, 1.0)
    assert stepped.is_contiguous(memory_format=torch.channels_last)


def test_memory_is_kept_for_the_next_large_result_but_not_under_a_budget():
    """A command with a budget of memory sets CASSI_KEEP_RESULTS; a process reads it once."""
    code = """
import os, resource, torch
from cassi import ops
y, mask = torch.ones(8, 1, 256, 310), torch.ones(256, 256)
def held():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() >> 20
def print_growth():
    before = held()
    ops.adjoint(y, mask, 28, 2)
    print(held() - before, flush=True)
def large(value, dtype=torch.float32):
    y = torch.full((2, 1, 256, 310), value, dtype=dtype)
    return ops.adjoint(y, torch.ones(256, 256, dtype=dtype), 28, 2)
def use_again():
    x = large(1.0)
    part, array = x[:, 3], x.numpy()
    place = x.data_ptr()
    del x
    other = large(2.0)
    assert other.data_ptr() != place  # a view and an array still have it
    assert part.min() == array.min() == 1
    del part, array
    again = large(3.0)
    assert again.data_ptr() == place
    assert other.max() == 2
    assert again.min() == again.max() == 3
    assert large(4.0, torch.float64).min() == 4  # of another size
for keep, run in ("0", print_growth), ("1", print_growth), ("", use_again):
    if os.fork() == 0:
        os.environ["CASSI_KEEP_RESULTS"] = keep
        run()
        os._exit(0)
    assert os.wait()[1] == 0
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc")
    if ops.backend(torch.device("cpu")) != "compiled":
        pytest.skip("the operators are not compiled for the CPU")
    # AddressSanitizer keeps what is freed, to tell who uses it.
    sanitizer = f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=1".lstrip(":")
    printed = python("-c", code, ASAN_OPTIONS=sanitizer, OMP_NUM_THREADS="1")
    without, kept = map(int, printed.split())
    assert without < 30 < kept
