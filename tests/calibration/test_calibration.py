"""Calibration finds what a camera is off by, and says how sure it is."""

from __future__ import annotations

import math

import pytest
import torch

from cassi.calibration import (
    PARAMETERS,
    Frame,
    Geometry,
    Windows,
    calibrate,
    fit_geometry,
    fit_light,
    moved_camera,
    refine_mask,
    search_start,
)
from cassi.calibration.parameters import PLACE
from cassi.evaluation import Twin
from cassi.systems import SDCassi

BANDS, HEIGHT, WIDTH = 8, 96, 96
TRUE = Geometry((0.6, -0.4), 0.2, (0.03,))


def measure(scene, camera, geometry=TRUE):
    return Twin(
        shift=geometry.shift, rotation=geometry.rotation, dispersion=geometry.dispersion[0]
    ).expose(scene, camera)


def test_the_model_is_that_of_the_mismatch(camera, scene):
    y, modelled = measure(scene, camera), moved_camera(camera, TRUE)(scene)
    # What is lost at the border differs.
    torch.testing.assert_close(modelled[..., 2:-2], y[..., 2:-2])


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("step", [2, -1])
def test_offsets_move_with_the_geometry(axis, step):
    system = SDCassi(torch.rand(40, 40), 5, step=step, axis=axis)
    moved = moved_camera(system, Geometry((0, 0), 0, (0.1, 0.3)))
    assert moved.measurement_shape == system.measurement_shape
    v = torch.linspace(-1, 1, 5).double()
    expected = torch.tensor(system.offsets) + 0.2 * v + 0.3 * (1.5 * v * v - 0.5)
    torch.testing.assert_close(torch.tensor(moved.offsets).double(), expected.double())
    same = moved_camera(system, Geometry())
    x = torch.rand(1, 5, 40, 40)
    assert torch.equal(same(x), system(x))


@pytest.mark.parametrize("axis", [-1, -2])
def test_finds_the_geometry_within_its_errors(axis, scene):
    generator = torch.Generator().manual_seed(1)
    system = SDCassi(torch.rand(HEIGHT, WIDTH, generator=generator), BANDS, step=2, axis=axis)
    y = measure(scene if axis == -1 else scene.mT.contiguous(), system)
    y = y + 0.002 * torch.randn(y.shape, generator=generator)
    frames = [Frame.snapshot(y, BANDS)]
    places = search_start(frames, system, Geometry(), 2)
    fit = min(
        (fit_geometry(frames, system, place) for place in places),
        key=lambda fit: fit.objectives[-1],
    )
    errors = fit.errors.values()
    for value, true, error in zip(fit.geometry.values(), TRUE.values(), errors, strict=True):
        assert abs(value - true) < 5 * error
        assert abs(value - true) < 0.05
    assert all(error < 0.05 for error in errors)


def test_errors_are_those_of_repeated_measurements(camera, scene):
    y, generator = measure(scene, camera), torch.Generator().manual_seed(2)
    found, errors = [], []
    for _ in range(8):
        noisy = y + 0.03 * torch.randn(y.shape, generator=generator)
        fit = fit_geometry([Frame.snapshot(noisy, BANDS)], camera, TRUE)
        found.append(fit.geometry.values())
        errors.append([*fit.errors.values()])
    miss = (torch.tensor(found) - torch.tensor(TRUE.values())).square().mean(0).sqrt()
    said = torch.tensor(errors).square().mean(0).sqrt()
    assert (miss < 3 * said).all()
    assert (said < 6 * miss).all()


def test_gradient_is_that_of_the_objective(camera, scene):
    windows = Windows(Frame.snapshot(measure(scene, camera), BANDS), camera)
    geometry = Geometry((0.5, -0.3), 0.1, (0.02,))
    found = windows.derivatives(geometry)
    assert found.objective == pytest.approx(windows.objective(geometry))
    gradient = found.gradient.sum(0) * 2 / len(windows) / windows.freedom
    for k, parameter in enumerate(PARAMETERS[key] for key in PLACE):
        value, h = parameter.read(geometry), parameter.step(camera)
        up, down = (parameter.write(geometry, value + s * h) for s in (0.1, -0.1))
        slope = windows.objective(up) - windows.objective(down)
        # Kaufman's approximation leaves the change of the scene out.
        assert gradient[k].item() == pytest.approx(slope / (0.2 * h), rel=0.3, abs=0.05)


@pytest.mark.parametrize("axis", [-1, -2])
def test_one_mask_is_that_of_every_band(axis):
    mask = torch.rand(72, 80, generator=torch.Generator().manual_seed(0))
    shared = SDCassi(mask, 5, step=-1.5, axis=axis)
    each = SDCassi(mask.expand(1, 5, -1, -1), 5, step=-1.5, axis=axis)
    y = shared(torch.rand(1, 5, 72, 80, generator=torch.Generator().manual_seed(1)))
    geometry = Geometry((0.3, -0.7), 0.1, (0.02, 0.3), whole=0)
    for frame in (Frame.snapshot(y, 5), Frame.monochromatic(y, 2.4)):
        found = [Windows(frame, system).derivatives(geometry) for system in (shared, each)]
        torch.testing.assert_close(found[0].variance, found[1].variance, rtol=1e-4, atol=0)
        torch.testing.assert_close(found[0].gradient, found[1].gradient, rtol=1e-3, atol=1e-2)


def test_of_many_windows_those_of_whole_strips_are_taken():
    system = SDCassi(torch.ones(660, 700), 2)
    windows = Windows(Frame.snapshot(system(torch.ones(1, 2, 660, 700)), 2), system)
    assert 500 < len(windows) < 700
    assert len(windows.lines) == 14 * 16
    assert windows.place.unique().tolist() == list(range(16))


def test_known_light_gives_gain_and_mask(camera):
    true = moved_camera(camera, TRUE)
    dirt = torch.ones(HEIGHT, WIDTH)
    dirt[40:44, 40:44] = 0.2
    dirty = SDCassi(
        true.mask * dirt, BANDS, offsets=true.offsets, detector=true.measurement_shape[-1]
    )
    white = Frame.snapshot(3 * dirty(torch.ones(1, BANDS, HEIGHT, WIDTH)), BANDS)
    one = torch.zeros(1, BANDS, HEIGHT, WIDTH)
    one[:, 3] = 2
    single = Frame.monochromatic(dirty(one), 3.0)
    fit = fit_geometry([white, single], camera, Geometry())
    torch.testing.assert_close(
        torch.tensor(fit.geometry.values()), torch.tensor(TRUE.values()), atol=0.01, rtol=0
    )
    lights = [fit_light(frame, true) for frame in (white, single)]
    assert lights[0].level == pytest.approx(3, rel=0.03)
    assert lights[1].level == pytest.approx(2, rel=0.03)
    mask = refine_mask(lights, true)
    before, after = ((m - dirty.mask).square().mean().sqrt() for m in (true.mask, mask))
    assert after < 0.4 * before


def test_dark_windows_say_nothing(camera, scene):
    y = measure(scene, camera)
    y[..., 64:, :] = 0
    fit = fit_geometry([Frame.snapshot(y, BANDS)], camera, Geometry((0.5, -0.5), 0.0, (0.0,)))
    assert all(map(math.isfinite, fit.geometry.values()))
    assert fit.geometry.shift == pytest.approx(TRUE.shift, abs=0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"radius": 21}, "radius"),
        ({"degree": 0}, "degree"),
        ({"gain": 1.0}, "gain"),
        ({"frames": []}, "at least one frame"),
        ({"frames": [Frame.snapshot(torch.ones(1, 1, 96, 96), BANDS)]}, "expected frames"),
        ({"system": SDCassi(torch.rand(2, 1, 1, 96, 96), BANDS)}, "mask per sample"),
    ],
)
def test_refuses(camera, change, said):
    frames = [Frame.snapshot(torch.rand(1, 1, HEIGHT, WIDTH + 2 * BANDS - 2), BANDS)]
    arguments = {"frames": frames, "system": camera, "prepare": lambda *_: None} | change
    with pytest.raises(ValueError, match=said):
        calibrate(**arguments)
