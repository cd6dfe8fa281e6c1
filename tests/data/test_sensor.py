"""A sensor: means and variances of its equation, its bits, and that every part can be off."""

import math

import pytest
import torch
from shared import seeded

from cassi.data.sensor import Sensor

BANDS = 28
IDEAL = {"shot": None, "bits": None, "full_well": 1e4}
CAMERA = {"shot": "poisson", "full_well": 1e4, "gain": 2.5, "bits": 12}


def _expose(sensor, level, seed=0):
    """A frame of 400 x 400 pixels in electrons, of light that makes `level` full wells."""
    y = torch.full((1, 1, 400, 400), level * sensor.electrons / sensor.unit(BANDS))
    return sensor(y, BANDS, seeded(seed)).double() * sensor.unit(BANDS)


def test_the_papers_model_to_the_bit():
    """Binomial(int(y·2048/0.4), 0.4)/2048 of y scaled by 1.2·2/28, the scale taken out again."""
    y = torch.rand(2, 1, 30, 40, generator=seeded(1)) * 12
    electrons = 1.2 * 2 / BANDS * 2**11
    photons = (y * (electrons / 0.4)).floor()
    chance = torch.full_like(photons, 0.4)
    expected = torch.binomial(photons, chance, generator=seeded()) / electrons
    assert torch.equal(Sensor()(y, BANDS, seeded()), expected)


def test_everything_can_be_off():
    y = torch.rand(2, 1, 30, 40) * 30
    torch.testing.assert_close(Sensor(**IDEAL)(y, BANDS, seeded()), y)
    assert Sensor(**IDEAL)(y.double(), BANDS, seeded()).dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "variance"),
    [
        ({"shot": "poisson"}, 3000.0),
        ({"shot": "binomial", "qe": 0.4}, 0.6 * 3000),
        ({"shot": "binomial", "qe": 1.0}, 0.0),
        ({"read": 20.0}, 400.0),
        ({"shot": "poisson", "dark": 500.0}, 3500.0),
        ({"bits": 12, "gain": 40.0, "read": 30.0}, 900 + 40**2 / 12),
        (CAMERA | {"read": 5.0, "dark": 100.0, "offset": 64.0}, 3100 + 25 + 2.5**2 / 12),
        ({"prnu": 0.02}, 60.0**2),
    ],
)
def test_mean_and_variance(options, variance):
    e = _expose(Sensor(**IDEAL | options), 0.3)
    spread = math.sqrt(variance / e.numel())
    # Binomial counts whole photons: on average half a photon less, qe/2 electrons.
    assert e.mean().item() == pytest.approx(3000, abs=5 * spread + 0.5 + 1e-2)
    assert e.var().item() == pytest.approx(variance, rel=0.02, abs=1e-3)


def test_saturation_at_full_well_and_at_the_converter():
    sensor = Sensor(**CAMERA, saturate=True)
    saturated_light = torch.full((1, 1, 400, 400), 1e4).double()
    torch.testing.assert_close(_expose(sensor, 5.0), saturated_light, rtol=1e-6, atol=0)
    low = Sensor(**CAMERA | {"gain": 1.0}, saturate=True, offset=95.0)
    assert _expose(low, 5.0).max().item() == pytest.approx(4000, rel=1e-6)
    assert _expose(Sensor(**CAMERA), 5.0).mean().item() == pytest.approx(5e4, rel=1e-3)
    # Read noise around zero: clipped without an offset, hence too bright; not with one.
    dark = _expose(Sensor(**CAMERA | {"read": 10.0}, saturate=True), 0.0)
    assert dark.min() == 0
    assert dark.mean() > 1
    dark = _expose(Sensor(**CAMERA | {"read": 10.0}, saturate=True, offset=64.0), 0.0)
    assert dark.mean().abs() < 0.2


def test_frames_are_whole_counts():
    sensor = Sensor(**CAMERA, read=3.0, offset=64.0, raw=True)
    counts = _expose(sensor, 0.3) / 2.5
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-3)
    assert counts.mean().item() == pytest.approx(0.3 * 4000 + 64, rel=1e-3)


def test_a_raw_frame_keeps_the_dark_level():
    options = CAMERA | {"dark": 200.0, "offset": 64.0}
    raw, corrected_frame = (_expose(Sensor(**options, raw=raw), 0.1) for raw in (True, False))
    level = torch.full_like(raw, 64 * 2.5 + 200)
    torch.testing.assert_close(raw - corrected_frame, level, rtol=1e-5, atol=0)


def test_hot_pixels_stay_where_they_are():
    sensor = Sensor(**CAMERA, hot=0.01, hot_level=0.8)
    first, second = _expose(sensor, 0.0, seed=1), _expose(sensor, 0.0, seed=2)
    is_hot = first > 4000
    assert is_hot.sum() == 1600
    assert torch.equal(is_hot, second > 4000)
    assert not torch.equal(first, second)
    assert first[is_hot].mean().item() == pytest.approx(8000, rel=0.01)
    assert torch.equal(is_hot, _expose(Sensor(**CAMERA, hot=0.01, prnu=0.1), 0.0) > 4000)
    other_seed = _expose(Sensor(**CAMERA, hot=0.01, seed=1), 0.0) > 4000
    assert (is_hot & other_seed).sum() < 100
    is_listed = _expose(Sensor(**CAMERA, hot=[[3, 4], [399, 0]]), 0.0) > 4000
    assert is_listed.nonzero()[:, 2:].tolist() == [[3, 4], [399, 0]]


def test_every_shot_and_sample_meets_the_same_pixels():
    sensor = Sensor(**IDEAL, prnu=0.1, hot=0.05)
    frame = sensor(torch.ones(2, 3, 20, 30), BANDS, seeded())
    assert torch.equal(frame, frame[:1, :1].expand_as(frame))


def test_the_same_state_gives_the_same_bits():
    options = CAMERA | {"read": 2.0, "dark": 5.0, "hot": 0.01, "prnu": 0.01, "saturate": True}
    y = torch.rand(1, 2, 20, 30) * 10
    first = Sensor(**options)(y, BANDS, seeded(5))
    assert torch.equal(Sensor(**options)(y, BANDS, seeded(5)), first)
    assert not torch.equal(Sensor(**options)(y, BANDS, seeded(6)), first)


@pytest.mark.cuda
def test_a_gpu_has_the_same_sensor():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    sensor = Sensor(**IDEAL, prnu=0.1, hot=0.05)
    y = torch.rand(2, 1, 20, 30)
    frame_of_gpu = sensor(y.cuda(), BANDS, seeded())
    torch.testing.assert_close(frame_of_gpu.cpu(), sensor(y, BANDS, seeded()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exposure": 0}, "exposure: expected a number > 0, got 0"),
        ({"full_well": 0}, "full_well: expected a number > 0, or null"),
        ({"qe": 0}, r"qe: expected a quantum efficiency in \(0, 1\], got 0"),
        ({"shot": "gauss"}, "shot: expected poisson, binomial or null, got 'gauss'"),
        ({"bits": 0}, "bits: expected 1 to 24, or null, got 0"),
        ({"bits": None}, "full_well: expected electrons where bits is null"),
        ({"read": -1}, "read: expected a number of at least 0"),
        ({"hot": 1.0}, r"hot: expected a fraction in \[0, 1\) or"),
        ({"saturate": 1}, "saturate: expected true or false, got 1"),
        ({"seed": -1}, "seed: expected a whole number"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sensor(**options)


def test_a_hot_pixel_outside_the_frame():
    with pytest.raises(ValueError, match=r"inside \(20, 30\), got \[20, 0\]"):
        Sensor(hot=[[20, 0]])(torch.ones(1, 1, 20, 30), BANDS, seeded())
