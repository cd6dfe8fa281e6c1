"""What displaces a mask: the same as `Geometry` where both have it."""

from dataclasses import replace

import pytest
import torch

from cassi.calibration.geometry import Geometry
from cassi.calibration.geometry import moved_mask as by_geometry
from cassi.camera.displacement import BLURS, DISPLACEMENTS, moved_mask
from cassi.systems import SDCassi
from tests.shared import uniform

NONE = dict.fromkeys((*DISPLACEMENTS, *BLURS), 0.0)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    ("values", "geometry", "across"),
    [
        ({"across": 0.5}, Geometry(), 0.5),
        ({"rotation": 1.0}, Geometry(rotation=1.0), 0.0),
        ({"magnification": 0.02}, Geometry(magnification=1.02), 0.0),
        ({"blur": 0.5}, Geometry(variance=0.5), 0.0),
    ],
)
def test_a_mask_is_moved_as_by_a_geometry(axis, values, geometry, across):
    smooth = uniform(10, 12).repeat_interleave(5, 0).repeat_interleave(5, 1)
    camera = SDCassi(smooth, 3, axis=axis)
    if axis == -2:  # its degrees are those of the mask as displayed
        geometry = replace(geometry, rotation=-geometry.rotation)
    wanted = by_geometry(camera, geometry.with_shift(across, 0.0, axis))
    found = moved_mask(camera, NONE | values)
    inner = (..., slice(6, -6), slice(6, -6))
    away = (found - wanted)[inner]
    moved = (camera.mask - wanted)[inner]
    assert away.square().mean() < 0.2 * moved.square().mean()  # interpolated otherwise


def test_nothing_displaced_is_the_mask_itself():
    camera = SDCassi(uniform(20, 24), 3)
    torch.testing.assert_close(moved_mask(camera, NONE), camera.mask, atol=1e-5, rtol=0)


def test_a_bow_displaces_the_middle_otherwise_than_the_sides():
    rows = torch.linspace(0, 1, 40).view(-1, 1).expand(40, 40).contiguous()
    camera = SDCassi(rows, 3)
    found = moved_mask(camera, NONE | {"across vv": 1.0})[0, 0]
    lowered = (rows - found)[20] * 39  # pixels
    assert lowered[20] == pytest.approx(0, abs=0.05)
    assert lowered[[0, -1]].tolist() == pytest.approx([0.95, 0.95], abs=0.1)
