"""Detector pixels that a calibration leaves out: whatever they hold, nothing depends on it."""

import pytest
import torch

import cassi
from cassi.calibration import Frame, fit_light, refine_mask
from cassi.camera.light_model import SIMULATED_TAPS
from cassi.camera.place import PlaceFit
from cassi.solvers.statistics import unit_of
from cassi.systems import SDCassi

BANDS, SIZE = 5, 64


@pytest.fixture(params=[-1, -2])
def bench(request):
    """A camera, two snapshots of plain scenes, and their good pixels."""
    random = torch.Generator().manual_seed(0)
    camera = SDCassi(torch.rand(SIZE, SIZE, generator=random), BANDS, step=1, axis=request.param)
    ramp = torch.linspace(0.3, 1, SIZE).expand(BANDS, SIZE, SIZE)
    bands = torch.linspace(0.2, 1, BANDS)[:, None, None]
    y = camera(torch.stack([ramp * bands, ramp.flip(-1).mT * (1.2 - bands)]))
    good = torch.rand(y.shape, generator=random) > 0.04
    good[..., 20:23, 30:60] = False
    return camera, y, good


def _values(y, good):
    return [torch.where(good, y, value) for value in (0.0, 50.0)]


def test_in_windows(bench):
    camera, y, good = bench
    fits = [PlaceFit(value, camera, good, light=SIMULATED_TAPS) for value in _values(y, good)]
    nats = [fit.nats(fit.start()) for fit in fits]
    assert torch.equal(*nats)


def test_in_known_light(bench):
    camera, _, good = bench
    dirty = camera.mask * torch.linspace(0.9, 1, SIZE)
    seen = SDCassi(dirty, BANDS, step=1, axis=camera.axis)
    y = seen(torch.full((1, BANDS, SIZE, SIZE), 3.0))
    masks = []
    for value in _values(y, good[:1]):
        light = fit_light(Frame.snapshot(value, BANDS, good[:1]), camera)
        masks.append(refine_mask([light], camera))
    assert torch.equal(*masks)


def test_in_python(bench, monkeypatch):
    """They reach the calibration, said by themselves or by the camera."""
    camera, y, good = bench
    given = []

    def place(*arguments):
        given.append(arguments)
        raise InterruptedError

    monkeypatch.setattr("cassi.pipeline.calibrate.place_bands", place)
    spoilt = torch.where(good, y, torch.nan)
    with pytest.raises(InterruptedError):
        cassi.calibrate(spoilt, camera, bad_pixels=~good)
    with pytest.raises(InterruptedError):
        cassi.calibrate(spoilt, camera.weighted(bad_pixels=~good))
    for frame, system, pixels, *_ in given:
        assert system is camera
        assert torch.equal(pixels, good)
        seen = torch.where(good, y, 0)
        assert torch.equal(frame, seen / unit_of(seen).amax())  # in a power of two
