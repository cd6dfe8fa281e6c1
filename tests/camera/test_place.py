"""The place of a mask and the light along the dispersion, by frames of a continuous spectrum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate

from cassi.apps.results import format_estimates, summarize_calibration
from cassi.camera.displacement import BLURS, DISPLACEMENTS, PARAMETERS
from cassi.camera.light_model import BROADBAND, SIMULATED_LINES, SIMULATED_TAPS
from cassi.camera.place import COARSE_PARAMETERS, PlaceFit
from cassi.camera.search import can_be_placed, find_light, place_mask
from cassi.pipeline.calibrate import calibrate_on
from cassi.pipeline.snapshot import CalibrationRun
from cassi.systems import SDCassi

BANDS, STEP, HEIGHT, WIDTH, FINE = 12, 1.5, 96, 112, 4
NM = [460.0 + 15 * band for band in range(BANDS)]
SHADES = 4  # wavelengths per band
FIRST, LAST = -0.75, 17.25  # pixels between which there is light


def cells():
    """A mask of cells of two pixels, four samples per pixel, with a margin of 8 pixels."""
    random = torch.Generator().manual_seed(1)
    size = [(side + 16) // 2 for side in (HEIGHT, WIDTH)]
    levels = (torch.rand(size, generator=random) > 0.5).float()
    return levels.repeat_interleave(2 * FINE, 0).repeat_interleave(2 * FINE, 1)


def field(row, column):
    """Return the mask at rows and columns of its file, pixels."""
    plane = cells()
    r = ((row + 8.5) * FINE).long().clamp(0, plane.shape[0] - 1)
    c = ((column + 8.5) * FINE).long().clamp(0, plane.shape[1] - 1)
    return plane[r, c]


def grid(columns):
    rows, width = ((torch.arange(n * FINE) + 0.5) / FINE - 0.5 for n in (HEIGHT, columns))
    return torch.meshgrid(rows, width, indexing="ij")


def measure(down=0.0, turned=0.0, axis=-1):
    """Return a camera whose mask lies elsewhere, and its frame in light of all wavelengths."""
    mask = avg_pool2d(field(*grid(WIDTH))[None, None], FINE)[0, 0]
    detector = WIDTH + math.ceil(STEP * (BANDS - 1)) + 1
    random = torch.Generator().manual_seed(2)
    maps = interpolate(torch.rand(1, 3, 6, 7, generator=random), size=(HEIGHT, detector))[0]
    maps = interpolate(maps[None], scale_factor=FINE, mode="bilinear")[0].clamp_min(0.05)
    row, column = grid(detector)
    frame = torch.zeros_like(row)
    angle = math.radians(turned)
    for shade in range(BANDS * SHADES):
        at = (shade + 0.5) / SHADES - 0.5
        nm, offset = NM[0] + 15 * at, STEP * at
        r, c = row - down - (HEIGHT - 1) / 2, column - offset - (WIDTH - 1) / 2
        # Counterclockwise as displayed: what lies right goes up.
        code = field(
            r + angle * c + (HEIGHT - 1) / 2,
            c - angle * r + (WIDTH - 1) / 2,
        )
        inside = (column - offset >= -0.5) & (column - offset < WIDTH - 0.5)
        tint = [math.exp(-(((nm - peak) / 60) ** 2)) + 0.3 for peak in (480, 550, 620)]
        frame += code * inside * sum(t * each for t, each in zip(tint, maps, strict=True))
    y = avg_pool2d(frame[None, None], FINE)
    y = y + 0.003 * y.mean() * torch.randn(y.shape, generator=random)
    offsets = [STEP * band for band in range(BANDS)]
    if axis == -2:
        mask, y = mask.mT.contiguous(), y.mT.contiguous()
    camera = SDCassi(mask, BANDS, axis=axis, offsets=offsets, detector=detector)
    camera.is_broadband = True
    return camera, y


@pytest.mark.parametrize(("axis", "down", "turned"), [(-1, 0.7, 0.3), (-2, -0.6, 0.0)])
def test_the_mask_is_found_where_it_lies(axis, down, turned):
    camera, y = measure(down, turned, axis)
    place = place_mask(y, camera, wavelengths=NM)
    assert place.values["across"] == pytest.approx(down, abs=0.15)
    assert place.values["rotation"] == pytest.approx(turned, abs=0.25)
    assert place.values["magnification"] == pytest.approx(0, abs=5e-3)
    assert all(place.errors[key] <= DISPLACEMENTS[key].deviation for key in DISPLACEMENTS)


def test_light_is_found_between_its_ends():
    camera, y = measure()
    found = find_light(y, camera, wavelengths=NM)
    inside = (found.offsets > FIRST + 0.5) & (found.offsets < LAST - 0.5)
    outside = (found.offsets < FIRST - 1) | (found.offsets > LAST + 1)
    assert float(found.light[outside].max()) < 0.1 * float(found.light[inside].median())


def test_a_sensors_frame_gives_a_camera():
    camera, y = measure(-0.6, -0.3, axis=-2)
    bad = torch.rand(y.shape[1:], generator=torch.Generator().manual_seed(4)) < 0.005
    found = calibrate_on(y, camera.weighted(bad_pixels=bad), wavelengths=NM)
    assert found.after < found.before
    assert not found.told
    values = {each.key: each for each in found.estimates}
    assert values["right"].value == pytest.approx(-0.6, abs=0.15)
    rotation = values["rotation"]
    assert abs(rotation.value - 0.3) < 2 * rotation.standard_error  # as displayed
    assert found.system.axis == -2
    assert found.system.is_broadband
    assert (found.system.mask - camera.mask).abs().mean() > 0.05


def test_a_camera_that_predicts_twice_as_badly_is_dropped(monkeypatch):
    camera, y = measure(0.7)
    monkeypatch.setattr(
        "cassi.pipeline.calibrate.heldout_error",
        lambda _, __, tried, *___: 1.0 + 2 * (tried != camera),
    )
    found = calibrate_on(y, camera, wavelengths=NM)
    assert found.system is camera
    assert found.after == found.before == 1
    assert "predicted twice as badly" in found.dropped[0]
    said = format_estimates(summarize_calibration(CalibrationRun(found, camera, 0.0)))
    assert ", taken" not in said
    assert "the mask is moved as well" not in said


def test_what_a_frame_does_not_tell_stays():
    camera, y = measure()
    place = place_mask(y, camera, wavelengths=NM, count=16)
    for key, parameter in DISPLACEMENTS.items():
        if place.errors[key] > 0.71 * parameter.deviation:
            assert place.significant[key] == 0
        # Errors of one alone are smaller than of one beside others.
        if abs(place.values[key]) > 4 * place.errors[key]:
            assert place.significant[key] != 0
    assert sum(place.significant[key] != 0 for key in DISPLACEMENTS) < 6
    assert place.significant["blur"] == max(place.values["blur"], 0.0)


def test_rows_are_sampled_as_pixels_are():
    camera, y = measure(0.3)
    fit = PlaceFit(y, camera, wavelengths=NM, count=12, light=SIMULATED_TAPS)
    start = fit.start()
    start.values.update({"across": 0.21, "along": 0.4, "bands": 0.3, "step": -0.4, "curve": 0.2})
    keys = ("across", "step", "blur")
    # A tilt that moves nothing, but differs from pixel to pixel.
    tilted = replace(start, values=start.values | {"tilt": 1e-9})
    found, wanted = fit.codes(start, keys), fit.codes(tilted, keys)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-4)
    for change, wanted_change in zip(found[1], wanted[1], strict=True):
        torch.testing.assert_close(change, wanted_change, rtol=0, atol=1e-3)


@pytest.mark.parametrize("lines", [False, True])
def test_gradients_are_those_of_the_evidence(lines):
    camera, y = measure(0.3)
    light = SIMULATED_LINES if lines else BROADBAND
    fit = PlaceFit(y, camera, wavelengths=NM, count=12, light=light, dtype=torch.float64)
    random = torch.Generator().manual_seed(4)
    state = replace(
        fit.start(), light=0.3 * torch.randn(len(fit.offsets), generator=random).double()
    )
    state.values.update({"across": 0.21, "rotation": 0.05, "blur": 0.4, "width": 0.7})
    keys = tuple(key for key in fit.keys if key != "bands")
    state = fit.fit_noise(state)
    nats, gradient, _ = fit.scores(state, keys)
    torch.testing.assert_close(nats, fit.nats(state))

    def slope(change, step):
        ends = [float(fit.nats(change(sign * step)).sum()) for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * step)

    # Per pixel. Between its pixels a mask is linear, so that slopes of single keys are rough.
    found, wanted = [], []
    for k, key in enumerate(keys):
        scale = PARAMETERS[key].scale(HEIGHT, WIDTH)[0] if key in PARAMETERS else 1.0

        def change(by, key=key):
            return replace(state, values=state.values | {key: state.values[key] + by})

        found.append(float(gradient[:, k].sum()) / scale)
        wanted.append(slope(change, 0.05 / scale) / scale)
    found, wanted = torch.tensor(found), torch.tensor(wanted)
    assert float((found - wanted).norm()) < 0.15 * float(wanted.norm())
    for k in (0, 5, 11):
        shone = slope(
            lambda by, k=k: replace(
                state,
                light=state.light.index_add(
                    0, torch.tensor([k]), torch.tensor([by], dtype=torch.float64)
                ),
            ),
            0.01,
        )
        assert float(gradient[:, len(keys) + k].sum()) == pytest.approx(shone, rel=0.02, abs=0.05)


def test_what_no_window_tells_stays_at_its_prior():
    camera, y = measure()
    stripes = (torch.arange(WIDTH) // 2 % 2).float().expand(HEIGHT, WIDTH)
    offsets = list(camera.offsets)
    striped = SDCassi(stripes, BANDS, offsets=offsets, detector=camera.measurement_shape[-1])
    y = striped(torch.ones(1, BANDS, HEIGHT, WIDTH))
    y = y + 0.01 * torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    fit = PlaceFit(y, striped, wavelengths=NM, count=8)
    place = fit.place(fit.run(fit.start(), (*COARSE_PARAMETERS, *BLURS), 6))
    assert abs(place.values["across"]) < 0.1
    assert place.errors["across"] > 0.9 * DISPLACEMENTS["across"].deviation


def test_other_cameras_and_dark_frames_are_refused():
    camera, y = measure()
    assert can_be_placed(camera)
    per_band = SDCassi(torch.rand(1, BANDS, HEIGHT, WIDTH), BANDS, step=1)
    assert not can_be_placed(per_band)
    narrow = SDCassi(torch.rand(HEIGHT, 24), BANDS, step=1.5)
    # No window sees all light through the mask.
    with pytest.raises(ValueError, match="at least 8 lit windows"):
        place_mask(torch.rand(1, *narrow.measurement_shape), narrow)
    with pytest.raises(ValueError, match="light"):
        place_mask(torch.zeros_like(y), camera)
