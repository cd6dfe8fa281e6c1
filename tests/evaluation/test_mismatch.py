"""Cameras that are not quite what they are taken for."""

import pytest
import torch
from scipy import ndimage

from cassi.evaluation import Twin
from cassi.systems import SDCassi
from cassi.systems.masks import move_mask


@pytest.fixture
def mask():
    return torch.rand(1, 1, 12, 15, generator=torch.Generator().manual_seed(0))


def test_whole_pixels_move_the_mask_exactly(mask):
    moved = move_mask(mask, (2, -3), 0)
    torch.testing.assert_close(moved[..., 2:, :-3], mask[..., :-2, 3:])


def test_quarter_turns_turn_it_exactly():
    mask = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(move_mask(mask, (0, 0), 90), mask.rot90(1, (-2, -1)))


@pytest.mark.parametrize(("shift", "angle"), [((0.3, -0.8), 0.0), ((0, 0), 3.0), ((0.5, 1.2), 7.0)])
def test_fractions_agree_with_scipy(mask, shift, angle):
    values = mask[0, 0].double().numpy()
    turned = ndimage.rotate(values, angle, reshape=False, order=1, mode="nearest")
    moved = ndimage.shift(values if angle == 0 else turned, shift, order=1, mode="nearest")
    if angle and any(shift):
        # Interpolated twice there, once here: on a smooth mask both are the same.
        ramp = torch.linspace(0, 1, 15, dtype=torch.float64).expand(1, 1, 12, 15)
        twice = move_mask(move_mask(ramp, (0, 0), angle), shift, 0)
        once = move_mask(ramp, shift, angle)
        torch.testing.assert_close(once[..., 3:-3, 3:-3], twice[..., 3:-3, 3:-3])
        return
    found = move_mask(mask.double(), shift, angle)[0, 0, 2:-2, 2:-2]
    torch.testing.assert_close(found, torch.from_numpy(moved)[2:-2, 2:-2])


def test_bands_move_about_the_middle_of_the_spectrum():
    nominal = SDCassi(torch.ones(1, 9), bands=5, step=2)
    for band in range(5):
        x = torch.zeros(1, 5, 1, 9)
        x[:, band, :, 4] = 1
        y = Twin(dispersion=0.5).expose(x, nominal)[0, 0, 0]
        position = (y * torch.arange(17)).sum()
        assert position == 4 + 2 * band + 0.5 * (band - 2)
        assert y.sum() == 1


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("step", [2, -1])
def test_a_whole_pixel_per_band_is_another_step(mask, axis, step):
    x = torch.rand(1, 3, 12, 15, generator=torch.Generator().manual_seed(2))
    # Nothing may leave the nominal detector.
    inner = torch.zeros_like(x)
    inner[..., 3:-3, 3:-3] = x[..., 3:-3, 3:-3]
    nominal = SDCassi(mask, 3, step, axis)
    found = Twin(dispersion=1.0).expose(inner, nominal)
    real = SDCassi(mask, 3, step + 1, axis)(inner)
    # The middle band stays where it was on the detector.
    start = abs(step) - abs(step + 1)
    for index in range(real.shape[axis]):
        place = index + start
        if 0 <= place < found.shape[axis]:
            torch.testing.assert_close(found.select(axis, place), real.select(axis, index))


def test_none_is_the_camera_itself(mask):
    system = SDCassi(mask, 4, 2)
    x = torch.rand(2, 4, 12, 15)
    assert torch.equal(Twin().expose(x, system), system(x))


def test_every_shot_is_moved():
    masks = torch.rand(2, 1, 8, 9)
    system = SDCassi(masks, 3, 1)
    x = torch.rand(1, 3, 8, 9)
    both = Twin(shift=[0.5, 0], dispersion=0.1).expose(x, system)
    assert both.shape == (1, 2, 8, 11)
    alone = Twin(shift=[0.5, 0], dispersion=0.1).expose(x, SDCassi(masks[1:], 3, 1))
    torch.testing.assert_close(both[:, 1:], alone)
