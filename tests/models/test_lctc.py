"""The network of LCTC against what its authors' code returns for weights by a rule."""

import pytest
import torch

from cassi.models.published.lctc import LCTC

RECORDED = """
    -0.219698096 -0.279482037 -0.195432055 -0.325678932 -0.391120209 -0.151088402 -0.122109181
    -0.379458682 -0.223001851 -0.060603080 -0.026707173 -0.085182844 -0.069342994  0.099830891
    -0.047736234  0.227098881 -0.087385707 -0.152168607 -0.188113748 -0.131504008 -0.217871925
    -0.136107574 -0.197904019 -0.155456050 -0.486072158 -0.324131152 -0.109191885
"""
"""Of a code of 9×13 pixels and 3 bands, every fourth row and sixth column."""


def by_rule(bands):
    """Return a network whose weights follow from their number."""
    network, start = LCTC(bands).double(), 0
    with torch.no_grad():
        for weight in network.parameters():
            number = torch.arange(start, start + weight.numel(), dtype=torch.float64)
            value = torch.cos(number.square() * 0.37 + 0.1)
            norm = weight.ndim == 1
            scaled = 0.5 + 0.2 * value if norm else value * (2 / weight[0].numel()) ** 0.5
            weight.copy_(scaled.view_as(weight))
            start += weight.numel()
    return network


def code(height, width):
    return torch.sin(0.7 * torch.arange(4 * height * width).double()).view(1, 4, height, width)


def test_computes_what_the_authors_code_computes():
    x = by_rule(3)(code(9, 13))
    expected = torch.tensor([float(value) for value in RECORDED.split()], dtype=torch.float64)
    torch.testing.assert_close(x[0, :, ::4, ::6].flatten(), expected, rtol=0, atol=1e-8)


def test_has_as_many_weights_as_published():
    network = LCTC(28)
    assert sum(weight.numel() for weight in network.parameters()) == 248080
    assert not list(network.buffers())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 16, 16), r"LCTC: expected images \(N, 4, H, W\), got \(1, 3, 16, 16\)"),
        ((1, 4, 8, 16), "LCTC: expected 9 rows and columns, got 8 and 16"),
    ],
)
def test_refuses_other_codes(shape, message):
    with pytest.raises(ValueError, match=message):
        LCTC(3)(torch.zeros(shape))
