"""Light in lines tells a curve of dispersion, light of all wavelengths does not."""

import sys

import pytest
import torch

from cassi.calibration import Frame, Geometry, calibrate, check_camera
from cassi.calibration.band_check import find_bands
from cassi.calibration.camera_check import UNSHOWN
from cassi.calibration.lines import comes_in_lines, tells_dispersion
from cassi.camera_search import auto, by_solver
from cassi.systems import SDCassi

BANDS, SIDE, BEND = 12, 96, 2.0


def cameras(shades):
    """Return a straight camera, and what light of so many wavelengths per band shows of a curve."""
    mask = (torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    straight = SDCassi(mask, BANDS, offsets=[2.0 * c + 2 for c in range(BANDS)], detector=SIDE + 28)
    at = torch.arange(BANDS * shades, dtype=torch.float64)
    band = (at + 0.5) / shades - 0.5
    v = 2 * band / (BANDS - 1) - 1
    places = 2 * band + 2 + BEND * ((3 * v * v - 1) / 2 - 1)
    true = SDCassi(mask, len(at), offsets=places.tolist(), detector=SIDE + 28)
    rows = torch.linspace(0, 1, SIDE).view(-1, 1)
    light = 1 + torch.sin(3 * v).float().view(-1, 1, 1) * rows + 0.3 * rows.mT
    y = true(light[None] / shades)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return straight, y + 0.01 * y.mean() * noise


@pytest.mark.parametrize(("shades", "told"), [(1, True), (4, False)])
def test_lines_tell_the_curve(shades, told):
    straight, y = cameras(shades)
    found = Geometry(dispersion=(0.0, BEND), whole=0).with_shift(0.0, -BEND, -1)
    frames = [Frame.snapshot(y, BANDS)]
    assert tells_dispersion(frames, straight, found, Geometry(whole=0)) is told


@pytest.mark.parametrize(("shades", "lines"), [(1, True), (4, False)])
def test_the_light_of_a_right_camera_is_told(shades, lines):
    straight, y = cameras(shades)
    v = torch.linspace(-1, 1, BANDS)
    places = torch.tensor(straight.offsets) + BEND * ((3 * v * v - 1) / 2 - 1)
    camera = SDCassi(straight.mask, BANDS, offsets=places.tolist(), detector=SIDE + 28)
    assert comes_in_lines(y, camera) is lines
    assert comes_in_lines(y, camera.weighted(bad_pixels=torch.rand(y.shape[1:]) < 0.01)) is lines


def test_a_frame_of_one_wavelength_tells_it_too():
    straight, y = cameras(4)
    frames = [Frame.snapshot(y, BANDS), Frame.monochromatic(y, 3.0)]
    assert tells_dispersion(frames, straight, Geometry(), Geometry())


def test_a_dispersion_that_no_frame_tells_stays():
    straight, y = cameras(4)
    found = calibrate([Frame.snapshot(y, BANDS)], straight, by_solver(auto()))
    assert not found.told
    assert found.geometry.dispersion == (0.0,)
    assert not any(key.startswith("dispersion") for key in found.errors)
    assert found.searched["down"] == 2


@pytest.mark.parametrize("curved", [True, False])
def test_where_light_may_come_in_lines_withheld_pixels_decide(monkeypatch, curved):
    module = sys.modules["cassi.calibration.calibrate"]
    monkeypatch.setattr(module, "compare_moved", lambda *_: 1.0)
    monkeypatch.setattr(module, "tells_dispersion", lambda *_: None)
    straight, y = cameras(1)
    if not curved:
        y = straight(torch.ones(1, *straight.cube_shape))
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        y = y + 0.01 * y.mean() * noise
    found = calibrate([Frame.snapshot(y, BANDS)], straight, by_solver(auto()))
    assert found.told is curved
    assert ("dispersion_2" in found.model) is curved


@pytest.mark.parametrize(("shades", "warned"), [(1, True), (4, False)])
def test_the_camera_check_warns_of_a_curve_by_its_offsets(shades, warned):
    straight, y = cameras(shades)
    check = check_camera(y, straight)
    said = [each for each in check.warnings if each.about == "curve"]
    assert bool(said) is warned
    assert (UNSHOWN in check.note) is not warned
    assert all("system.offsets=[" in each.message for each in said)


def test_a_curve_that_was_given_is_believed_without_a_search():
    straight, y = cameras(4)
    bent = (straight.offsets[0], straight.offsets[1] - 0.5, *straight.offsets[2:])
    given = SDCassi(straight.mask, BANDS, offsets=bent, detector=y.shape[-1])
    check = check_camera(y, given)
    assert UNSHOWN not in check.note
    assert "curve_shown" not in check.numbers
    assert find_bands(y, given) is None
