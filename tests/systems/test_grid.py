"""Grids along the dispersion, and the bands of a camera that are read from them."""

import numpy as np
import pytest
import torch

from cassi.systems import SDCassi, dot_test
from cassi.systems.grid import BroadbandCamera, SpectralGrid, has_grid, measuring_camera

PRISM = (0.4, 5.1, 8.7, 11.4, 13.5, 15.1)


def mask(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("named", [PRISM, PRISM[::-1], (0.0, 1.5, 3.0)])
@pytest.mark.parametrize("pitch", [0.7, 1.0, 2.0])
def test_the_outermost_bands_lie_on_the_grid(named, pitch):
    grid = SpectralGrid.from_bands(named, pitch, 2.0)
    more = round(2.0 / pitch)
    assert grid.offsets[more] == pytest.approx(named[0])
    assert grid.offsets[-1 - more] == pytest.approx(named[-1])
    assert grid.pitch == pytest.approx(pitch, rel=0.3)
    assert np.ptp(np.diff(grid.offsets)) < 1e-9


def test_bands_of_the_grid_are_read_as_they_are():
    grid = SpectralGrid.from_bands((3.0, 2.0, 1.0, 0.0), 1.0, 2.0)
    assert np.allclose(grid.reading, np.eye(8)[2:6], atol=1e-12)


def test_light_of_all_wavelengths_is_read_without_loss():
    grid = SpectralGrid.from_bands(PRISM, 1.0, 4.0)
    density = np.cos(np.linspace(0, 1, len(grid.offsets)))
    first, last = grid.edges[0], grid.edges[-1]
    fine = np.linspace(first, last, 20001)
    light = np.interp(fine, grid.offsets, density)
    total = np.trapezoid(light, fine) / grid.pitch
    assert (grid.reading @ density).sum() == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("named", [PRISM, PRISM[::-1]])
def test_what_is_spread_is_read_again(named):
    grid = SpectralGrid.from_bands(named, 1.0, 2.0)
    widths = np.abs(np.diff(grid.edges))
    smooth = widths * (2 + np.linspace(0, 1, len(named)))
    again = grid.reading @ (grid.spreading @ smooth)
    assert np.allclose(again[1:-1], smooth[1:-1], rtol=0.03)


def test_a_grid_may_be_coarser():
    grid = SpectralGrid.from_bands([0.0, 17.3, 60.0], 1.0, 2.0)
    coarse = grid.coarser(40)
    assert len(grid.offsets) > 60
    assert 36 <= len(coarse.offsets) <= 40
    assert coarse.band_offsets == grid.band_offsets
    assert grid.coarser(100) is grid


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("by", [False, True])
def test_the_camera_of_a_grid_has_all_else(axis, by):
    given = SDCassi(mask(12, 14), 6, axis=axis, offsets=PRISM, detector=31, measured_mask=by)
    given.is_broadband = True
    system = given.weighted(bad_pixels=torch.rand(given.measurement_shape) < 0.1)
    grid = SpectralGrid.from_bands(PRISM, 1.0, 1.0)
    camera = grid.camera(system)
    assert camera.cube_shape == (len(grid.offsets), 12, 14)
    assert camera.measurement_shape == system.measurement_shape
    assert torch.equal(camera.good_pixels, system.good_pixels)
    assert camera.is_broadband
    assert camera.unweighted.measured_mask is by
    light = BroadbandCamera(system, grid)
    assert light.cube_shape == system.cube_shape
    x = torch.rand(1, 6, 12, 14)
    assert torch.equal(light(x), camera(grid.spread(x)))
    dot_test(light)


def test_a_method_without_a_grid_measures_by_the_camera():
    camera = SDCassi(mask(8, 9), 2, offsets=[0.0, 1.5])
    assert measuring_camera(camera, object()) is camera


@pytest.mark.parametrize(
    ("all_light", "more", "wanted"),
    [
        (True, {"offsets": PRISM}, True),
        (True, {"offsets": PRISM[::-1]}, True),
        (True, {"step": 1.5}, True),
        (True, {"step": 2}, True),
        (True, {"step": -1}, False),
        (False, {"offsets": PRISM}, False),
        (True, {"offsets": [0, 3, 1, 4, 5, 6]}, False),
    ],
)
def test_which_cameras_have_a_grid(all_light, more, wanted):
    camera = SDCassi(mask(8, 9), 6, **more)
    camera.is_broadband = all_light
    assert has_grid(camera) is wanted
    assert has_grid(camera.weighted()) is wanted
    masks = SDCassi(mask(6, 8, 9), 6, **more)
    masks.is_broadband = all_light
    assert not has_grid(masks)
