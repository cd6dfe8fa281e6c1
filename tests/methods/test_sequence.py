"""Snapshots in a row: motion is found, cubes get better, what moves by itself is left alone."""

from __future__ import annotations

import weakref

import pytest
import torch

import cassi
from cassi.data.bundled import bundled_path
from cassi.methods import Sequence, auto, video
from cassi.methods.motion import find_motion, move
from cassi.metrics import psnr


@pytest.fixture(scope="module")
def scene():
    whole = torch.as_tensor(cassi.read_cube(bundled_path("scene.tif"))).float()
    return whole[..., 64:192, 64:192]


@pytest.fixture(scope="module")
def camera(scene):
    _, bands, height, width = scene.shape
    mask = (torch.rand(height, width, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    return cassi.SDCassi(mask, bands=bands, step=1)


def shifted(x, down, right):
    side = torch.tensor(x.shape[-2:]) - 1
    return move(x, torch.tensor([[1, 0, 2 * down / side[0]], [0, 1, 2 * right / side[1]]]))


@pytest.mark.parametrize("shift", [(1.5, -2.0), (-11.0, 7.0)])
def test_motion_is_found_through_the_camera(scene, camera, shift):
    moved = shifted(scene, *shift)
    found = find_motion(scene, camera(moved), camera)
    side = torch.tensor(scene.shape[-2:]) - 1
    assert found[:, 2] * side / 2 == pytest.approx(shift, abs=0.1)
    assert found[:, :2] == pytest.approx(torch.eye(2), abs=5e-3)


def test_a_sequence_gets_better_and_the_first_is_the_method(scene, camera):
    frames = [shifted(scene, 1.3 * t, -0.8 * t) for t in range(4)]
    method, following = auto(), Sequence(auto()).begin()
    gains, kept = [], []
    for frame in frames:
        y = camera(frame)
        kept.append(weakref.ref(y))
        alone, joined = method.run(y, camera), following.run(y, camera)
        gains.append(float(psnr(joined.x, frame) - psnr(alone.x, frame)))
    assert gains[0] == 0
    assert gains[-1] > 1.0
    assert len(joined.history) == Sequence(method).iterations_each
    assert following.predicted_share > 0.5
    assert sum(each() is not None for each in kept) <= 2  # the first and the last


def test_another_scene_starts_afresh(scene, camera):
    following = Sequence(auto()).begin()
    following.run(camera(scene), camera)
    other = scene.amax() - scene
    y = camera(other)
    seen = []
    found = following.run(y, camera, callback=lambda each, x: seen.append(each.index) or False)
    assert following.predicted_share == 0
    assert torch.equal(found.x, auto().run(y, camera).x)
    assert seen == list(range(1, len(found.history) + 1))


def test_other_methods_are_refused():
    with pytest.raises(TypeError, match="spectral components"):
        Sequence(video())
    with pytest.raises(ValueError, match="weight"):
        Sequence(auto(), weight=2.0)
