"""What displaces a mask."""

import math

import pytest
import torch

from cassi.camera.displacement import BLURS, DISPLACEMENTS, PARTS, moved_mask
from cassi.systems import SDCassi
from cassi.systems.masks import move_mask
from tests.shared import uniform

NONE = dict.fromkeys((*DISPLACEMENTS, *BLURS), 0.0)


def blur(mask, variance):
    """Blur by the discrete Gaussian (Lindeberg 1990), whose variance is exact however small.

    M(ω) exp(t (cos ω − 1)) along rows and columns, t = σ²; the mask is continued by its border.
    """
    reach = math.ceil(4 + 4 * math.sqrt(variance))
    mask = torch.nn.functional.pad(mask.double(), (reach,) * 4, mode="replicate")
    for axis in (-1, -2):
        frequency = 2 * math.pi * torch.fft.fftfreq(mask.shape[axis], dtype=torch.float64)
        transfer = torch.exp(variance * (frequency.cos() - 1))
        spectrum = torch.fft.fft(mask, dim=axis) * (transfer if axis == -1 else transfer[:, None])
        mask = torch.fft.ifft(spectrum, dim=axis).real
    return mask[..., reach:-reach, reach:-reach]


@pytest.mark.parametrize("parts", [1, PARTS])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    ("values", "shift", "rotation", "magnification", "variance"),
    [
        ({"across": 0.5}, 0.5, 0.0, 1.0, 0.0),
        ({"rotation": 1.0}, 0.0, 1.0, 1.0, 0.0),
        ({"magnification": 0.02}, 0.0, 0.0, 1.02, 0.0),
        ({"blur": 0.5}, 0.0, 0.0, 1.0, 0.5),
    ],
)
def test_a_mask_is_moved_as_twins_move_it(
    axis, values, shift, rotation, magnification, variance, parts
):
    smooth = uniform(10, 12).repeat_interleave(5, 0).repeat_interleave(5, 1)
    camera = SDCassi(smooth, 3, axis=axis)
    # Its degrees are those of the mask as displayed.
    where = ((shift, 0.0), rotation) if axis == -1 else ((0.0, shift), -rotation)
    wanted = blur(move_mask(camera.mask, *where, magnification), variance)
    found = moved_mask(camera, NONE | values, parts)
    inner = (..., slice(6, -6), slice(6, -6))
    away = (found - wanted)[inner]
    moved = (camera.mask - wanted)[inner]
    # A sensor's mask is interpolated otherwise.
    assert away.square().mean() < (0.002 if parts == 1 else 0.2) * moved.square().mean()


def test_a_bow_displaces_the_middle_otherwise_than_the_sides():
    rows = torch.linspace(0, 1, 40).view(-1, 1).expand(40, 40).contiguous()
    camera = SDCassi(rows, 3)
    found = moved_mask(camera, NONE | {"across vv": 1.0})[0, 0]
    lowered = (rows - found)[20] * 39  # pixels
    assert lowered[20] == pytest.approx(0, abs=0.05)
    assert lowered[[0, -1]].tolist() == pytest.approx([0.95, 0.95], abs=0.1)
