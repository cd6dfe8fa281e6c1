"""Fractions of a pixel, as a detector averages them: the twin is made on a finer grid."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import avg_pool2d, pad

from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.calibration import PARAMETERS, Frame, Geometry, calibrate, fit_geometry, moved_camera
from cassi.calibration.geometry import placed
from cassi.calibration.parameters import changed
from cassi.calibration.windows import Windows
from cassi.camera_search import by_solver
from cassi.metrics import psnr
from cassi.ops import linear_taps
from cassi.systems import SDCassi
from cassi.systems.photographed import sharp_taps
from scripts.benchmarks.fine_twin import FineTwin, enlarged
from tests.shared import smooth_scene

SHAPE, BANDS = (112, 128), 8
KEYS = ("down", "right", "dispersion", "dispersion_2")


@pytest.fixture(scope="module")
def scene():
    return enlarged(smooth_scene(BANDS, *SHAPE, disk=True), SHAPE, BANDS)


@pytest.mark.parametrize("step", [-1.5, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_plain_scenes_find_fractions_of_a_pixel(scene, step, seed):
    twin = FineTwin.drawn(SHAPE, BANDS, step, seed)
    true = placed(changed(Geometry(), twin.wanted), twin.system)
    fit = fit_geometry([Frame.snapshot(twin.measure(scene), BANDS)], twin.system, true, KEYS)
    for key, wanted in twin.wanted.items():
        assert PARAMETERS[key].read(fit.geometry) == pytest.approx(wanted, abs=0.01)


def test_a_camera_between_pixels_is_found(scene):
    twin = FineTwin.drawn(SHAPE, BANDS, -1.5, seed=0)
    system, y = twin.system, twin.measure(scene)
    solver = build_solver(compose_settings())
    found = calibrate([Frame.snapshot(y, BANDS)], system, by_solver(solver))
    for value, key in zip(found.estimates(), found.errors, strict=True):
        if key in ("down", "right"):
            assert value.value == pytest.approx(twin.wanted[key], abs=0.03)
            assert abs(value.value - twin.wanted[key]) < 3 * value.standard_error
    whole = found.geometry.whole
    assert whole == round(found.geometry.shift[0])
    true = placed(changed(Geometry(), twin.wanted), system)
    cube = twin.cube(scene, found.geometry.shift[0] - whole)
    levels = [
        psnr(solver(y, camera), cube).item()
        for camera in (system, found.system, moved_camera(system, true))
    ]
    assert levels[0] + 3 < levels[1]
    assert levels[1] > levels[2] - 1


@pytest.mark.parametrize("axis", [-1, -2])
def test_the_mask_takes_the_shift_where_bands_fall_on_pixels(axis):
    mask = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    along, across = (1, 0) if axis == -1 else (0, 1)
    for offsets, whole in (([0, 2, 4], None), ([0, 1.5, 3], -1)):
        system = SDCassi(mask, 3, offsets=offsets, detector=46, axis=axis)
        shift = [0.0, 0.0]
        shift[along], shift[across] = -1.25, 0.4
        geometry = placed(Geometry(tuple(shift)), system)
        assert geometry.whole == whole
        assert geometry.along(axis) == -1.25
        moved = moved_camera(system, geometry)
        by_offsets = 0.0 if whole is None else -0.25
        expected = [offset + by_offsets for offset in offsets]
        assert moved.offsets == pytest.approx(expected)
    # Only rows across the dispersion are interpolated.
    rolled = mask.roll(-1, axis)
    between = torch.lerp(rolled, rolled.roll(1, -3 - axis), 0.4)
    inner = (slice(2, -2), slice(2, -2))
    torch.testing.assert_close(moved.mask[0, 0][inner], between[inner])


def test_bands_of_a_sensor_keep_their_contrast():
    places = [1.0, 2.5, 4.0, 5.5, 7.0, 8.5, 10.0, 11.5]
    fine = (torch.rand(1, 1, *SHAPE, generator=torch.Generator().manual_seed(2)) < 0.5).float()
    fine = fine.repeat_interleave(4, -1).roll(2, -1)
    width = SHAPE[1] + 13
    y = torch.zeros(1, 1, SHAPE[0], width)
    spectrum = torch.linspace(0.5, 1.0, BANDS)
    for place, image in zip(places, spectrum, strict=True):
        code = pad(fine * image, (round(4 * place), 4 * 13 - round(4 * place)))
        y += avg_pool2d(code, (1, 4))
    system = SDCassi(avg_pool2d(fine, (1, 4)), BANDS, offsets=places, detector=width)
    fits = [
        Windows(Frame.snapshot(y, BANDS, shift=shift), system).objective(Geometry(whole=0))
        for shift in (linear_taps, sharp_taps)
    ]
    assert fits[1] < fits[0] - 0.1


def test_sharp_taps_sum_to_one_and_lie_at_their_offsets():
    taps, starts = sharp_taps(torch.tensor([3.0, -0.25, 1.5], dtype=torch.float64))
    assert taps.sum(-1) == pytest.approx([1.0, 1.0, 1.0])
    assert taps[0] == pytest.approx([0.0, 1.0, 0.0, 0.0], abs=1e-12)
    assert starts.tolist() == [2, -2, 0]
    middle = (taps * (starts[:, None] + torch.arange(4))).sum(-1)
    assert middle == pytest.approx([3.0, -0.25, 1.5])
