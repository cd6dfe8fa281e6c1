"""Masks between pixels, with bands between pixels and a tilted axis of dispersion."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cassi.calibration import PARAMETERS, Frame, Geometry, fit_geometry, moved_camera
from cassi.calibration.geometry import code_images, on_pixels
from cassi.calibration.mask import fit_light
from cassi.calibration.search import search_start
from cassi.data.synthetic.twin import Twin
from cassi.systems import SDCassi

PLACE = ("down", "right", "rotation", "dispersion")
BANDS, HEIGHT, WIDTH = 12, 128, 144
TWIN = Twin(shift=[0.3, 0.5], rotation=0.1, dispersion=0.05, pivot=0.0, tilt=0.5)


def _fit(y, camera, interpolated, keys):
    frames = [Frame.snapshot(y, BANDS)]
    places = search_start(frames, camera, Geometry(whole=0, interpolated=interpolated), 2)
    pivots = (0.0, 0.5, 1.0) if "tilt" in keys else (0.5,)
    starts = [(place, q) for place in places for q in pivots]
    fits = [fit_geometry(frames, camera, replace(place, pivot=q), keys) for place, q in starts]
    return min(fits, key=lambda fit: fit.objectives[-1])


def test_the_step_is_found_where_the_mask_lies_between_pixels(camera, scene):
    twin = Twin(shift=[0.3, 0.5], rotation=0.1, dispersion=0.05, pivot=0.0)
    y = twin.expose(scene, camera)
    # A mask on whole pixels is less blurred, and another step makes up for that.
    whole = _fit(y, camera, 0.0, PLACE)
    found = _fit(y, camera, 0.5, (*PLACE, "interpolated"))
    assert found.objectives[-1] < whole.objectives[-1] - 0.1
    geometry = on_pixels(found.geometry, camera)
    assert geometry.dispersion[0] == pytest.approx(0.05, abs=0.004)
    assert abs(whole.geometry.dispersion[0] - 0.05) > 0.005
    assert geometry.whole + geometry.interpolated == pytest.approx(0.5, abs=0.05)


def test_a_tilt_is_found_and_about_which_band(camera, scene):
    y = TWIN.expose(scene, camera)
    found = _fit(y, camera, 0.5, (*PLACE, "interpolated", "tilt"))
    assert found.geometry.pivot == 0
    assert found.geometry.tilt == pytest.approx(0.5, abs=0.05)
    assert found.geometry.dispersion[0] == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("axis", [-1, -2])
def test_windows_see_what_the_tilted_camera_makes_of_a_white_scene(camera, axis):
    system = camera if axis == -1 else SDCassi(camera.mask[0, 0].mT.contiguous(), BANDS, axis=-2)
    geometry = Geometry((0.2, -0.3), 0.1, (0.02,), whole=0, tilt=0.7, pivot=0.2)
    images = code_images(system, geometry)
    y = moved_camera(system, geometry)(torch.ones(1, *system.cube_shape))
    seen = images.sum(0)[None]
    torch.testing.assert_close(seen if axis == -1 else seen.mT, y)
    lines = torch.tensor([0, 3, 17])
    torch.testing.assert_close(code_images(system, geometry, lines=lines), images[..., lines, :])


def test_known_light_through_a_tilted_camera(camera):
    tilted = moved_camera(camera, Geometry((0.2, -0.3), tilt=0.7))
    frame = Frame.snapshot(tilted(0.6 * torch.ones(1, *camera.cube_shape)), BANDS)
    assert fit_light(frame, tilted).level == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("key", ["interpolated", "tilt"])
def test_a_nominal_value_is_no_other_camera(camera, key):
    geometry = PARAMETERS[key].write(Geometry((0.5, 0.25)), PARAMETERS[key].nominal)
    assert type(moved_camera(camera, geometry)) is SDCassi
    assert PARAMETERS[key].distance(geometry) == 0
