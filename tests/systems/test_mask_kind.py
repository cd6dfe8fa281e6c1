"""A mask that the sensor measured, behind bands that fall between pixels."""

import torch
from torch.nn.functional import avg_pool2d, pad

from cassi.camera.displaced_camera import placed_camera
from cassi.systems import SDCassi, Weighted
from cassi.systems.mask_kind import has_two_levels, is_design

PLACES = [1.0, 2.5, 4.25, 5.75]


def grey(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def test_it_measures_what_a_sensor_sees():
    fine = grey(40, 60).gt(0.5).float().repeat_interleave(4, -1).roll(2, -1)
    scene = torch.linspace(0.5, 1, 240).expand(4, 40, -1)
    light = sum(
        pad(fine * image, (round(4 * place), 24 - round(4 * place)))
        for image, place in zip(scene, PLACES, strict=True)
    )
    y = avg_pool2d(light[None, None], (1, 4))
    camera = SDCassi(avg_pool2d(fine[None], (1, 4)), 4, offsets=PLACES, detector=66)
    x = avg_pool2d(scene[None], (1, 4))
    linear, sharp = ((y - each(x)).norm() for each in (camera, camera.replace(measured_mask=True)))
    assert sharp < 0.9 * linear


def test_on_whole_pixels_it_is_the_plain_camera():
    mask, x = grey(2, 1, 5, 6).double() + 0.1, grey(1, 3, 5, 6).double()
    camera = SDCassi(mask, 3, offsets=[0, 1, 3])
    same = camera.replace(measured_mask=True)
    assert torch.equal(same(x), camera(x))
    assert torch.equal(same.pinv(camera(x)), camera.pinv(camera(x)))


def test_a_pixel_that_sees_hardly_any_light_is_left_out():
    mask = grey(20, 20)
    mask[7, -4:] = 0.0005
    camera = SDCassi(mask, 4, offsets=[0, 0.6, 1.1, 1.8], measured_mask=True)
    x = grey(1, 4, 20, 20)
    y = camera(x)
    assert y[0, 0, 7, -1] == 0
    noise = 0.01 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    assert (camera.pinv(y + noise) - camera.pinv(y)).abs().amax() < 0.5


def test_designs_have_two_values():
    design = (grey(2, 1, 5, 6) > 0.5).float()
    assert is_design(design)
    assert is_design(0.1 + torch.tensor([0.5, 0.8]).view(2, 1, 1, 1) * design)  # of each shot
    assert is_design((design * 254 + grey(2, 1, 5, 6).round()) / 255)  # rounded
    assert not is_design(design + 0.02 * grey(2, 1, 5, 6))
    assert not is_design(grey(5, 6))


def test_designs_averaged_over_pixels_have_two_levels():
    fine = grey(40, 40).gt(0.5).float().repeat_interleave(7, -1).repeat_interleave(7, -2)
    averaged = avg_pool2d(fine[None], 4)  # elements of 1.75 pixels
    assert not is_design(averaged)
    assert has_two_levels(averaged)
    assert has_two_levels((255 * averaged).round())
    noise = 0.005 * torch.randn(averaged.shape, generator=torch.Generator().manual_seed(2))
    assert not has_two_levels(averaged + noise)
    assert not has_two_levels((averaged + noise).clamp(max=1))  # the brightest clipped
    assert not has_two_levels(grey(70, 70))


def test_a_camera_moved_or_cut_keeps_what_is_known_of_it():
    bad = torch.zeros(5, 12).index_fill_(1, torch.tensor(3), 1)
    camera = SDCassi(grey(5, 6), 4, offsets=PLACES, measured_mask=True)
    camera.is_broadband = True
    moved = placed_camera(camera, camera.mask, [0.5, 2, 3, 5])
    other = camera.weighted(bad_pixels=bad).wrap_like_self(moved)
    assert isinstance(other, Weighted)
    assert not other.is_good[..., 3].any()
    assert moved.measured_mask
    assert moved.is_broadband
    assert other.part(1, 3).system.measured_mask
