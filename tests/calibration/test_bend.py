"""The bend of a dispersion that no frame shows, from the light along it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cassi.calibration import Calibration, Geometry
from cassi.calibration.bend import likely_bend
from cassi.calibration.geometry import moved_camera
from cassi.camera_search import bend as bend_found
from cassi.systems import SDCassi
from cassi.systems.dispersion import prism_places
from tests.shared import smooth_scene, uniform

BANDS, SPAN = 18, 36.0
WAVELENGTHS = np.linspace(455, 645, BANDS).tolist()


def light_along(bend, scene):
    """Return a halogen lamp's light on silicon, of even bands where the true ones are bent."""
    fine = np.linspace(455, 645, 2000)
    share = np.linspace(0, 1, 2000)
    places = share + bend * (np.array(prism_places(fine.tolist())) - share)
    lamp = fine**-4 / np.expm1(1.4388e7 / (fine * 3100)) * np.exp(-(((fine - 630) / 210) ** 2))
    density = lamp * scene(share) / np.gradient(places)
    return np.interp(np.linspace(0, 1, BANDS), places, density)


@pytest.mark.parametrize("bend", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("scene", [lambda v: 1 + 0 * v, lambda v: 0.3 + 0.4 * v])
def test_the_bend_is_found_within_its_error(bend, scene):
    found = likely_bend(light_along(bend, scene), np.linspace(SPAN, 0, BANDS), WAVELENGTHS)
    assert 0.05 < found.error < 0.4
    assert abs(found.value - bend) < 2 * found.error
    assert (found.shift, found.shift_error) == (0, 0.5)
    assert found.offsets[0] == SPAN
    assert abs(found.offsets[-1]) < 1e-9
    curve = SPAN * np.abs(np.array(prism_places(WAVELENGTHS)) - np.linspace(0, 1, BANDS)).max()
    assert found.most == pytest.approx(found.error * curve)


@pytest.mark.parametrize("wavelength", [455 - 190 / 34, 645 + 190 / 34])
def test_bands_are_shifted_to_where_light_ends(wavelength):
    light, offsets = light_along(0.6, np.ones_like), np.linspace(SPAN, 0, BANDS)
    even = (wavelength - 455) / 190
    curved = even + 0.6 * (prism_places([455, wavelength, 645])[1] - even)
    end = SPAN * (1 - curved) + 0.4
    found = likely_bend(light, offsets, WAVELENGTHS, (end, 0.1))
    assert found.shift_error < 0.3
    assert abs(found.shift - 0.4) < 2 * found.shift_error
    assert found.offsets[-1] == pytest.approx(found.shift)
    assert found.offsets[0] == pytest.approx(SPAN + found.shift)
    unsure = likely_bend(light, offsets, WAVELENGTHS, (end, 50.0))
    assert unsure.shift == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("across", [0.0, 0.5])
def test_a_mask_that_made_up_for_a_wrong_curve_is_put_back(across):
    nominal, shift, shades = SDCassi(uniform(96, 96), BANDS, step=2, detector=133), 0.3, 4
    fine = np.linspace(455 - 3 * 190 / 136, 645 + 3 * 190 / 136, shades * BANDS)
    even = (fine - 455) / 190
    curved = np.array(prism_places([455, *fine.tolist(), 645]))[1:-1]
    places = shift + 34 * (even + 0.6 * (curved - even))
    lamp = fine**-4 / np.expm1(1.4388e7 / (fine * 3100)) * np.exp(-(((fine - 630) / 210) ** 2))
    scene = smooth_scene(BANDS, 96, 96).mean(1, keepdim=True)
    x = scene * torch.from_numpy(lamp / lamp.mean()).float()[:, None, None] / shades
    true = moved_camera(
        SDCassi(nominal.mask, BANDS, step=2), Geometry(shift=(across, 0.0), whole=0)
    )
    y = SDCassi(true.mask, len(fine), offsets=places.tolist(), detector=133)(x)
    y = y + 0.01 * y.mean() * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    geometry = Geometry(shift=(0.4, 0.0))
    light = tuple(light_along(0.6, np.ones_like)[::-1].tolist())
    given = Calibration(
        *(geometry, ("down",), {"down": 0.1}, moved_camera(nominal, geometry)),
        *([], 1.0, 1.0, None, False, light),
    )
    found = bend_found(given, y, nominal, WAVELENGTHS)
    bent, likely = found.system, found.bend
    assert found.dropped
    assert bent.measurement_shape == nominal.measurement_shape
    assert_close(bent.mask, true.mask, atol=0.02, rtol=0)
    assert found.model == (("down", "rotation", "right") if across else ("right",))
    assert found.geometry.shift == (pytest.approx(across, abs=0.02), likely.shift)
    assert bent.offsets == pytest.approx(likely.offsets)
    assert abs(likely.shift - shift) < 2 * likely.shift_error < 0.6
    beyond = np.linspace(700, 1000, BANDS).tolist()
    assert bend_found(given, y, nominal, beyond) == given


def test_nothing_is_said_of_light_that_is_not_seen():
    beyond = np.linspace(700, 1000, BANDS).tolist()
    assert likely_bend(np.ones(BANDS), np.linspace(0, SPAN, BANDS), beyond) is None
