import io

import numpy as np
import pytest
from PIL import Image

from cassi.apps.view.cubes import Region, Shown, spectrum
from cassi.apps.view.pictures import (
    as_png,
    as_rgba,
    band,
    colour,
    difference,
    grey,
    index,
    ratio,
    with_mask,
)


@pytest.fixture
def shown():
    cube = np.random.default_rng(0).random((5, 12, 16), np.float32) + 0.1
    return Shown("scene", cube, (450.0, 500.0, 550.0, 600.0, 650.0))


def test_a_rectangle_is_cut_at_the_border():
    region = Region.box((-3, 10.2), (4, 99), (12, 16))
    assert (region.top, region.left, region.height, region.width) == (0, 10, 4, 6)
    assert Region.box((2, 3), (2, 3), (12, 16)).label == "pixel (2, 3)"
    with pytest.raises(ValueError, match="inside 12 × 16"):
        Region.box((20, 0), (30, 5), (12, 16))


def test_an_outline_holds_the_pixels_whose_middle_it_holds():
    triangle = Region.inside([(0, 0), (0, 7.9), (7.9, 0)], (12, 16))
    row, column = np.mgrid[0:8, 0:8] + 0.5
    np.testing.assert_array_equal(triangle.mask(), row + column < 7.9)
    with pytest.raises(ValueError, match="at least one pixel"):
        Region.inside([(0, 0), (0, 0.2), (0.2, 0)], (12, 16))


def test_spectra_are_mean_and_spread_of_the_pixels(shown):
    deviation = np.full_like(shown.cube, 0.25)
    known = Shown("a", shown.cube, shown.wavelengths, shown.cube + 1, deviation)
    region = Region.box((2, 3), (5, 9), (12, 16))
    found, part = spectrum(known, region), shown.cube[:, 2:5, 3:9].reshape(5, -1)
    np.testing.assert_allclose(found.mean, part.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.spread, part.std(1), rtol=1e-5)
    np.testing.assert_allclose(found.error, 0.25)
    np.testing.assert_allclose(found.truth, part.mean(1) + 1, rtol=1e-6)
    assert found.pixels == 18
    alone = spectrum(shown, region)
    assert alone.error is None
    assert alone.truth is None


def test_pictures_show_what_their_captions_say(shown):
    other = Shown("other", shown.cube * 0.5, shown.wavelengths)
    assert colour(shown).rgb.shape == (12, 16, 3)
    brightest = np.unravel_index(shown.cube[2].argmax(), (12, 16))
    picture = band(shown, 2, shown.white())
    assert picture.rgb.sum(2).argmax() == np.ravel_multi_index(brightest, (12, 16))
    assert picture.caption.startswith("550 nm")
    assert picture.rgb[..., 1].max() == 255  # 550 nm is green
    whole, one = difference(shown, other, None), difference(shown, other, 1)
    assert "root mean square" in whole.caption
    assert "500 nm" in one.caption
    with pytest.raises(ValueError, match="one shape"):
        difference(shown, Shown("x", shown.cube[:, 1:]), None)
    assert "450 nm / 650 nm" in ratio(shown, 0, 4).caption
    middle = index(shown, 3, 3).rgb  # (a - a) / 2a
    assert len(np.unique(middle.reshape(-1, 3), axis=0)) == 1


def test_where_it_is_dark_a_ratio_is_none(shown):
    shown.cube[:, 0] = 0
    for picture in (ratio(shown, 0, 1), index(shown, 0, 1)):
        assert (picture.rgb[0] == 128).all()
        assert np.isfinite(picture.rgb).all()


def test_a_mask_lies_where_its_band_falls():
    frame, mask = np.ones((6, 10), np.float32), np.ones((6, 4), np.float32)
    for offset, reached in ((3, range(3, 7)), (-2, range(2)), (8, range(8, 10)), (20, ())):
        picture = with_mask(frame, mask, offset, -1).rgb
        red = [k for k in range(10) if picture[0, k, 0] != picture[0, k, 1]]
        assert red == list(reached)
    turned = with_mask(frame.T, mask.T, 3, -2).rgb
    np.testing.assert_array_equal(turned, with_mask(frame, mask, 3, -1).rgb.transpose(1, 0, 2))


def test_pictures_are_packed_and_written(shown):
    picture = grey(shown.cube[0], "band").rgb
    packed = as_rgba(picture)
    assert packed.dtype == np.uint32
    np.testing.assert_array_equal(packed & 255, picture[..., 0])
    assert (packed >> 24 == 255).all()
    small = Image.open(io.BytesIO(as_png(picture, 8)))
    assert small.size == (8, 6)


def test_bands_without_wavelengths_have_numbers():
    shown = Shown("a", np.zeros((3, 4, 4), np.float32))
    assert shown.band_name(0) == "band 1 of 3"
    assert shown.axis().tolist() == [1, 2, 3]
    assert band(shown, 1, shown.white()).rgb.max() == 0
