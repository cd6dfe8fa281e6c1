"""The bend of a dispersion that no frame shows, from the light along it."""

import numpy as np
import pytest

from cassi.calibration.bend import bent_camera, likely_bend
from cassi.systems import SDCassi, WideCassi
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
    assert 0.05 < found.error < 0.35
    assert abs(found.value - bend) < 2 * found.error
    assert found.offsets[0] == SPAN
    assert abs(found.offsets[-1]) < 1e-9
    curve = SPAN * np.abs(np.array(prism_places(WAVELENGTHS)) - np.linspace(0, 1, BANDS)).max()
    assert found.most == pytest.approx(found.error * curve)


def test_nothing_is_said_of_light_that_is_not_seen():
    beyond = np.linspace(700, 1000, BANDS).tolist()
    assert likely_bend(np.ones(BANDS), np.linspace(0, SPAN, BANDS), beyond) is None


@pytest.mark.parametrize("kind", [SDCassi, WideCassi])
def test_a_bent_camera_keeps_all_but_its_offsets(kind):
    nominal = kind(np.eye(40, 50, dtype="f4"), BANDS, step=2)
    bend = likely_bend(light_along(0.6, np.ones_like), nominal.offsets, WAVELENGTHS)
    camera = bent_camera(nominal, bend)
    assert type(camera) is kind
    assert camera.offsets == pytest.approx(bend.offsets)
    assert camera.measurement_shape == nominal.measurement_shape
