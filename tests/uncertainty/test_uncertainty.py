"""Error bars: of every value, of regions, and how they are scored."""

import math
from types import SimpleNamespace

import pytest
import torch

import cassi
from cassi import uncertainty
from cassi.data.bundled import bundled_path
from cassi.evaluation import Twin
from cassi.uncertainty.bootstrap import Trial, _heldout_ratio, bootstrap, mirror_axes
from cassi.uncertainty.error_model import (
    HELDOUT_EXPONENT,
    HELDOUT_WITHOUT_NOISE,
    ErrorModel,
    load_error_model,
)
from cassi.uncertainty.features import NAMES, NUMBERS, Features
from cassi.uncertainty.mask_shift import (
    ESTIMATED_FRACTION,
    MaskShift,
    find_mask_shift,
    measure_shifted,
)

GAP_TV = {"method": "gap_tv", "overrides": {"solver.iterations": 15}}


@pytest.fixture(scope="module")
def camera():
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(64, 64, generator=generator) > 0.5).float()
    cells = torch.rand(1, 6, 8, 8, generator=generator)
    cube = torch.nn.functional.interpolate(cells, size=(64, 64), mode="bilinear")
    system = cassi.SDCassi(mask, bands=6, step=1)
    return system, cube, system(cube)


@pytest.fixture(scope="module")
def result(camera):
    system, _, y = camera
    return cassi.reconstruct(y, system, GAP_TV, uncertainty=True)


def test_cube_is_the_same(camera, result):
    system, _, y = camera
    assert torch.equal(result.x, cassi.reconstruct(y, system, GAP_TV))
    assert result.std.shape == result.pattern.shape == result.x.shape
    assert bool((result.std > 0).all())
    assert bool(result.std.isfinite().all())
    assert float(result.pattern.square().mean()) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("method", ["auto", "pretrained"])
def test_defaults_keep_their_bits(camera, method):
    system, cube, _ = camera
    y = cassi.simulate(cube, system, noise={"name": "white", "snr_db": 25})
    found = cassi.reconstruct(y, system, method, uncertainty=True)
    assert torch.equal(found.x, cassi.reconstruct(y, system, method))
    assert found.sources[0]["noise"] > 0


def test_samples_of_a_batch_are_apart_and_scale_with_their_light(camera, result):
    system, _, y = camera
    both = cassi.reconstruct(torch.cat([y, 4 * y, 0 * y]), system, GAP_TV, uncertainty=True)
    torch.testing.assert_close(both.std[:1], result.std, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(both.std[1:2], 4 * both.std[:1], rtol=1e-3, atol=1e-6)
    assert bool((both.std.isfinite() & (both.std > 0)).all())
    assert len(both.sources) == len(both.warnings) == 3


def test_of_a_function_and_of_bad_pixels(camera):
    system, _, y = camera
    bad = torch.zeros(y.shape[-2:])
    bad[3, 5:9] = 1
    spoilt = y.clone()
    spoilt[..., 3, 5:9] = torch.nan
    found = cassi.reconstruct(
        spoilt, system, lambda y, system: system.pinv(y), bad_pixels=bad, uncertainty=True
    )
    assert bool(found.std.isfinite().all())


def test_in_double_precision(camera, result):
    system, _, y = camera
    double = cassi.SDCassi(system.mask.double(), bands=6, step=1)
    found = cassi.reconstruct(y.double(), double, GAP_TV, uncertainty=True)
    assert found.std.dtype == torch.float64
    torch.testing.assert_close(found.std.float(), result.std, rtol=0.02, atol=1e-5)


def test_a_mask_for_each_sample_is_refused(camera):
    system, _, y = camera
    masks = system.mask[None].expand(2, -1, -1, -1, -1)
    many = cassi.SDCassi(masks, bands=6, step=1)
    with pytest.raises(ValueError, match="expected one camera for all samples"):
        cassi.reconstruct(torch.cat([y, y]), many, GAP_TV, uncertainty=True)


def test_other_cameras(camera):
    _, cube, _ = camera
    mask = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    for system in (
        cassi.SDCassi(mask, bands=6, offsets=[0, 1.5, 2.5, 4, 5, 6.5]),
        cassi.SDCassi(mask[:1], bands=6, step=-1, axis=-2),
        cassi.DDCassi(mask[:1], bands=6, step=1),
    ):
        found = cassi.reconstruct(system(cube), system, GAP_TV, uncertainty=True)
        assert bool((found.std > 0).all())


def test_a_symmetric_mask_is_mirrored_otherwise():
    column = (torch.rand(1, 40, generator=torch.Generator().manual_seed(2)) > 0.5).float()
    system = cassi.SDCassi(column.expand(32, -1), bands=4, step=1)
    assert mirror_axes(torch.rand(1, 4, 32, 40), system) == (-2, -1)
    system = cassi.SDCassi(torch.rand(32, 40), bands=4, step=1)
    assert mirror_axes(torch.rand(1, 4, 32, 40), system) == (-2,)
    turned = cassi.SDCassi(torch.rand(32, 40), bands=4, step=1, axis=-2)
    assert mirror_axes(torch.rand(1, 4, 32, 40), turned) == (-1,)


@pytest.mark.parametrize("kind", [cassi.SDCassi, cassi.DDCassi])
def test_the_error_of_a_camera_without_width_holds_that_of_wide_bands(kind):
    system = kind(torch.rand(48, 48, generator=torch.Generator().manual_seed(0)), bands=6, step=3)
    cells = torch.rand(1, 6, 6, 6, generator=torch.Generator().manual_seed(1))
    y = system(torch.nn.functional.interpolate(cells, size=(48, 48), mode="bilinear"))
    method = cassi.Solver(cassi.TV(), iterations=15)
    x = method.run(y, system).x
    narrow, wide = (
        float(bootstrap(Trial(y, system, method, is_broadband=each), x).repeated_error.norm())
        for each in (False, True)
    )
    assert wide > 1.2 * narrow if kind is cassi.SDCassi else wide == narrow


def test_region_of_one_pixel_has_its_sigma(result):
    where = torch.zeros(64, 64)
    where[20, 30] = 1
    found = uncertainty.region(result, where)
    assert found.pixels == 1
    torch.testing.assert_close(found.mean, result.x[..., 20, 30])
    band = result.pattern.square().mean((-2, -1)).sqrt()
    expected = result.std[..., 20, 30] * band * load_error_model().factor_of(1)
    torch.testing.assert_close(found.std, expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found.shape.mean(1), torch.ones(1))


def test_region_is_surer_than_its_pixels_and_less_than_if_independent(result):
    where = slice(10, 19), slice(20, 29)
    found = uncertainty.region(result, where)
    pixels = result.std[..., where[0], where[1]].square().mean((-2, -1)).sqrt()
    assert bool((found.std < pixels * 1.5).all())
    assert bool((found.std.mean() > pixels.mean() / 9).all())


def test_region_of_white_errors_falls_as_one_over_the_root():
    ones = torch.ones(1, 4, 128, 128)
    white = torch.randn(1, 4, 128, 128, generator=torch.Generator().manual_seed(3))
    result = cassi.Reconstruction(ones, ones, white, [], [])
    found = uncertainty.region(result, (slice(5, 10), slice(7, 12)))
    expected = load_error_model().factor_of(25) / 5
    torch.testing.assert_close(found.std, torch.full((1, 4), expected), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: uncertainty.region(x, torch.zeros(64, 64)),
        lambda x: uncertainty.region(x, torch.ones(3, 3)),
        lambda x: uncertainty.score(x.x[0], 0 * x.std[0], x.x[0]),
        lambda x: uncertainty.score(x.x[0], x.std[0, :, 1:], x.x[0]),
    ],
)
def test_refusals(result, call):
    with pytest.raises(ValueError, match=r"(region|score): expected"):
        call(result)


def test_scores_of_normal_errors():
    random = torch.Generator().manual_seed(4)
    sigma = 0.1 + torch.rand(4, 60, 60, generator=random)
    truth = sigma * torch.randn(4, 60, 60, generator=random)
    found = uncertainty.score(torch.zeros_like(truth), sigma, truth)
    assert found["coverage/90"] == pytest.approx(0.9, abs=0.01)
    assert found["width"] == pytest.approx(2 * uncertainty.NORMAL * float(sigma.mean()), rel=1e-5)
    expected = 0.5 + float(sigma.log().mean()) + 0.5 * math.log(2 * math.pi)
    assert found["nll"] == pytest.approx(expected, abs=0.05)
    assert 0 < found["ause"] < 0.8


def test_sparsification():
    error = torch.rand(5000, generator=torch.Generator().manual_seed(5))
    assert uncertainty.sparsification(error, error) == pytest.approx(0, abs=1e-9)
    random = torch.rand(5000, generator=torch.Generator().manual_seed(6))
    assert uncertainty.sparsification(error, random) == pytest.approx(1, abs=0.1)
    assert uncertainty.sparsification(torch.ones(50), torch.rand(50)) == 0


def test_a_shifted_mask_is_noticed(camera):
    system, cube, y = camera
    assert not find_mask_shift(y, cube, system).is_significant
    moved = 0.6 * system.mask + 0.4 * system.mask.roll(1, -2)  # 0.4 pixels down
    y = cassi.SDCassi(moved, bands=6, step=1)(cube)
    x = cassi.reconstruct(y, system, GAP_TV, align=False)
    mask_shift = find_mask_shift(y, x, system)
    assert mask_shift.is_significant
    assert mask_shift.shift[0] == pytest.approx(0.4, abs=0.2)
    found = cassi.reconstruct(y, system, GAP_TV, uncertainty=True, align=False)
    assert "the mask seems to lie" in found.warnings[0][0]
    assert found.sources[0]["model"] > 0


@pytest.mark.parametrize(
    ("shift", "across", "doubtful"),
    [((0.2, 0.0), -2, True), ((0.2, 0.0), -1, False), ((0.2, 0.0), None, False)]
    + [((0.3, 0.0), axis, True) for axis in (-2, -1, None)],
)
def test_a_residual_speaks_for_a_shift_across_the_dispersion(shift, across, doubtful):
    found = MaskShift(shift, errors=20, left=(20, 0))
    assert found.is_significant
    assert found.is_doubtful(across) is doubtful


def test_the_mirrored_scene_is_coded_where_the_mask_seems_to_lie(camera):
    system, cube, y = camera
    assert torch.equal(measure_shifted(cube, system, MaskShift()), y)
    mask_shift = MaskShift((0.4 * ESTIMATED_FRACTION, -0.3 * ESTIMATED_FRACTION), errors=100)
    twin = Twin(shift=[0.4, -0.3]).expose(cube, system)
    inside = ..., slice(2, -2), slice(8, -8)  # beyond, a twin's mask is continued otherwise
    torch.testing.assert_close(measure_shifted(cube, system, mask_shift)[inside], twin[inside])


@pytest.mark.slow
@pytest.mark.parametrize("snr", [None, 30])
def test_bars_hold_on_the_bundled_scene(snr):
    middle = (..., slice(64, 192), slice(64, 192))
    truth = cassi.read_cube(bundled_path("scene.tif"))[middle] / 1023
    system = cassi.SDCassi(cassi.read_mask(bundled_path("mask.tif"))[middle], 28, step=2)
    noise = None if snr is None else {"name": "white", "snr_db": snr}
    y = cassi.simulate(truth, system, noise=noise)
    found = cassi.reconstruct(y, system, uncertainty=True)
    scores = uncertainty.score(found.x[0], found.std[0], truth[0])
    assert 0.8 < scores["coverage/90"] < 0.99
    assert scores["ause"] < 0.5
    assert not found.warnings[0]


def test_bars_widen_by_what_is_worse_than_all_of_the_training():
    model = ErrorModel()
    model.highest[-NUMBERS:] = 0
    known = dict.fromkeys(NAMES[-NUMBERS:], -0.2)
    assert model.excess(SimpleNamespace(numbers=known)) == 1
    assert model.excess(SimpleNamespace(numbers=known | {"bands": 2.0})) == 1
    worse = known | {"heldout": 0.3, "motion": 0.1}
    assert model.excess(SimpleNamespace(numbers=worse)) == pytest.approx(10**0.3)


def test_pixels_are_missed_by_noise_and_by_the_error():
    random = torch.Generator().manual_seed(0)
    noise, error = torch.randn(2, 1, 1, 200, 200, generator=random)
    held = torch.ones(1, 1, 200, 200, dtype=torch.bool)
    # Three quarters of a normal distribution are within 1.15 standard deviations.
    for size in (0.5, 3.0):
        assert _heldout_ratio(size * noise, error, held) == pytest.approx(1.15 * size, rel=0.05)
    assert _heldout_ratio(noise, 0 * error, held) == 1


def test_of_a_scene_the_error_without_noise_counts_alone():
    model, rows = ErrorModel(), torch.full((1, len(NAMES)), -2.0)
    torch.nn.init.ones_(model.layers[-1].weight)
    usual = model(rows)
    for name in ("heldout", "error of the scene", "motion"):
        other = rows.clone()
        other[:, NAMES.index(name)] = -1
        assert torch.equal(model(other), usual) == (name != "motion")
    for number, counts in ((-1.5, -1.5), (0.0, -1.3)):
        rows[:, HELDOUT_WITHOUT_NOISE] = number
        expected = usual + HELDOUT_EXPONENT * math.log(10) * (counts + 2)
        torch.testing.assert_close(model(rows), expected)


@pytest.mark.parametrize("bands", [3, 12])
def test_rough_spectra_show_an_error(bands):
    signs = (-1.0) ** torch.arange(bands).view(-1, 1, 1)
    smooth = torch.linspace(1, 2, bands).view(-1, 1, 1).expand(-1, 32, 32)
    for size in (0.0, 0.1):
        cube = SimpleNamespace(x=(smooth + size * signs)[None], bands=bands)
        found = Features.roughness(cube)
        # An alternation of 0.1 has a fourth difference of 1.6; noise of σ has one of √70 σ.
        wanted = 1.6 / 70**0.5 if bands > 4 and size else 0.0
        assert found == pytest.approx(wanted, abs=1e-5)
