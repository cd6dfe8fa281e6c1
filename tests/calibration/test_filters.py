"""A camera from frames through filters: places, curves, field and mask."""

import math

import pytest
import torch
from torch.nn.functional import avg_pool2d

from cassi.calibration.dispersion_curves import FilterPlace, fit_curves
from cassi.calibration.filters import (
    centroid,
    find_filtered_camera,
)
from cassi.systems import Prism, SDCassi

BANDS = [450 + 10 * band for band in range(21)]
FILTERS = (470.0, 550.0, 630.0)
HEIGHT, WIDTH, DETECTOR, FINE = 96, 120, 160, 4


def place(wavelength):
    """Return where the field begins in light of one wavelength, pixels: a prism."""
    index = 1 / ((wavelength / 1000) ** 2 - 0.015)
    first, last = (1 / ((value / 1000) ** 2 - 0.015) for value in (450, 650))
    return 2.3 + 32 * (first - index) / (first - last)


def frame(wavelength, mask):
    """Return what a fine grid shows of an even scene, with stray light."""
    light = torch.zeros(FINE * (HEIGHT + 20), FINE * DETECTOR)
    at = FINE * place(wavelength)
    first, beyond = math.floor(at), at - math.floor(at)
    rows, width = slice(FINE * 8, FINE * (8 + HEIGHT)), FINE * WIDTH
    light[rows, first : first + width] += (1 - beyond) * mask
    light[rows, first + 1 : first + 1 + width] += beyond * mask
    return 3 * avg_pool2d(light[None], FINE)[0] + 0.05


@pytest.fixture(scope="module")
def mask():
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(HEIGHT, WIDTH, generator=random) < 0.5).float()
    return mask.repeat_interleave(FINE, 0).repeat_interleave(FINE, 1)


@pytest.fixture(scope="module")
def frames(mask):
    return [frame(each, mask) for each in FILTERS]


def test_three_filters_give_mask_field_and_curve(frames):
    good = [torch.rand(each.shape) > 1e-3 for each in frames]
    dirty = [torch.where(ok, y, 50.0) for y, ok in zip(frames, good, strict=True)]
    found = find_filtered_camera(dirty, good, FILTERS, BANDS)
    assert found.rows == (8, 8 + HEIGHT)
    assert found.mask.shape == (HEIGHT, WIDTH)
    assert (float(found.mask.min()), float(found.mask.max())) == (0.0, 1.0)
    start = place(FILTERS[1]) - round(place(FILTERS[1]))
    wanted = torch.tensor([place(each) - start for each in BANDS], dtype=torch.float64)
    away = (found.offsets - wanted).abs()
    assert float(away.max()) < 0.1
    assert float(found.errors.max()) < 0.2
    assert float((away < 2 * found.errors).double().mean()) > 0.9


def test_two_filters_give_a_curve_with_larger_errors(frames):
    good = [torch.ones_like(each, dtype=torch.bool) for each in frames]
    two = find_filtered_camera(frames[::2], good[::2], FILTERS[::2], BANDS)
    three = find_filtered_camera(frames, good, FILTERS, BANDS)
    assert float(two.errors.max()) > 3 * float(three.errors.max())


def test_one_filter_and_the_ends_give_a_curve(frames, mask):
    single, given = frames[1][:, :157], (place(450) - 0.4, place(650) - 0.4)
    light = sum((nm - 400) * frame(nm, mask) for nm in torch.arange(446.25, 655, 2.5).tolist())
    light, good = light[:, :157], torch.ones(single.shape, dtype=torch.bool)
    start = place(FILTERS[1]) - round(place(FILTERS[1]))
    wanted = torch.tensor([place(each) - start for each in BANDS], dtype=torch.float64)
    one = ([single], [good], FILTERS[1:2], BANDS)
    alone, lit = find_filtered_camera(*one, given), find_filtered_camera(*one, given, (light, good))
    for found, most in ((alone, 0.75), (lit, 0.2)):
        assert float((found.offsets - wanted).abs().max()) < most
        assert bool(((found.offsets - wanted).abs() < 2 * found.errors).all())
    with pytest.raises(ValueError, match=r"set system\.step"):
        find_filtered_camera(*one, (0, 60))


def test_curves_are_compared_by_what_they_miss():
    prism = Prism("SF11", 30, 50, 10)
    at = (440.0, 480.0, 520.0, 560.0, 600.0, 640.0)
    points = prism.positions(at)
    places = [FilterPlace(a, b - points[2], 0.0, 0.02) for a, b in zip(at, points, strict=True)]
    offsets, errors, curves = fit_curves(places, BANDS)
    assert curves[0].name != "straight line"
    wanted = torch.tensor(prism.positions(BANDS)) - points[2]
    away = (offsets - wanted).abs()
    assert float(away.max()) < 0.15
    assert bool((away < 3 * errors).all())
    assert sum(each.weight for each in curves) == pytest.approx(1)
    line = [FilterPlace(a, 0.2 * (a - 520), 0.0, 0.02) for a in at]
    assert fit_curves(line, BANDS)[2][0].name == "straight line"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: [y[0].mT, y[1].mT, y[2].mT], "system.axis"),
        (lambda y: [y[0], y[1], torch.rand(y[2].shape)], "does not show the code"),
        (lambda y: y[:1], "different wavelengths"),
        (lambda y: [y[0], y[0], y[2]], "a file named twice"),
        (lambda y: [y[1], y[0], y[2]], "moves one way with the wavelength, got 470 nm at"),
    ],
)
def test_refuses(frames, change, said):
    changed = change(frames)
    good = [torch.ones_like(each, dtype=torch.bool) for each in changed]
    with pytest.raises(ValueError, match=said):
        find_filtered_camera(changed, good, FILTERS[: len(changed)], BANDS)


def test_red_and_blue_exchanged_are_warned_of(frames):
    good = [torch.ones_like(each, dtype=torch.bool) for each in frames]
    with pytest.warns(UserWarning, match=r"red light moves more.*two files exchanged"):
        find_filtered_camera(frames[::-1], good, FILTERS, BANDS)


@pytest.mark.parametrize("beside", [0, 2, 3])
@pytest.mark.parametrize("step", [1.9, -1.9])
def test_one_filter_finds_bands_beside_dark_pixels(step, beside):
    """With a step alone nobody says how many pixels of the detector lie before the bands."""
    mask = (torch.rand(96, 96, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    span = abs(step) * (len(BANDS) - 1)
    ends = (0.0, span) if step > 0 else (span, 0.0)
    true = [beside + ends[0] + step * band for band in range(len(BANDS))]
    camera = {"detector": 96 + math.ceil(span) + beside}
    even = torch.ones(1, len(BANDS), 96, 96)
    light = SDCassi(mask, len(BANDS), offsets=true, **camera)(even)[0, 0]
    middle = len(BANDS) // 2
    single = SDCassi(mask, 1, offsets=[true[middle]], **camera)(even[:, :1])[0, 0]
    good = torch.ones_like(light, dtype=torch.bool)
    found = find_filtered_camera([single], [good], [BANDS[middle]], BANDS, ends, (light, good))
    assert found.offsets.tolist() == pytest.approx(true, abs=0.7)


def test_the_middle_of_what_a_filter_lets_through():
    rising = [nm - 400.0 for nm in BANDS]
    sigma = 10 / (8 * math.log(2)) ** 0.5
    assert centroid(500, 10, BANDS, rising) == pytest.approx(500 + sigma**2 / 100, abs=1e-3)
    assert centroid(500, 10, BANDS, [2.0] * len(BANDS)) == pytest.approx(500)
