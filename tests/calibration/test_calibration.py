"""Calibration finds what a camera is off by, and says how sure it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cassi.calibration import Frame, fit_light, refine_mask
from cassi.camera.displaced_camera import displaced_camera, no_displacement
from cassi.evaluation import Twin
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import SDCassi, TiltedCassi
from tests.shared import before_a_push

BANDS, HEIGHT, WIDTH = 8, 96, 96
TWIN = Twin(shift=[0.6, -0.4], rotation=0.2, dispersion=0.03)


def values(found):
    return {each.key: each for each in found.estimates}


@pytest.mark.parametrize(
    ("twin", "wanted"),
    [
        (TWIN, {"across": 0.6, "along": -0.4, "rotation": 0.2, "step": 0.105}),
        (Twin(mask_blur=0.6, magnification=1.004), {"blur": 0.36 + 1 / 12, "magnification": 0.004}),
        (Twin(shift=[-0.3, 0.2], curvature=0.4), {"across": -0.3, "along": 0.2, "curve": 0.4}),
    ],
    ids=["place", "blur", "curve"],
)
@pytest.mark.parametrize("axis", before_a_push([-1, -2], [-1], "thorough"))
def test_the_model_is_that_of_the_twin(camera, scene, twin, wanted, axis):
    if axis == -2:
        camera = SDCassi(camera.mask.mT.contiguous(), BANDS, step=2, axis=-2)
        down, right = twin.shift
        twin = replace(twin, shift=[right, down], rotation=-twin.rotation)
        scene = scene.mT.contiguous()
    y = twin.expose(scene, camera)
    modelled = displaced_camera(camera, no_displacement() | wanted)(scene)
    missed = (modelled - y)[..., 3:-3, 3:-3].norm() / (camera(scene) - y).norm()
    assert missed < 0.06


@pytest.mark.parametrize("axis", [-1, -2])
def test_finds_mask_and_bands_within_errors(axis, scene):
    generator = torch.Generator().manual_seed(1)
    system = SDCassi(torch.rand(HEIGHT, WIDTH, generator=generator), BANDS, step=2, axis=axis)
    y = TWIN.expose(scene if axis == -1 else scene.mT.contiguous(), system)
    y = y + 0.002 * torch.randn(y.shape, generator=generator)
    found = calibrate_on(y, system)
    true = {"down": 0.6, "right": -0.4, "rotation": 0.2, "dispersion": 0.03, "curve": 0.0}
    for key, within in (("down", 0.05), ("right", 0.05), ("rotation", 0.05), ("dispersion", 0.01)):
        estimate = values(found)[key]
        assert estimate.value == pytest.approx(true[key], abs=within)
        assert abs(estimate.value - true[key]) < 3 * estimate.standard_error
        assert estimate.taken
    assert found.told
    assert found.after < 0.7 * found.before
    assert found.system.axis == axis


@pytest.mark.parametrize("noise", before_a_push([0.0, 0.02], [0.02], "thorough"))
def test_nothing_is_found_where_nothing_is_wrong(camera, scene, noise):
    y = camera(scene)
    y = y + noise * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    found = calibrate_on(y, camera)
    assert found.after <= found.before
    assert all(abs(each.value - each.nominal) * each.pixels < 0.05 for each in found.estimates)


def test_a_tilt_is_found(camera, scene):
    twin = Twin(shift=[0.3, 0.5], rotation=0.1, dispersion=0.05, pivot=0.0, tilt=2.0)
    found = calibrate_on(twin.expose(scene, camera), camera)
    assert isinstance(found.system, TiltedCassi)
    assert values(found)["tilt"].value == pytest.approx(2.0, abs=0.3)
    step = values(found)["dispersion"]
    assert abs(step.value - 0.05) < 3 * step.standard_error
    # Of a twin it is known which band stays.
    anchored = displaced_camera(camera, found.taken, pivot=0.0)
    assert anchored.offsets[0] == camera.offsets[0]
    assert float(anchored.across[0]) == 0


def test_known_light_gives_gain_and_mask(camera, scene):
    true = displaced_camera(camera, no_displacement() | {"across": 0.6, "along": -0.4, "step": 0.1})
    dirt = torch.ones(HEIGHT, WIDTH)
    dirt[40:44, 40:44] = 0.2
    dirty = SDCassi(
        true.mask * dirt, BANDS, offsets=true.offsets, detector=true.measurement_shape[-1]
    )
    white = Frame.snapshot(3 * dirty(torch.ones(1, BANDS, HEIGHT, WIDTH)), BANDS)
    one = torch.zeros(1, BANDS, HEIGHT, WIDTH)
    one[:, 3] = 2
    single = Frame.monochromatic(dirty(one), 3.0)
    found = calibrate_on(dirty(scene), camera, light_frames=[white, single])
    assert values(found)["down"].value == pytest.approx(0.6, abs=0.03)
    assert values(found)["right"].value == pytest.approx(-0.4, abs=0.05)
    assert found.levels[0] == pytest.approx(3, rel=0.03)
    lights = [fit_light(frame, true) for frame in (white, single)]
    assert lights[0].level == pytest.approx(3, rel=0.03)
    assert lights[1].level == pytest.approx(2, rel=0.03)
    mask = refine_mask(lights, true)
    before, after = ((m - dirty.mask).square().mean().sqrt() for m in (true.mask, mask))
    assert after < 0.4 * before


def test_a_camera_that_predicts_worse_is_refused(camera, scene, monkeypatch):
    monkeypatch.setattr(
        "cassi.pipeline.calibrate.heldout_error",
        lambda _, __, tried, *___: 1.0 + (tried is not camera),
    )
    found = calibrate_on(TWIN.expose(scene, camera), camera)
    assert found.system is camera
    assert found.after == found.before
    assert found.dropped
    assert not any(each.taken for each in found.estimates)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"radius": 21}, "radius"),
        ({"light_frames": [Frame.snapshot(torch.ones(1, 1, 96, 96), BANDS)]}, "expected frames"),
        ({"system": SDCassi(torch.rand(2, 1, 1, 96, 96), BANDS)}, "mask per sample"),
    ],
)
def test_refuses(camera, change, said):
    y = torch.rand(1, 1, HEIGHT, WIDTH + 2 * BANDS - 2)
    arguments = {"y": y, "system": camera} | change
    with pytest.raises(ValueError, match=said):
        calibrate_on(**arguments)
