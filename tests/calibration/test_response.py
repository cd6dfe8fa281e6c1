"""The response of a camera, from numbers, a white frame and a white patch."""

import pytest
import torch
from shared import rand
from torch.nn.functional import avg_pool2d
from torch.testing import assert_close

from cassi.calibration import Patch, Response, find_white
from cassi.systems import SDCassi

LIGHT = torch.tensor([0.5, 1.0, 2.0, 1.5, 0.8])
WHITE = LIGHT[None, :, None, None].expand(1, -1, 64, 60)


def _camera():
    return SDCassi((rand(64, 60) > 0.5).float(), bands=5, step=2)


def test_a_white_frame_shows_lamp_and_sensor_beside_stray_light():
    camera = _camera()
    y = camera(WHITE) + 0.3
    y = y + 0.01 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    found = find_white(y, camera)
    r = found.response
    assert_close(r.values, LIGHT, rtol=5e-3, atol=0)
    assert bool(((r.values - LIGHT).abs() < 4 * r.errors).all())
    assert found.stray == pytest.approx(0.3 / float(y.mean()), rel=0.05)
    assert_close(found.corrected(y, None).mean(), y.mean() - 0.3, rtol=0.02, atol=0)
    grey = find_white(y, camera, [0.5, 0.5, 0.5, 0.25, 0.5])
    assert_close(grey.response.values / LIGHT, torch.tensor([2.0, 2, 2, 4, 2]), rtol=5e-3, atol=0)


def test_what_an_unsharp_mask_cannot_tell_apart_is_smooth():
    sharp = rand(64, 60) > 0.5
    blurred = avg_pool2d(sharp[None].float(), (1, 3), 1, (0, 1), count_include_pad=False)[0]
    light = torch.linspace(1, 2, 12)
    offsets = [1.2 * band for band in range(12)]
    true, camera = (SDCassi(mask, bands=12, offsets=offsets) for mask in (sharp, blurred))
    y = true(light[None, :, None, None].expand(1, -1, 64, 60))
    assert_close(find_white(y, camera).response.values, light, rtol=0.2, atol=0)
    assert_close(find_white(y, true).response.values, light, rtol=0.01, atol=0)


def test_a_white_frame_scales_pixels_for_what_the_camera_has_wrong():
    wrong = torch.rand(1, 1, 64, 68, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.95
    camera = _camera()
    white = camera(WHITE)
    found = find_white(white * wrong, camera)
    grey = 0.4 * white
    away = (found.corrected(grey * wrong, None) - grey).norm()
    assert away < 0.1 * (grey * wrong - grey).norm()
    elsewhere = SDCassi(camera.mask.roll(7, -2), bands=5, step=2)
    assert find_white(white, elsewhere, 1.0, lambda *_: torch.ones(1, 5, 64, 60)).gain is None


def test_a_white_patch_is_the_response():
    x = rand(1, 5, 20, 20).float()
    x[:, :, 4:12, 6:16] = 0.9 * LIGHT[:, None, None]
    found = Patch((4, 6, 8, 10), 0.9).of(x)
    assert_close(found.values, LIGHT)
    assert_close(found.errors, torch.zeros(5), atol=1e-6, rtol=0)


def test_errors_of_value_and_response_add():
    response = Response(torch.tensor([2.0]), torch.tensor([0.2]))
    x, std = torch.full((1, 1, 1, 1), 4.0), torch.full((1, 1, 1, 1), 0.6)
    assert_close(response.scene(x), torch.full((1, 1, 1, 1), 2.0))
    assert_close(response.scene_std(x, std).item(), (0.3**2 + 0.2**2) ** 0.5)


def test_reflectances_are_smooth_where_light_is_weak():
    light, nm = torch.linspace(0.1, 2, 18), torch.linspace(455, 645, 18).tolist()
    response = Response(light, torch.zeros(18))
    white = 0.9 * light[:, None, None]
    assert_close(response.scene(white, nm), torch.full((18, 1, 1), 0.9), rtol=1e-5, atol=0)
    truth = (0.5 + 0.3 * torch.linspace(-3, 3, 18).tanh())[:, None, None].expand(18, 20, 20)
    wrong = 0.1 * light.square().mean().sqrt()
    x = truth * light[:, None, None] + wrong * torch.randn(
        truth.shape, generator=torch.Generator().manual_seed(0)
    )
    away = response.scene(x, nm) - truth
    assert float(away.norm()) < 0.3 * float((response.scene(x) - truth).norm())
    std = response.scene_std(x, wrong * torch.ones_like(x), nm)
    assert float((away.abs() < 1.645 * std).float().mean()) > 0.9


def test_error_bars_hold_sharp_colours():
    nm, random = torch.linspace(450, 650, 28), torch.Generator().manual_seed(0)
    response = Response(torch.linspace(0.05, 1, 28) ** 1.5, torch.zeros(28))
    low, high, middle, width = torch.rand(4, 400, generator=random)
    rise = torch.sigmoid((nm[:, None] - 450 - 200 * middle) / (5 + 10 * width))
    truth = (0.1 + 0.8 * (low + (high - low) * rise))[..., None]
    size = 0.005 * response.values.square().mean().sqrt()
    noise = torch.randn(truth.shape, generator=random)
    x = response.values[:, None, None] * truth + size * noise
    away = (response.scene(x, nm.tolist()) - truth).abs()
    held = away < 1.645 * response.scene_std(x, size.expand_as(x), nm.tolist())
    assert float(held.float().mean()) > 0.9
    assert float(held.float().mean((1, 2)).min()) > 0.75


def test_error_bars_of_a_mean_do_not_alternate_between_bands():
    light, nm = torch.linspace(0.5, 2, 18), torch.linspace(455, 645, 18).tolist()
    response = Response(light, torch.zeros(18))
    random = torch.Generator().manual_seed(0)
    unlike = torch.tensor([0.5, 1.5]).repeat(9)[:, None, None]
    pattern = unlike * torch.randn(1, 18, 20, 20, generator=random)
    x = light[:, None, None].expand(1, 18, 20, 20)
    std = 0.1 * torch.ones_like(x)
    there = response.scene_std(x, std, nm)
    found = response.scene_pattern(x, pattern, std, there, nm)
    assert float(found.square().mean()) == pytest.approx(1, rel=1e-4)
    sizes = found.square().mean((0, 2, 3)).sqrt()
    assert float(sizes.diff(n=2).abs().max()) < 0.2 * float(sizes.mean())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_band_without_light_is_named(value):
    values = LIGHT.clone()
    values[3] = value
    with pytest.raises(ValueError, match="in band 4 of 5: there is no light in it"):
        Response(values, torch.zeros(5))


def test_a_patch_beside_the_cube_is_refused():
    with pytest.raises(ValueError, match="within 20 x 20 pixels, got \\[15, 0, 8, 8\\]"):
        Patch((15, 0, 8, 8)).of(rand(1, 5, 20, 20))


def test_a_method_that_adds_to_a_band_adds_to_its_response():
    camera = _camera()
    wrong = torch.tensor([1.0, 1.2, 0.9, 1.0, 1.1])
    seen = []

    def reconstruct(y, system):
        seen.append(y)
        return WHITE * wrong[:, None, None]

    found = find_white(camera(WHITE) + 0.3, camera, 0.5, reconstruct)
    assert_close(found.response.values, 2 * LIGHT * wrong)
    assert_close(seen[0], camera(WHITE), atol=5e-3, rtol=0)


def test_a_method_that_fails_on_a_white_frame_is_left_out():
    camera = _camera()
    y = camera(WHITE)
    failed = torch.tensor([0.0, 0, 0, 2, 3])[None, :, None, None].expand(1, -1, 64, 60)
    found = find_white(y, camera, 1.0, lambda *_: failed)
    assert_close(found.response.values, LIGHT, rtol=1e-3, atol=0)
