"""A mask that is a little off is found in a second, and left alone where it is right."""

from __future__ import annotations

import pytest
import torch

import cassi
from cassi.camera.displaced_camera import displaced_camera, no_displacement
from cassi.data.bundled import bundled_path
from cassi.methods.automatic import auto
from cassi.metrics import psnr
from cassi.models.load import create_model
from cassi.pipeline.align import align
from cassi.systems import DDCassi, SDCassi

BANDS, HEIGHT, WIDTH = 8, 112, 112
TRUE = no_displacement() | {"across": 0.4, "along": -0.3, "rotation": 0.3, "blur": 0.3}


@pytest.fixture(scope="module")
def camera():
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)).round()
    return SDCassi(mask, BANDS, step=2)


def test_finds_how_far_the_mask_is_off(camera, scene):
    y = displaced_camera(camera, TRUE)(scene)
    found = align(y, camera)
    assert found.down == pytest.approx(TRUE["across"], abs=0.06)
    assert found.right == pytest.approx(TRUE["along"], abs=0.1)
    assert found.rotation == pytest.approx(TRUE["rotation"], abs=0.06)
    assert found.blur**2 == pytest.approx(TRUE["blur"], abs=0.1)
    assert found.system.offsets == camera.offsets
    assert found.after < found.before
    assert "+0.4" in str(found)
    gain = psnr(auto()(y, found.system), scene) - psnr(auto()(y, camera), scene)
    assert float(gain.mean()) > 3


@pytest.mark.parametrize("axis", [-1, -2])
def test_stripes_do_not_say_where_they_lie(scene, axis):
    line = torch.arange(HEIGHT) // 4 % 2
    mask = (line[None] if axis == -1 else line[:, None]).expand(HEIGHT, WIDTH).float()
    camera = SDCassi(mask, BANDS, step=2)
    assert align(camera(scene), camera) is None


def test_a_calibration_leaves_stripes_where_they_are(scene):
    stripes = (torch.arange(WIDTH) // 4 % 2).expand(HEIGHT, WIDTH).float()
    camera = SDCassi(stripes, BANDS, step=2)
    found = cassi.calibrate(camera(scene), camera)
    torch.testing.assert_close(found(scene), camera(scene), rtol=0.02, atol=0.02)


def test_bad_pixels_and_variances_stay(camera, scene):
    bad = torch.rand(camera.measurement_shape, generator=torch.Generator().manual_seed(1)) < 0.05
    known = camera.weighted(torch.full(camera.measurement_shape, 2.0), bad)
    y = torch.where(bad, torch.nan, displaced_camera(camera, TRUE)(scene))
    found = align(y, known)
    assert found.down == pytest.approx(TRUE["across"], abs=0.06)
    assert torch.equal(found.system.is_good, known.is_good)
    assert torch.equal(found.system.variance, known.variance)
    assert found.system(scene).isfinite().all()


@pytest.mark.parametrize("snr_db", [None, 30, 20])
def test_leaves_a_right_camera_alone(camera, scene, snr_db):
    y = camera(scene)
    if snr_db is not None:
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
        y = y + noise * y.square().mean().sqrt() * 10 ** (-snr_db / 20)
    assert align(y, camera) is None


@pytest.mark.parametrize(
    "system",
    [DDCassi(torch.rand(48, 48), BANDS), SDCassi(torch.rand(24, 24), BANDS)],
    ids=["two dispersers", "few windows"],
)
def test_takes_other_cameras_as_they_are(system):
    assert align(torch.rand(2, *system.measurement_shape), system) is None


def test_a_method_takes_the_camera_it_is_given(camera, scene, monkeypatch):
    y = displaced_camera(camera, TRUE)(scene)
    net = create_model("pretrained", size="small")
    found = align(y, camera)
    as_given, better = net(y, camera), net(y, found.system)
    assert float((psnr(better, scene) - psnr(as_given, scene)).mean()) > 2
    given = cassi.reconstruct(y, camera, net, align=False)
    torch.testing.assert_close(given, as_given)
    monkeypatch.setattr("cassi.pipeline.find.align", lambda *_: found)  # as above, once
    moved = cassi.reconstruct(y, camera, net)
    torch.testing.assert_close(moved, better)
    torch.testing.assert_close(cassi.reconstruct(y, camera, net, uncertainty=True).x, moved)


def test_on_the_bundled_scene_nothing_moves():
    scene = cassi.read_cube(bundled_path("scene.tif"))
    camera = SDCassi(cassi.read_mask(bundled_path("mask.tif")), scene.shape[1], 2)
    assert align(camera(scene), camera) is None
