"""The bend of a prism that light in lines shows."""

import numpy as np
import pytest
import torch

from cassi.apps.results import say_estimates, summarize_calibration
from cassi.calibration.prism import bent_camera, find_valley
from cassi.calibration.windows import Frame
from cassi.camera_search import calibrate_on
from cassi.systems import SDCassi, WideCassi
from tests.shared import smooth_scene, uniform

BANDS, SHADES = 18, 4
WAVELENGTHS = np.linspace(455, 645, BANDS).tolist()
NOMINAL = SDCassi(uniform(96, 96), BANDS, step=2, detector=133)


def frame_of(camera, scene):
    y = camera(scene)
    return y + 0.01 * y.mean() * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("bend", "shift"), [(0.3, 0.3), (0.9, -0.4)])
def test_light_in_lines_shows_the_bend_and_the_shift(bend, shift):
    y = frame_of(bent_camera(NOMINAL, WAVELENGTHS, bend, shift), smooth_scene(BANDS, 96, 96))
    found = find_valley(Frame.snapshot(y, BANDS), NOMINAL, WAVELENGTHS, 2)
    assert found.bend == pytest.approx(bend, abs=0.03)
    assert found.shift == pytest.approx(shift, abs=0.1)


def test_light_of_all_wavelengths_shows_none():
    fine = np.linspace(455 - 3 * 190 / 136, 645 + 3 * 190 / 136, SHADES * BANDS).tolist()
    offsets = bent_camera(NOMINAL, WAVELENGTHS, 0.6).offsets
    places = np.interp(fine, WAVELENGTHS, offsets).tolist()
    scene = smooth_scene(BANDS, 96, 96).repeat_interleave(SHADES, 1) / SHADES
    y = frame_of(SDCassi(NOMINAL.mask, len(fine), offsets=places, detector=133), scene)
    assert find_valley(Frame.snapshot(y, BANDS), NOMINAL, WAVELENGTHS, 2) is None


def test_a_bent_camera_is_calibrated():
    true = bent_camera(NOMINAL, WAVELENGTHS, 0.6, 0.3)
    y = frame_of(true, smooth_scene(BANDS, 96, 96))
    given = WideCassi(NOMINAL.mask, BANDS, step=2.02, detector=133)
    found = calibrate_on(y, given, prism=WAVELENGTHS)
    camera, bend = found.system, found.bend
    assert type(camera) is WideCassi
    assert camera.offsets == pytest.approx(true.offsets, abs=0.1)
    assert bend.value == pytest.approx(0.6, abs=0.1)
    assert found.told
    assert found.after < found.before
    assert found.geometry.shift[1] == pytest.approx(bend.offsets[0], abs=0.2)
    said = say_estimates(summarize_calibration(found, given))
    assert "of the bend of a prism, as light in lines shows" in said
