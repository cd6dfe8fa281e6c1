"""The oracles of the operators.

The camera as a dense matrix, filled element by element; and the pure-torch reference in float64,
which compiled kernels are held against.
"""

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from cassi import ops
from cassi.ops import _reference
from cassi.ops._library import REFERENCES, operators

RANK = 3
# Whose compiled kernels are held against the reference; scripts/checks/gpu.sh says "cuda".
DEVICE = torch.device(os.environ.get("CASSI_TEST_DEVICE", "cpu"))
# Sums of products, whose rounding errors are relative to the same sum of absolute values.
LINEAR = ["forward", "adjoint", "add_adjoint", "mask_adjoint", "ratio_inverse", "gram"]
LINEAR += ["convolve1d", "correlate1d", "forward_taps", "adjoint_taps", "mask_adjoint_taps"]
LINEAR += ["forward_subspace", "adjoint_subspace", "add_adjoint_taps"]
ULPS = dict.fromkeys(LINEAR, 4.0)
ULPS |= {
    "convolve3x3": 256.0,
    "convolve3x3_backward": 256.0,
}  # Winograd's transforms enlarge errors
ULPS |= {"orthogonal_iteration": 4096.0}  # of what is left of columns that are nearly parallel


def full_mask(mask, batch, bands):  # (B, K, C, H, W)
    """Write out a mask of any accepted shape for every sample, shot and band."""
    if mask.ndim == 2:
        mask = mask[None]
    while mask.ndim < 5:
        mask = mask[None]
    _, shots, _, height, width = mask.shape
    return np.broadcast_to(mask, (batch, shots, bands, height, width))


def camera_matrix(mask, step):  # (K·H·W', C·H·W)
    """Fill A of one sample from y[k, h, w + o(c)] += m[k, c, h, w] x[c, h, w]."""
    shots, bands, height, width = mask.shape
    wide = width + (bands - 1) * abs(step)
    matrix = np.zeros((shots, height, wide, bands, height, width))
    for k, c, h, w in np.ndindex(mask.shape):
        start = c * step if step >= 0 else (bands - 1 - c) * abs(step)
        matrix[k, h, w + start, c, h, w] += mask[k, c, h, w]
    return matrix.reshape(shots * height * wide, bands * height * width)


@pytest.fixture(scope="session")
def camera_matrices():
    """`(mask, batch, bands, step)` → one dense matrix per sample."""

    def build(mask, batch, bands, step):
        return [camera_matrix(sample, step) for sample in full_mask(mask, batch, bands)]

    return build


@pytest.fixture(scope="session")
def full_masks():
    """`full_mask`, for tests that loop themselves."""
    return full_mask


def schema(name):
    """Return the names of an operator's arguments, among others."""
    return getattr(operators, name).default._schema


def _results(value):
    return (value,) if isinstance(value, Tensor) else value


def _scales(name, args, expected):
    """Estimate what rounding errors of the sums are relative to."""
    tensors = [a for a in args if _is_floating(a)]
    if name in LINEAR:
        positive = [a.abs() if _is_floating(a) else a for a in args]
        if name == "ratio_inverse":  # divides by the mask
            positive[1] = args[1]
        return _results(REFERENCES[name](*positive))
    largest = max(_peak(value) for value in tensors) * _condition(name, args)
    return tuple(torch.tensor(max(_peak(value), largest)) for value in expected)


def _condition(name, args):
    """Bound the condition number of G + ρI, which multiplies errors where shots are mixed."""
    named = dict(zip((a.name for a in schema(name).arguments), args, strict=True))
    if "gram" not in named or named["gram"].shape[1] == 1:
        return 1.0
    gram, rho = named["gram"], named["rho"]
    return 1.0 + gram.shape[1] * _peak(gram) / max(rho.min().item(), 1e-3)


def _is_floating(value):
    return isinstance(value, Tensor) and value.is_floating_point()


def _peak(value):
    finite = value[value.isfinite()].abs()
    return finite.max().item() if finite.numel() else 0.0


def _assert_close(name, args, got, ulps):
    names = [argument.name for argument in schema(name).arguments]
    exact, sums = [], torch.float32
    for argument, value in zip(names, args, strict=True):
        if not _is_floating(value):
            exact.append(value)
            continue
        # The dtype of a gram says which of its eigenvalues are rounding errors.
        exact.append(value if argument == "gram" else value.double())
        if argument not in ("weight", "threshold", "rho", "dual", "grad", "taps"):
            sums = torch.promote_types(sums, value.dtype)
    expected = _results(REFERENCES[name](*exact))
    for g, e, scale in zip(got, expected, _scales(name, exact, expected), strict=True):
        assert g.shape == e.shape
        if g.numel() == 0:
            continue
        own = torch.finfo(g.dtype)
        rounded = e.to(g.dtype).double()  # infinite where the result is out of range
        allowed = 0.51 * own.eps * e.abs() + own.smallest_normal * own.eps
        allowed += ulps * torch.finfo(sums).eps * scale.nan_to_num(0, 0, 0)
        wrong = ~((g.double() - e).abs() <= allowed) & (g.double() != rounded)
        wrong &= ~(g.isnan() & e.isnan())
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            pytest.fail(
                f"{name}: {int(wrong.sum())} of {g.numel()} values differ, the first at {at}: "
                f"got {g[at].item()}, expected {e[at].item()}"
            )


@pytest.fixture(scope="session")
def compiled():
    """Skip where there is nothing to compare with the reference."""
    if ops.backend(DEVICE) != "compiled":
        pytest.skip(f"the operators are not compiled for the device {DEVICE}")


@pytest.fixture(scope="session")
def parity(compiled):
    """`(name, *arguments)` → results, checked against the reference in float64.

    Checked as well: the fake kernel foretold shape, dtype and strides, and no argument has changed.
    """

    def run(name, *args, ulps=None):
        given = args
        args = tuple(_on_device(value) if isinstance(value, Tensor) else value for value in args)
        tensors = [value for value in args if isinstance(value, Tensor)]
        before = [(value, value._version, value.clone()) for value in tensors]
        kernel = getattr(operators, name)
        got = _results(kernel(*args))
        for value, version, copy in before:
            assert value._version == version
            assert torch.equal(value.nan_to_num(7.0), copy.nan_to_num(7.0))
        foretold = _results(
            kernel(*(_on_meta(value) if isinstance(value, Tensor) else value for value in args))
        )
        for g, f in zip(got, foretold, strict=True):
            assert (g.shape, g.dtype, g.stride()) == (f.shape, f.dtype, f.stride())
        got = tuple(value.cpu() for value in got)
        _assert_close(name, given, got, ulps or ULPS.get(name, 16.0))
        return got

    return run


def _on_device(value):
    """Move all memory that a tensor is a view of, with what lies around its values."""
    memory = value.untyped_storage()
    moved = memory if DEVICE.type == "cpu" else memory.to(device=DEVICE)
    empty = torch.empty(0, dtype=value.dtype, device=DEVICE)
    return empty.set_(moved, value.storage_offset(), value.shape, value.stride())


def _on_meta(value):
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def damping_per_pixel(shape):
    """Return a ρ for each detector pixel, some of which have no influence, float64."""
    generator = torch.Generator().manual_seed(sum(shape))
    rho = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    rho[torch.rand(shape, generator=generator) < 0.15] = torch.inf
    return rho


@pytest.fixture(scope="session", name="damping_per_pixel")
def _damping_per_pixel():
    return damping_per_pixel


@pytest.fixture(scope="session")
def camera_arguments():
    """`(name, ...)` → arguments of one of the camera's operators, by the names in its schema.

    With `rho="pixels"` there is a ρ for each detector pixel.
    """

    def build(
        name,
        size=(2, 5, 9, 33),
        step=2,
        shots=1,
        samples=1,
        mask_bands=1,
        dtypes=(torch.float32,) * 3,
        rho=(0.1,),
    ):
        batch, bands, height, width = size
        wide = _reference.detector_width(width, bands, step)
        generator = torch.Generator().manual_seed(batch + 3 * bands + 5 * height + 7 * width)

        def rand(*shape):
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        cube, measurement, transmission = dtypes
        x, v, grad = ((rand(*size) - 0.5).to(cube) for _ in range(3))
        y = (rand(batch, shots, height, wide) - 0.5).to(measurement)
        mask = 0.3 + 0.7 * rand(samples, shots, mask_bands, height, width)
        mask[..., ::3, 1::4] = 0
        mask = mask.to(transmission)
        wider = torch.promote_types(cube, torch.float32)
        if rho == "pixels":
            damping = damping_per_pixel((samples, shots, height, wide)).to(wider)
        else:
            damping = torch.tensor(rho, dtype=wider).view(-1, 1, 1, 1)
        values = {
            "x": x,
            "v": v,
            "components": x.repeat(1, RANK, 1, 1)[:, :RANK].contiguous(),
            "basis": (rand(samples, bands, RANK) - 0.5).to(transmission),
            "grad": grad,
            "y": y,
            "r": y,
            "mask": mask,
            "gram": _reference.gram(mask, bands, step),
            "rho": damping,
            "step": step,
            "bands": bands,
            "channels_last": False,
            "per_sample": samples > 1,
            "per_band": mask_bands > 1,
            "need_mask": True,
            "need_rho": True,
        }
        return [values[argument.name] for argument in schema(name).arguments]

    return build
