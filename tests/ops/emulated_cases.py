"""What only the CUDA kernels do, on their emulation: run by test_emulated.py, in its process."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
from kernel_calls import CAMERA as OPS
from kernel_calls import SOLVING
from shared import before_a_push, diagonal
from torch import Tensor

from cassi import ops
from cassi.ops._library import operators

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Shared memory that a block may ask for, in KB: none beyond that of every device, RTX, H100.
LIMITS = [48, 99, 227]
CHUNKED = [name for name in OPS if name not in ("gram", "gram_solve")]
every_op = pytest.mark.parametrize("name", OPS)


def _channels_last(value):
    return value.movedim(-3, -1).contiguous().movedim(-1, -3) if value.ndim > 2 else value


def _misaligned(value):
    """Equal values, one element behind where memory begins."""
    behind = torch.empty(value.numel() + 1, dtype=value.dtype)[1:].view(value.shape)
    return behind.copy_(value)


def _sliced(value):
    wide = torch.full((*value.shape[:-1], 2 * value.shape[-1] + 1), torch.nan, dtype=value.dtype)
    wide[..., 1::2] = value
    return wide[..., 1::2]


def _misaligned_pixels(value):
    return _misaligned(value.movedim(-3, -1)).movedim(-1, -3) if value.ndim > 2 else value


LAYOUTS = [lambda value: value, _channels_last, _misaligned, _misaligned_pixels, _sliced]


def _turn(args, layout):
    return [layout(a) if isinstance(a, Tensor) and a.ndim > 1 else a for a in args]


@pytest.mark.parametrize(
    ("name", "dtype"), before_a_push(product(OPS, DTYPES), diagonal(OPS, DTYPES))
)
def test_units_of_every_width(name, dtype, parity, camera_arguments):
    """Rows and pixels are copied in units of 2 to 16 bytes, as sizes and addresses permit."""
    for bands, width, step in (
        (8, 16, 2),
        (8, 16, 1),
        (7, 12, 1),
        (4, 12, 4),
        (28, 34, 2),
        (6, 7, 2),
    ):
        size = (2, bands, 3, width)
        for shares, rho in (((1, 1), (0.1,)), ((2, bands), "pixels")):
            args = camera_arguments(name, size, step, 1, *shares, dtypes=(dtype,) * 3, rho=rho)
            for layout in LAYOUTS:
                parity(name, *_turn(args, layout))
    if "channels_last" in str(getattr(operators, name).default._schema):
        args = camera_arguments(name, (2, 28, 3, 16), -2, dtypes=(dtype,) * 3)
        parity(name, *args[:-1], True)


@pytest.mark.parametrize(
    ("name", "limit"), before_a_push(product(CHUNKED, LIMITS), diagonal(CHUNKED, LIMITS))
)
def test_more_than_fits(name, limit, parity, camera_arguments, monkeypatch):
    """Bands in chunks, and rows that fit the shared memory of some devices only.

    Detectors of more columns than a block has threads, and of more than any block can hold.
    """
    monkeypatch.setenv("CASSI_EMULATED_SHARED", str(limit))
    sizes = [
        ((1, 70, 2, 259), 1),
        ((2, 17, 1, 1000), -3),
        ((1, 30, 2, 660), -2),
        ((1, 2, 1, 60001), 0),
    ]
    for (size, step), dtype in product(sizes, (torch.float32, torch.float64, torch.bfloat16)):
        if size[-1] > 60000 and dtype != torch.float32:
            continue
        for mask_bands, rho in ((1, (0.1,)), (size[1], "pixels")):
            args = camera_arguments(
                name, size, step, mask_bands=mask_bands, dtypes=(dtype,) * 3, rho=rho
            )
            parity(name, *args)
            parity(name, *_turn(args, _channels_last))
            if name in ("adjoint", "ratio_inverse"):
                parity(name, *args[:-1], True)


@pytest.mark.parametrize(
    "name", before_a_push(OPS, ["forward", "adjoint", "mask_adjoint", "data_step", "gram_solve"])
)
def test_few_blocks(name, parity, camera_arguments, monkeypatch):
    """A block that goes on to other rows, with the shared memory that it leaves.

    What comes in and what goes out of it may lie at addresses that are not equally even: threads
    then take other parts of it on the way out than on the way in.
    """
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", "2")
    for size, shots in product([(3, 8, 9, 33), (2, 7, 5, 16), (1, 70, 3, 259)], (1, 2)):
        if shots > 1 and name == "ratio_inverse":
            continue
        for shares, rho, step in product(((1, 1), size[:2]), ((0.1,), "pixels"), (-2, 1)):
            args = camera_arguments(name, size, step, shots, *shares, rho=rho)
            for layout in (LAYOUTS[0], _channels_last, _misaligned_pixels):
                parity(name, *_turn(args, layout))
            if name in ("adjoint", "ratio_inverse"):
                parity(name, *args[:-1], True)


@pytest.mark.parametrize("norm", range(3))
@pytest.mark.parametrize("limit", [2, 48, 227])
def test_few_blocks_of_total_variation(norm, limit, parity, monkeypatch):
    """Pixels of all bands that a block holds: none, 16 rows, 32; then several sweeps."""
    if norm > 0:  # single bands need more, and never all of it
        monkeypatch.setenv("CASSI_EMULATED_SHARED", str(limit))
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", "2")
    x, dual = torch.rand(2, 6, 70, 50), 0.05 * torch.rand(2, 2, 6, 70, 50)
    parity("tv_prox", x, torch.tensor([0.1]), 9, norm)
    parity("tv_prox_dual", x, torch.tensor([0.1]), None, 7, norm)
    parity("tv_prox_dual", _channels_last(x), torch.tensor([0.1, 0.2]), dual, 5, norm)
    parity("tv_prox_dual", x.bfloat16(), torch.tensor([0.1]), dual.double(), 2, norm)


@pytest.mark.parametrize(
    ("shots", "limit", "blocks"),
    before_a_push(
        [(1, 99, 2), (2, 2, 1000), (1, 2, 2), (2, 99, 1000), (5, 99, 1000), (5, 2, 2)],
        [(1, 99, 2), (2, 2, 1000)],
    ),
)
def test_bands_of_every_reach(shots, limit, blocks, parity, damping_per_pixel, monkeypatch):
    """A row of the detector by a block, in shared memory, or by a thread where it does not fit.

    The products that leave a column are fewer, or more, than the threads of a block.
    """
    monkeypatch.setenv("CASSI_EMULATED_SHARED", str(limit))
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", str(blocks))
    taps, starts = ops.linear_taps(torch.linspace(0.2, 7.7, 5))
    mask, r = torch.rand(1, shots, 5, 2, 33), torch.rand(2, shots, 2, 41) - 0.5
    spread = torch.cat([taps, 0.3 * taps.flip(-1)], -1)
    for weights, rho in product((taps[..., :1], taps, spread), (None, "pixels")):
        gram = ops.gram_taps(mask, weights, starts, 41).contiguous()
        damping = torch.full((1, 1, 1, 1), 0.2)
        if rho:
            damping = damping_per_pixel((2, shots, 2, 41)).float()
        parity("band_solve", r, gram, damping)
        parity("band_solve", _channels_last(r), gram.double(), damping)


@pytest.mark.parametrize("blocks", [1, 1000])
def test_more_bands_than_a_block_lists(blocks, parity, monkeypatch):
    """Samples with offsets of their own follow each other in a block."""
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", str(blocks))
    x, mask = torch.rand(2, 300, 9, 7), torch.rand(2, 1, 1, 9, 7)
    starts = torch.randint(-20, 80, (2, 300))
    parity("forward_taps", x, mask, torch.rand(2, 300, 2), starts, 70, False)


@pytest.mark.release
def test_groups_in_few_blocks(parity, monkeypatch):
    """More groups than blocks, more numbers and patches in all than a block has threads."""
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", "3")
    for matches, channels, patch in ((9, 8, 4), (48, 3, 2), (1, 70, 3), (2, 1, 1)):
        groups = torch.randint(0, 7 * 40, (2, 6, matches))
        image = torch.rand(2, channels, 7, 40)
        for layout, dtype in product(LAYOUTS, (torch.float32, torch.float64)):
            some = groups if layout is LAYOUTS[0] else groups[:, :4].contiguous()
            args = layout(image.to(dtype)), some, torch.tensor([0.8]), patch
            parity("shrink_groups", *args, ulps=64.0)  # of thousands of rotations


@pytest.mark.parametrize("limit", [1, 227])
def test_matrices_in_few_blocks(limit, parity, monkeypatch):
    """Columns in shared memory, or in scratch memory; more of them than a block has threads."""
    monkeypatch.setenv("CASSI_EMULATED_SHARED", str(limit))
    monkeypatch.setenv("CASSI_EMULATED_BLOCKS", "2")
    for size, rank in ((11, 5), (28, 8), (3, 3), (140, 130)):
        spectra, near = torch.rand(5, size, size + 2) - 0.5, torch.rand(5, size, rank) - 0.5
        for dtype in (torch.float64, torch.bfloat16):
            moments, frame = spectra @ spectra.mT, torch.linalg.qr(near)[0]
            parity("orthogonal_iteration", moments.to(dtype), frame.to(dtype), 2)


@every_op
def test_nothing(name, parity, camera_arguments):
    for batch, height in ((0, 3), (2, 0)):
        parity(name, *camera_arguments(name, (batch, 5, height, 7), 2))


def test_two_host_threads(camera_arguments):
    """Neither lowers the limit of shared memory that the other has just raised."""
    calls = [camera_arguments("data_step", (1, 28, 1, width), 0) for width in (460, 700, 1100)]
    expected = [operators.data_step(*args) for args in calls]

    def call(k):
        return torch.equal(operators.data_step(*calls[k % 3]), expected[k % 3])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(60)))


@pytest.mark.parametrize("name", SOLVING)
def test_lack_of_scratch_memory_reads_as_such(name, camera_arguments, monkeypatch):
    args = camera_arguments(name, (2, 5, 9, 33), 2, shots=5, mask_bands=5)
    monkeypatch.setenv("CASSI_EMULATED_MEMORY", "1")
    with pytest.raises(RuntimeError, match=r"can't allocate memory for [0-9]+ bytes"):
        getattr(operators, name)(*args)


def test_lack_of_memory_at_launch_reads_as_such(camera_arguments, monkeypatch):
    """In words that the commands know."""
    monkeypatch.setenv("CASSI_EMULATED_FAIL", "2")
    with pytest.raises(RuntimeError, match="can't allocate memory: kernel launch"):
        operators.forward(*camera_arguments("forward"))


def test_a_device_that_failed_before_is_not_called_full(camera_arguments, monkeypatch):
    monkeypatch.setenv("CASSI_EMULATED_MEMORY", "1")
    monkeypatch.setenv("CASSI_EMULATED_BROKEN", "1")
    with pytest.raises(RuntimeError, match="the device failed earlier"):
        operators.gram_solve(*camera_arguments("gram_solve", (2, 5, 9, 33), shots=5, mask_bands=5))


def test_a_device_of_too_little_shared_memory_is_told(parity, monkeypatch):
    """That of compute capability 7.5 has 64 KB."""
    monkeypatch.setenv("CASSI_EMULATED_SHARED", "64")
    x = torch.rand(1, 2, 40, 50)
    parity("tv_prox", x, torch.tensor([0.1]), 5, 0)
    with pytest.raises(RuntimeError, match=r"69632 bytes .* has 65536: use float32"):
        operators.tv_prox(x.double(), torch.tensor([0.1]), 5, 0)
