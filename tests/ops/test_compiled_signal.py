"""Compiled convolution and trilinear interpolation against their reference."""

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def _rand(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1).to(dtype)


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("taps", [1, 2, 7, 64, 1025])
def test_lengths_of_convolutions(rows, taps, parity):
    ulps = 4 + taps / 16  # the error of a sum grows with its length
    for n in (1, 2, 17, 1023, 1024, 1025, 3000):
        parity("convolve1d", _rand(rows, n), _rand(rows, taps), ulps=ulps)
        if n >= taps:
            parity("correlate1d", _rand(rows, n), _rand(rows, taps), ulps=ulps)


@pytest.mark.parametrize("cells", [0, 1, 255, 256, 600])
@pytest.mark.parametrize("channels", [0, 1, 7, 16, 33])
def test_cells_and_channels(cells, channels, parity):
    features, points = _rand(cells, 8, channels), _rand(cells, 3)
    parity("trilinear", features, points)
    parity("trilinear_backward", _rand(cells, channels), features, points)


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_mixed_dtypes(first, second, parity):
    for name in ("convolve1d", "correlate1d"):
        parity(name, _rand(3, 40, dtype=first), _rand(3, 9, dtype=second))
    features, points = _rand(5, 8, 19, dtype=first), _rand(5, 3, dtype=second)
    parity("trilinear", features, points)
    for grad in DTYPES:
        parity("trilinear_backward", _rand(5, 19, dtype=grad), features, points)


def test_points_outside_the_cell(parity):
    features, points = _rand(5, 8, 19), 5 * _rand(5, 3)
    parity("trilinear", features, points, ulps=512)
    parity("trilinear_backward", _rand(5, 19), features, points, ulps=512)
