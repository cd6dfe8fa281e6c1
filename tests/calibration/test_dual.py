"""The calibration of a dual disperser: a mask and a step that are off are found."""

import pytest
import torch
from shared import before_a_push

import cassi
from cassi.camera_search import calibrate_on
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.systems import DDCassi, RandomMask
from cassi.systems.masks import move_mask


@pytest.fixture(scope="module")
def scene():
    return load_cube(bundled_path("scene.tif")).data[:, ::2, 64:160, 64:160]


@pytest.mark.parametrize("axis", before_a_push([-1, -2], [-1], "thorough"))
def test_shift_and_step_are_found(scene, axis):
    mask = RandomMask(seed=3).draw(*((96, 128) if axis == -1 else (128, 96)))
    moved = move_mask(mask, (0.4, -0.7), 0.2)
    true = DDCassi(moved, 14, 2.05, axis, width=96)
    nominal = DDCassi(mask, 14, 2, axis, width=96)
    y = true(scene)
    found = calibrate_on(y, nominal)
    camera = found.system
    assert type(camera) is DDCassi
    assert found.after < 0.7 * found.before
    steps = torch.tensor(camera.mask_offsets).diff()
    assert float(steps.mean()) == pytest.approx(2.05, abs=0.01)
    assert found.geometry.dispersion[0] == pytest.approx(0.05, abs=0.01)
    assert found.geometry.rotation == pytest.approx(0.2, abs=0.05)
    close = [(cassi.reconstruct(y, each) - scene).norm() for each in (camera, true, nominal)]
    assert close[0] < 1.3 * close[1]
    assert close[0] < 0.7 * close[2]


def test_a_camera_that_is_right_stays_as_it_is(scene):
    nominal = DDCassi(RandomMask(seed=3).draw(96, 122), 14, 2, width=96)
    found = calibrate_on(nominal(scene), nominal)
    camera = found.system
    if found.model:
        assert max(map(abs, found.geometry.values())) < 0.03
    else:
        assert camera is nominal
