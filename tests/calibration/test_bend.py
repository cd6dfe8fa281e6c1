"""The bend of a dispersion that no frame shows, from the light along it."""

import numpy as np
import pytest

from cassi.calibration.bend import likely_bend
from cassi.systems.dispersion import prism_places

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


def test_nothing_is_said_of_light_unlike_a_thermal_lamps():
    light = np.full(BANDS, 0.02)
    light[[4, 9, 13]] = 1.0  # lines of a lamp
    assert likely_bend(light, np.linspace(0, SPAN, BANDS), WAVELENGTHS) is None


def test_nothing_is_said_of_light_that_is_not_seen():
    beyond = np.linspace(700, 1000, BANDS).tolist()
    assert likely_bend(np.ones(BANDS), np.linspace(0, SPAN, BANDS), beyond) is None
