"""Every preset against formulas written out in NumPy, by being in the list."""

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d

from cassi import metrics
from cassi.metrics.presets import keep, quantize_256, quantize_uint8

LEVELS = 255.0


def _uint8(a):
    clipped = np.clip(a.astype(np.float64), 0, 1) * LEVELS
    below = np.trunc(clipped)
    return below + (clipped - below >= 0.5)


def _decibels(a, b, peak):
    return float(
        np.mean([10 * np.log10(peak**2 / np.mean((p - q) ** 2)) for p, q in zip(a, b, strict=True)])
    )


def _ssim(a, b, level, border):
    taps = np.exp(-(np.arange(-5.0, 6.0) ** 2) / (2 * 1.5**2))
    taps /= taps.sum()

    def blur(image):
        for axis in (0, 1):
            image = correlate1d(image, taps, axis=axis, mode="constant")
        return image if border else image[5:-5, 5:-5]

    values = []
    for p, q in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
        mean_p, mean_q = blur(p), blur(q)
        var_p, var_q = blur(p * p) - mean_p**2, blur(q * q) - mean_q**2
        covariance = blur(p * q) - mean_p * mean_q
        c1, c2 = (0.01 * level) ** 2, (0.03 * level) ** 2
        above = (2 * mean_p * mean_q + c1) * (2 * covariance + c2)
        values.append(np.mean(above / ((mean_p**2 + mean_q**2 + c1) * (var_p + var_q + c2))))
    return float(np.mean(values))


# preset -> (PSNR, SSIM) of two (C, H, W) arrays
EXPECTED = {
    "matlab-uint8": (
        lambda x, t: _decibels(_uint8(x), _uint8(t), 255),
        lambda x, t: _ssim(_uint8(x), _uint8(t), 255, border=False),
    ),
    "torch-256": (
        lambda x, t: _decibels(np.rint(x * 256.0), np.rint(t * 256.0), 255),
        lambda x, t: _ssim(x, t, 1, border=True),
    ),
    "unit": (
        lambda x, t: _decibels(np.clip(x, 0, 1), np.clip(t, 0, 1), 1),
        lambda x, t: _ssim(_uint8(x), _uint8(t), 255, border=False),
    ),
    "ref-max": (lambda x, t: _decibels(x, t, t.max()), None),
    "global": (lambda x, t: 10 * np.log10(1 / np.mean((x - t) ** 2)), None),
    "global-unit": (
        lambda x, t: -10 * np.log10(np.mean((np.clip(x, 0, 1) - np.clip(t, 0, 1)) ** 2)),
        None,
    ),
}


def _pair(seed, shape=(4, 19, 23)):
    """Two correlated cubes whose values leave [0, 1] on both sides, the bands unlike each other."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.3 - 0.1
    gain = torch.linspace(0.3, 1.0, shape[-3], dtype=torch.float64)[:, None, None]
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return truth * gain + 0.2 * gain**2 * noise, truth * gain


@pytest.mark.parametrize("name", metrics.list_presets())
@pytest.mark.parametrize("shape", [(4, 19, 23), (3, 11, 30), (2, 33, 12)])
def test_preset_equals_formula(name, shape):
    x, truth = _pair(sum(shape), shape)
    expected_psnr, expected_ssim = EXPECTED[name]
    got = metrics.psnr(x, truth, name).item()
    assert got == pytest.approx(expected_psnr(x.numpy(), truth.numpy()), rel=1e-12)
    if expected_ssim is None:
        with pytest.raises(ValueError, match=f"preset that defines SSIM, got '{name}'"):
            metrics.ssim(x, truth, name)
    else:
        got = metrics.ssim(x, truth, name).item()
        assert got == pytest.approx(expected_ssim(x.numpy(), truth.numpy()), abs=1e-12)


def test_default_is_that_of_the_tables():
    x, truth = _pair(0)
    assert metrics.DEFAULT_PRESET == metrics.list_presets()[0] == "matlab-uint8"
    assert metrics.psnr(x, truth) == metrics.psnr(x, truth, "matlab-uint8")
    assert metrics.ssim(x, truth) == metrics.ssim(x, truth, "matlab-uint8")
    assert metrics.evaluate(x, truth) == metrics.evaluate(x, truth, "matlab-uint8")
    assert metrics.MetricSet().preset is metrics.PRESETS["matlab-uint8"]


def test_own_preset():
    x, truth = _pair(0)
    own = metrics.Preset("ten", "this test", prepare=keep, peak=10.0)
    expected = _decibels(x.numpy(), truth.numpy(), 10)
    assert metrics.psnr(x, truth, own).item() == pytest.approx(expected, rel=1e-12)
    assert metrics.MetricSet(own).preset is own


def test_uint8_rounds_half_away_from_zero():
    halves = torch.arange(255, dtype=torch.float64) + 0.5
    # Only where the product is a half again does the rule for halves decide.
    exact = halves[halves / 255 * 255 == halves]
    assert len(exact) > 200
    assert torch.equal(quantize_uint8(exact / 255), exact + 0.5)
    for dtype in (torch.float32, torch.float64):
        below, above = (((halves + d) / 255).to(dtype).double() for d in (-0.01, 0.01))
        assert torch.equal(quantize_uint8(below), halves - 0.5)
        assert torch.equal(quantize_uint8(above), halves + 0.5)


def test_uint8_clips_and_256_does_not():
    values = torch.tensor([-0.5, 0.0, 1.0, 1.5], dtype=torch.float64)
    assert quantize_uint8(values).tolist() == [0, 0, 255, 255]
    assert quantize_256(values).tolist() == [-128, 0, 256, 384]
    assert quantize_256(torch.tensor([0.5, 1.5, 2.5]) / 256).tolist() == [0, 2, 2]


def test_float32_is_rounded_in_float64():
    """128.5/255 as float32 lies below it: 128 in MATLAB's doubles, 129 in float32 arithmetic."""
    x = torch.full((1, 11, 11), 128.5 / 255, dtype=torch.float32)
    assert quantize_uint8(x).unique().item() == 129
    truth = torch.full((1, 11, 11), 118 / 255, dtype=torch.float32)
    assert metrics.psnr(x, truth).item() == pytest.approx(20 * np.log10(255 / 10), rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "near"), [("zzz", ""), ("torch256", "torch-256"), ("uint", "unit")]
)
def test_unknown_preset(wrong, near):
    x, truth = _pair(0)
    pattern = rf"among .*'ref-max'.*got '{wrong}'" + (f"; did you mean.*{near}" if near else "")
    for call in (metrics.psnr, metrics.ssim, metrics.evaluate):
        with pytest.raises(ValueError, match=pattern):
            call(x, truth, wrong)
    with pytest.raises(ValueError, match=pattern):
        metrics.MetricSet(wrong)
