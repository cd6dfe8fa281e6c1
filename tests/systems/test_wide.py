"""Bands with a width along the dispersion."""

import pytest
import torch
from torch.testing import assert_close

from cassi.systems import SDCassi
from cassi.systems.grid import with_wide_bands


def _mask(height, width):
    generator = torch.Generator().manual_seed(0)
    return 0.3 + 0.7 * torch.rand(height, width, generator=generator, dtype=torch.float64)


def test_hardly_wider_than_a_pixel_is_nearly_the_plain_camera():
    offsets = [0.0, 1.25, 2.5, 3.9]
    plain = SDCassi(_mask(5, 8), bands=4, offsets=offsets)
    x = torch.rand(1, 4, 5, 8, dtype=torch.float64)
    assert_close(plain.replace(band_width=1 + 1e-9)(x), plain(x))


@pytest.mark.parametrize("step", [2, -2])
def test_bands_of_a_step_of_two_share_a_quarter_with_either_side(step):
    wide = with_wide_bands(SDCassi(_mask(4, 9), bands=3, step=step))
    plain = SDCassi(_mask(4, 9), bands=3, step=step)
    x = torch.rand(1, 3, 4, 9, dtype=torch.float64)
    y = plain(x)
    shared = y / 2
    shared[..., 1:] += y[..., :-1] / 4
    shared[..., :-1] += y[..., 1:] / 4
    assert wide.band_width == 2
    assert_close(wide(x), shared)


def test_light_within_the_detector_is_kept():
    ones = torch.ones(4, 9, dtype=torch.float64)
    wide = with_wide_bands(SDCassi(ones, bands=2, offsets=[3.3, 6.1], detector=20))
    x = torch.rand(1, 2, 4, 9, dtype=torch.float64)
    assert_close(wide(x).sum(), x.sum())


@pytest.mark.parametrize("width", [0.5, 101, True, "2"])
def test_a_width_that_is_none_is_refused(width):
    with pytest.raises(ValueError, match="band_width: expected 1 to 100"):
        SDCassi(_mask(4, 5), bands=2, band_width=width)
