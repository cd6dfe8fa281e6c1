"""Where a guide lies, whether it is believed, and who takes one."""

import math

import pytest
import torch

import cassi
from cassi.guide_search import find_motion, place_guide, takes_guide
from cassi.methods import auto, self_supervised
from cassi.solvers import ADMM, GAP, Solver
from cassi.systems import Guide, Guided, SDCassi, Stacked
from cassi.systems.motion import (
    Movable,
    describe_motion,
    invert_motion,
    max_corner_shift,
    step_towards,
)


def _scene(size=96, bands=8, seed=0):
    random = torch.Generator().manual_seed(seed)
    maps = torch.zeros(1, 3, size, size)
    for side in (4, 8, 16, 32):
        more = torch.rand(1, 3, side, side, generator=random)
        maps += torch.nn.functional.interpolate(more, size=(size, size), mode="bicubic") / 4
    wave = torch.linspace(0, 1, bands)
    spectra = torch.stack([torch.exp(-(((wave - c) / 0.25) ** 2)) for c in (0.1, 0.5, 0.9)])
    return torch.einsum("bkhw,kc->bchw", maps.clamp_min(0), spectra)


def _camera(size=96, bands=8):
    mask = (torch.rand(size, size, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    return SDCassi(mask, bands, step=1)


RESPONSE = torch.tensor([[1.0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])


def _picture(x):
    return Guide(RESPONSE, tuple(x.shape[2:]))(x)


MOTION = torch.tensor([2.0, -1.5, math.radians(0.5), math.log(1.02)], dtype=torch.float64)


def test_motion_is_found_to_a_tenth_of_a_pixel():
    picture = _picture(_scene())
    moved = Movable(picture)(MOTION)
    predicted = torch.where(moved.isfinite(), moved, 0.5)
    found = find_motion(picture, predicted)
    for _ in range(3):
        found = found - step_towards(Movable(picture)(found), predicted)
    assert (found - MOTION)[:2].abs().max() < 0.1
    assert (found - MOTION)[2:].abs().max() < 0.1 / 48


def test_a_picture_that_fits_as_well_where_it_lies_is_not_moved():
    picture = _picture(_scene())
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(3))
    predicted = (picture.roll(1, -1) + 4 * picture) / 5 + 0.5 * noise
    assert not find_motion(picture, predicted).any()
    assert find_motion(picture, predicted.roll(4, -1)).any()


def test_a_run_finds_a_picture_out_of_place_and_leaves_one_in_its_place():
    x, camera = _scene(), _camera()
    picture = _picture(_scene())
    assert describe_motion(MOTION)["shift"] == [2.0, -1.5]
    for motion, most in ((torch.zeros(4, dtype=torch.float64), 0.0), (MOTION, 0.2)):
        # The scene beyond the border is not known; the picture shows it as NaN.
        shown = Movable(picture)(invert_motion(motion))
        guided = Guided(camera, shown, RESPONSE).moved(0.7 * motion)
        auto().run(camera(x), guided)
        assert float(max_corner_shift(guided.last_motion.motion - motion, 96, 96)) <= most
        assert torch.equal(guided.motion, 0.7 * motion)


def test_a_guide_of_this_scene_is_taken_and_one_of_another_is_refused():
    x, camera = _scene(), _camera()
    y = camera(x)
    right = place_guide(y, camera, _picture(x), RESPONSE)
    assert right.is_used
    assert right.correlation > 0.5
    auto().run(y, right.system)
    found = describe_motion(right.system.last_motion.motion)
    assert found == {"shift": [0, 0], "rotation": 0, "scale": 1}
    wrong = place_guide(y, camera, _picture(_scene(seed=5)), RESPONSE)
    assert not wrong.is_used
    assert wrong.system is camera
    assert "refused" in str(wrong)


def test_reconstruct_takes_a_guide_both_ways():
    x, camera = _scene(), _camera()
    plain = cassi.reconstruct(camera(x), camera, align=False)
    guided = cassi.reconstruct(camera(x), camera, guide=(_picture(x), RESPONSE), align=False)
    assert (guided - x).norm() < 0.9 * (plain - x).norm()
    stacked = Stacked([camera, Guide(RESPONSE)])
    assert torch.equal(cassi.reconstruct(stacked(x), stacked, align=False), guided)
    with pytest.warns(UserWarning, match="refused"):
        other = cassi.reconstruct(
            camera(x), camera, guide=(_picture(_scene(seed=5)), RESPONSE), align=False
        )
    assert torch.equal(other, plain)


def test_what_takes_no_guide_says_so():
    assert takes_guide(auto())
    assert takes_guide(self_supervised())
    assert not takes_guide(Solver(cassi.TV(), ADMM()))
    assert not takes_guide(Solver(cassi.TV(), GAP()))
    x, camera = _scene(), _camera()
    with pytest.raises(ValueError, match="takes none"):
        cassi.reconstruct(camera(x), camera, "gap_tv", guide=_picture(x)[:, :1])
    with pytest.raises(ValueError, match="uncertainty: expected False with a guide"):
        cassi.reconstruct(camera(x), camera, uncertainty=True, guide=_picture(x)[:, :1])
