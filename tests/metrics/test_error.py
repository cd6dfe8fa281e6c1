"""PSNR, RMSE and ERGAS: cases by hand, scikit-image, symmetries."""

import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from cassi import metrics

PRESETS = metrics.list_presets()


def _pair(*shape, noise=0.1):
    generator = torch.Generator().manual_seed(7)
    truth = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    return truth + noise * torch.randn(shape, generator=generator, dtype=torch.float64), truth


def _bands(*levels):
    return torch.tensor(levels, dtype=torch.float64)[:, None, None].expand(-1, 12, 12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 51 and 102 of 255 against 0: 20 log10(5) and 20 log10(2.5)
        ("matlab-uint8", 10 * math.log10(12.5)),
        # 0.2 * 256 = 51.2 -> 51 and 0.4 * 256 = 102.4 -> 102
        ("torch-256", 10 * math.log10(12.5)),
        ("unit", 10 * math.log10(12.5)),
        ("global", 10 * math.log10(1 / ((0.04 + 0.16) / 2))),
    ],
)
def test_offsets_by_hand(name, expected):
    got = metrics.psnr(_bands(0.2, 0.4), _bands(0.0, 0.0), name)
    assert got.item() == pytest.approx(expected, rel=1e-12)


def test_ref_max_takes_the_maximum_of_the_whole_reference():
    x, truth = _bands(0.3, 0.7), _bands(0.2, 0.5)
    expected = (20 * math.log10(0.5 / 0.1) + 20 * math.log10(0.5 / 0.2)) / 2
    assert metrics.psnr(x, truth, "ref-max").item() == pytest.approx(expected)
    batch = metrics.psnr(torch.stack([x, 2 * x]), torch.stack([truth, 2 * truth]), "ref-max")
    assert batch.tolist() == pytest.approx([expected, expected])


def test_ref_max_is_free_of_scale_and_needs_a_positive_maximum():
    x, truth = _pair(3, 12, 12)
    plain, scaled = (metrics.psnr(k * x, k * truth, "ref-max").item() for k in (1, 40))
    assert scaled == pytest.approx(plain)
    with pytest.raises(ValueError, match=r"positive maximum for the preset 'ref-max', got 0\.0"):
        metrics.psnr(x, torch.zeros_like(x), "ref-max")


def test_psnr_equals_scikit_image():
    x, truth = _pair(5, 14, 17, noise=0.01)
    for name, peak, scale in (("unit", 1, 1), ("torch-256", 255, 256)):
        a, b = (x * scale).numpy(), (truth * scale).numpy()
        if name == "torch-256":
            a, b = a.round(), b.round()
        bands = [peak_signal_noise_ratio(q, p, data_range=peak) for p, q in zip(a, b, strict=True)]
        assert metrics.psnr(x, truth, name).item() == pytest.approx(np.mean(bands), rel=1e-12)
    whole = peak_signal_noise_ratio(truth.numpy(), x.numpy(), data_range=1)
    assert metrics.psnr(x, truth, "global").item() == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_psnr_of_equal_cubes_is_infinite(name):
    _, truth = _pair(2, 3, 12, 12)
    assert metrics.psnr(truth, truth, name).tolist() == [math.inf, math.inf]


def test_one_exact_band():
    x, truth = _bands(0.5, 0.6), _bands(0.5, 0.5)
    assert metrics.psnr(x, truth, "unit").item() == math.inf
    assert math.isfinite(metrics.psnr(x, truth, "global").item())


def test_differences_below_a_level_vanish_only_where_rounded():
    truth = _bands(100 / 255, 200 / 255)
    x = truth + 0.4 / 255
    assert metrics.psnr(x, truth, "matlab-uint8").item() == math.inf
    assert math.isfinite(metrics.psnr(x, truth, "unit").item())


@pytest.mark.parametrize("name", PRESETS)
def test_psnr_falls_with_noise(name):
    values = [metrics.psnr(*_pair(3, 24, 24, noise=s), name).item() for s in (0.02, 0.05, 0.1)]
    assert values == sorted(values, reverse=True)


def test_outside_the_unit_interval():
    truth, x = _bands(1.0, 0.0), _bands(1.5, -0.5)
    assert metrics.psnr(x, truth, "matlab-uint8").item() == math.inf
    assert metrics.psnr(x, truth, "unit").item() == math.inf
    for name, peak, error in (("torch-256", 255, 128), ("global", 1, 0.5), ("ref-max", 1, 0.5)):
        assert metrics.psnr(x, truth, name).item() == pytest.approx(20 * math.log10(peak / error))


def test_rmse():
    assert metrics.rmse(_bands(0.3, 0.4), _bands(0.0, 0.0)).item() == pytest.approx(
        math.sqrt((0.09 + 0.16) / 2)
    )
    x, truth = _pair(2, 3, 9, 8)
    expected = np.sqrt(((x - truth).numpy() ** 2).mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(metrics.rmse(x, truth), expected, rtol=1e-13)
    np.testing.assert_allclose(metrics.rmse(3 * x, 3 * truth), 3 * expected, rtol=1e-13)


def test_ergas():
    got = metrics.ergas(_bands(0.3, 0.8), _bands(0.2, 1.0)).item()
    assert got == pytest.approx(100 * math.sqrt((0.5**2 + 0.2**2) / 2))
    x, truth = (a.numpy() for a in _pair(2, 3, 9, 8))
    mse = ((x - truth) ** 2).mean(axis=(2, 3))
    expected = 100 * np.sqrt((mse / truth.mean(axis=(2, 3)) ** 2).mean(axis=1))
    for scale in (1, 7):
        got = metrics.ergas(*(torch.from_numpy(scale * a) for a in (x, truth)))
        np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_ergas_is_relative_to_the_reference():
    x, truth = _bands(0.2), _bands(0.4)
    assert metrics.ergas(x, truth).item() == pytest.approx(50)
    assert metrics.ergas(truth, x).item() == pytest.approx(100)


def test_ergas_of_a_reference_band_of_mean_zero():
    truth = _bands(0.0, 0.5)
    assert metrics.ergas(_bands(0.1, 0.5), truth).item() == math.inf
    assert metrics.ergas(_bands(0.0, 0.6), truth).item() == pytest.approx(20 / math.sqrt(2))
    assert metrics.ergas(truth, truth).item() == 0
