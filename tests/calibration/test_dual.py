"""The calibration of a dual disperser: a mask and a step that are off are found."""

import pytest
import torch
from shared import before_a_push

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import DDCassi, RandomMask
from cassi.systems.masks import move_mask


@pytest.fixture(scope="module")
def scene():
    return load_cube(bundled_path("scene.tif")).data[:, ::2, 32:192, 32:192]


@pytest.mark.parametrize("axis", before_a_push([-1, -2], [-1], "thorough"))
def test_shift_and_step_are_found(scene, axis):
    mask = RandomMask(seed=3).draw(*((160, 192) if axis == -1 else (192, 160)))
    shift = (0.4, -0.7)
    moved = move_mask(mask, shift, 0.2)
    true = DDCassi(moved, 14, 2.05, axis, width=160)
    nominal = DDCassi(mask, 14, 2, axis, width=160)
    y = true(scene)
    found = calibrate_on(y, nominal)
    camera = found.system
    assert type(camera) is DDCassi
    assert found.after < 0.4 * found.before
    steps = torch.tensor(camera.mask_offsets).diff()
    assert float(steps.mean()) == pytest.approx(2.05, abs=0.015)
    values = {each.key: each.value for each in found.estimates}
    assert abs(values["dispersion"]) == pytest.approx(0.05, abs=0.015)
    assert values["down" if axis == -1 else "right"] == pytest.approx(
        shift[0 if axis == -1 else 1], abs=0.05
    )
    close = [(cassi.reconstruct(y, each) - scene).norm() for each in (camera, true, nominal)]
    assert close[0] < 1.5 * close[1]
    assert close[0] < 0.7 * close[2]
