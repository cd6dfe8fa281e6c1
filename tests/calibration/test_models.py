"""Which models of a camera are believed: those that predict pixels which no cube has seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.calibration import (
    PARAMETERS,
    Frame,
    Geometry,
    WithheldPixels,
    calibrate,
    moved_camera,
)
from cassi.calibration.calibrate import FITTED
from cassi.calibration.geometry import placed
from cassi.calibration.heldout import brightest_lines
from cassi.calibration.refine import refine, slopes
from cassi.camera_search import by_solver
from cassi.systems import SDCassi
from cassi.systems.masks import blur_mask, move_mask
from tests.shared import before_a_push, smooth_scene

BANDS, HEIGHT, WIDTH = 8, 72, 88
SHIFTED = Geometry((0.4, -0.3))


def make(height, width):
    """A scene, and a camera whose mask has squares of two pixels: a blur leaves something of it."""
    coarse = torch.rand(height // 2, width // 2, generator=torch.Generator().manual_seed(0))
    mask = (coarse > 0.5).float().repeat_interleave(2, 0).repeat_interleave(2, 1)
    return smooth_scene(BANDS, height, width, disk=True), SDCassi(mask, BANDS)


@pytest.fixture(scope="module")
def camera():
    return make(HEIGHT, WIDTH)[1]


@pytest.fixture(scope="module")
def scene():
    return make(HEIGHT, WIDTH)[0]


@pytest.fixture(scope="module")
def prepare():
    return by_solver(build_solver(compose_settings()))


@pytest.fixture(scope="module")
def reconstruct(camera, scene, prepare):
    return prepare(camera(scene), camera)


def find(scene, camera, prepare, geometry, noise=0.0, **settings):
    y = moved_camera(camera, placed(geometry, camera))(scene)
    y = y + noise * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return calibrate([Frame.snapshot(y, BANDS)], camera, prepare, **settings)


@pytest.mark.parametrize("noise", before_a_push([0.0, 0.02], [0.02], "thorough"))
def test_nothing_is_found_where_nothing_is_wrong(camera, scene, prepare, noise):
    found = find(scene, camera, prepare, Geometry(), noise)
    assert found.model == ()
    assert found.geometry == Geometry()
    assert found.after == found.before
    assert all(value.value == value.nominal for value in found.estimates())
    x = torch.rand(1, BANDS, HEIGHT, WIDTH)
    assert torch.equal(found.system(x), camera(x))


def test_a_shift_is_found_and_nothing_else(camera, scene, prepare):
    found = find(scene, camera, prepare, SHIFTED, noise=0.02)
    assert found.model == ("down", "right")
    assert found.geometry.shift == pytest.approx(SHIFTED.shift, abs=0.03)
    for value, true in zip(found.estimates()[:2], SHIFTED.shift, strict=True):
        assert abs(value.value - true) < 3 * value.standard_error
        assert value.standard_error < 0.03
    assert found.after < 0.7 * found.before
    assert found.stages[0].model == ()


@pytest.mark.parametrize(
    ("geometry", "within"),
    [
        (
            replace(SHIFTED, rotation=0.4, dispersion=(0.06,)),
            {"rotation": 0.05, "dispersion": 0.01},
        ),
        (replace(SHIFTED, contrast=0.6), {"contrast": 0.12}),
        *before_a_push(
            [
                (replace(SHIFTED, dispersion=(0.0, 0.5)), {"dispersion_2": 0.1}),
                (replace(SHIFTED, magnification=1.01), {"magnification": 0.002}),
                (replace(SHIFTED, variance=0.5), {"blur": 0.1}),
            ],
            [],
        ),
    ],
)
def test_finds_each_parameter(prepare, geometry, within):
    # A bend shows in a larger frame only.
    size = (96, 112) if "dispersion_2" in within else (HEIGHT, WIDTH)
    found = find(*make(*size), prepare, geometry)
    for key, most in within.items():
        assert key in found.model
        read = PARAMETERS[key].read
        assert read(found.geometry) == pytest.approx(read(geometry), abs=most)
    assert found.geometry.shift == pytest.approx(geometry.shift, abs=0.06)


def test_blur_has_its_variance():
    point = torch.zeros(1, 1, 33, 35)
    point[..., 16, 17] = 1
    for variance in (0.05, 0.36, 2.0):
        spread = blur_mask(point, variance)[0, 0]
        assert spread.sum().item() == pytest.approx(1, abs=1e-5)
        at = torch.arange(33.0) - 16
        assert (spread.sum(1) @ at.square()).item() == pytest.approx(variance, rel=1e-3)
    mask = torch.rand(2, 1, 20, 20)
    assert torch.equal(blur_mask(mask, 0), mask)
    back = blur_mask(blur_mask(mask, 0.3), -0.3)
    torch.testing.assert_close(back[..., 6:-6, 6:-6], mask[..., 6:-6, 6:-6], atol=1e-4, rtol=0)


def test_magnification_is_about_the_middle():
    rows = (torch.arange(21.0) - 10).view(-1, 1).expand(-1, 31)
    larger = move_mask(rows[None, None], (0, 0), 0, 1.25)[0, 0]
    torch.testing.assert_close(larger[3:-3], rows[3:-3] / 1.25)


def test_contrast_keeps_the_mean_and_no_transmission_is_negative(camera):
    mask = moved_camera(camera, Geometry(contrast=0.5)).mask
    assert mask.mean().item() == pytest.approx(camera.mask.mean().item())
    assert mask.std().item() == pytest.approx(camera.mask.std().item() / 2)
    assert moved_camera(camera, Geometry(contrast=1.5)).mask.min() == 0


@pytest.mark.parametrize("axis", [-1, -2])
def test_of_a_large_frame_the_brightest_lines_are_taken(axis):
    system = SDCassi(torch.ones(200, 210), 4, axis=axis)
    y = torch.ones(1, *system.measurement_shape)
    y.narrow(system.part_axis, 100, 70).mul_(2)
    start, stop = brightest_lines(y, system, 70 * 220)
    assert start <= 100 < 170 <= stop
    assert 70 <= stop - start <= 76
    assert brightest_lines(y, system, 10**9) == (0, system.cube_shape[system.part_axis])


def test_a_strip_predicts_as_the_frame_does(camera, scene, reconstruct):
    y = moved_camera(camera, SHIFTED)(scene)
    held = WithheldPixels(y, camera, reconstruct, share=FITTED, seed=0, pixels=64 * y.shape[-1])
    start, stop = held.lines
    assert stop - start == 64
    right, wrong = held.predict(SHIFTED), held.predict(Geometry())
    assert right.cube.shape == (1, BANDS, 64, WIDTH)
    assert right.error < 0.7 * wrong.error
    assert len(right.residual) == len(held.place) == pytest.approx(0.2 * 64 * y.shape[-1], rel=0.1)


def test_the_same_pixels_are_withheld_again(camera, scene, reconstruct):
    y = camera(scene)
    a, b, c = (
        WithheldPixels(y, camera, reconstruct, share=0.1, seed=seed, pixels=10**6).given
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_steps_lead_to_the_truth(camera, scene, reconstruct):
    y = moved_camera(camera, SHIFTED)(scene)
    held = WithheldPixels(y, camera, reconstruct, share=FITTED, seed=0, pixels=10**6)
    start = Geometry((0.3, -0.2))
    found = refine(held, start, ("down", "right"), held.predict(start).cube)
    estimate = found.solve(("down", "right"))
    assert estimate.geometry.shift == pytest.approx(SHIFTED.shift, abs=0.02)
    back = found.solve(("down",), fixed=("right",))
    assert back.geometry.shift[1] == 0


def test_what_is_never_seen_has_no_slope(camera, scene, reconstruct):
    y = camera(scene)
    held = WithheldPixels(y, camera, reconstruct, share=FITTED, seed=0, pixels=10**6)
    found = slopes(held, Geometry(), ("down",), held.predict(Geometry()).cube)
    assert found.extended(held, ()) is found
    assert math.isfinite(found.solve(("down",)).errors["down"])
