"""PSNR, RMSE, ERGAS, SAM and SSIM: what all share, cases by hand, symmetries."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch

from cassi import metrics
from cassi.metrics.measures import explain_infinite_ergas

PRESETS = metrics.list_presets()
DEFINED = [name for name, preset in metrics.PRESETS.items() if preset.ssim]
CASES = {
    **{name: getattr(metrics, name) for name in ("sam", "rmse", "ergas")},
    **{f"psnr-{name}": partial(metrics.psnr, preset=name) for name in PRESETS},
    **{f"ssim-{name}": partial(metrics.ssim, preset=name) for name in DEFINED},
}
every_metric = pytest.mark.parametrize("metric", CASES.values(), ids=CASES.keys())


def _pair(*shape, noise=0.1, dtype=torch.float64):
    """An estimate and a reference with a ramp along its rows, in [0.2, 0.8]."""
    generator = torch.Generator().manual_seed(7)
    ramp = torch.linspace(0.2, 0.6, shape[-1], dtype=torch.float64)
    truth = ramp + 0.2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    x = truth + noise * torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to(dtype), truth.to(dtype)


def _bands(*levels):
    return torch.tensor(levels, dtype=torch.float64)[:, None, None].expand(-1, 12, 12)


@every_metric
def test_batch_is_its_scenes(metric):
    x, truth = _pair(3, 4, 13, 12)
    batch = metric(x, truth)
    assert batch.shape == (3,)
    scenes = [metric(a, b) for a, b in zip(x, truth, strict=True)]
    assert all(scene.shape == () for scene in scenes)
    torch.testing.assert_close(batch, torch.stack(scenes), rtol=1e-13, atol=0)
    assert metric(x[:1], truth[:1]).shape == (1,)
    torch.testing.assert_close(metric(x.flip(0), truth.flip(0)), batch.flip(0), rtol=0, atol=0)


@every_metric
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_upcast_before_anything_and_strides_do_not_matter(metric, dtype):
    x, truth = _pair(2, 3, 12, 14, dtype=dtype)
    copies = x.clone(), truth.clone()
    got = metric(x, truth)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, metric(x.double(), truth.double()), rtol=1e-14, atol=0)
    torch.testing.assert_close(metric(x, truth.double()), got, rtol=1e-14, atol=0)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(metric(last, truth.mT.contiguous().mT), got)
    assert torch.equal(x, copies[0])
    assert torch.equal(truth, copies[1])


@every_metric
def test_orientation_does_not_matter(metric):
    x, truth = _pair(3, 13, 12)
    expected = metric(x, truth)
    for move in (lambda a: a.mT, lambda a: a.flip(-2), lambda a: a[[1, 2, 0]]):
        torch.testing.assert_close(metric(move(x), move(truth)), expected, rtol=1e-11, atol=0)


def spoilt(bad):
    x = _pair(3, 12, 12)[0]
    x[1, 2, 3] = bad
    return x


CUBE = _pair(3, 12, 12)[0]
UNFIT = [
    *(
        (CUBE, other, f"truth of the shape of x, (3, 12, 12), got {tuple(other.shape)}")
        for other in (CUBE[:2], CUBE[None], CUBE[..., :11], CUBE[:1])
    ),
    *(
        (torch.zeros(shape), torch.zeros(shape), "expected cubes (B, C, H, W) or (C, H, W)")
        for shape in ((12, 12), (1, 1, 3, 12, 12), (0, 3, 12, 12), (0, 12, 12))
    ),
    *((spoilt(bad), CUBE, "NaN or infinity in x") for bad in (torch.nan, torch.inf)),
    (CUBE, spoilt(-torch.inf), "NaN or infinity in truth"),
    (CUBE, CUBE.to("meta"), "on the device of x, cpu, got meta"),
    (CUBE, (CUBE * 255).to(torch.uint8), "truth to be floating point"),
    (CUBE.numpy(), CUBE, "expected x to be a tensor, got ndarray"),
]


@every_metric
@pytest.mark.parametrize(("x", "truth", "said"), UNFIT)
def test_what_is_no_pair_of_cubes_is_refused(metric, x, truth, said):
    with pytest.raises((ValueError, TypeError), match=re.escape(said)):
        metric(x, truth)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu():
    x, truth = _pair(2, 3, 24, 24, dtype=torch.float32)
    for metric in CASES.values():
        got = metric(x.cuda(), truth.cuda())
        assert got.is_cuda
        torch.testing.assert_close(got.cpu(), metric(x, truth), rtol=1e-12, atol=0)


def test_ref_max_takes_the_maximum_of_the_whole_reference():
    x, truth = _bands(0.3, 0.7), _bands(0.2, 0.5)
    expected = (20 * math.log10(0.5 / 0.1) + 20 * math.log10(0.5 / 0.2)) / 2
    assert metrics.psnr(x, truth, "ref-max").item() == pytest.approx(expected)
    batch = metrics.psnr(torch.stack([x, 2 * x]), torch.stack([truth, 2 * truth]), "ref-max")
    assert batch.tolist() == pytest.approx([expected, expected])
    with pytest.raises(ValueError, match=r"positive maximum for the preset 'ref-max', got 0\.0"):
        metrics.psnr(x, torch.zeros_like(x), "ref-max")


@pytest.mark.parametrize("name", PRESETS)
def test_psnr_of_equal_cubes_is_infinite(name):
    _, truth = _pair(2, 3, 12, 12)
    assert metrics.psnr(truth, truth, name).tolist() == [math.inf, math.inf]


def test_an_exact_black_band_does_not_count():
    x, truth = _bands(0.5, 0.6, 0.0), _bands(0.4, 0.5, 0.0)
    assert metrics.psnr(x, truth, "unit").item() == pytest.approx(20)
    assert metrics.psnr(_bands(0.1, 0.6), _bands(0.0, 0.5), "unit").item() == pytest.approx(20)
    assert metrics.psnr(x, truth, "global").item() == pytest.approx(-10 * math.log10(0.02 / 3))
    assert metrics.psnr(_bands(0.0, 0.5), _bands(0.0, 0.5), "unit").item() == math.inf


def test_the_black_band_of_an_infinite_ergas_is_named():
    x, truth = _bands(0.5, 0.1), _bands(0.5, 0.0)
    said = explain_infinite_ergas(x, truth)
    assert said == "ERGAS is infinite, because band 2 of the truth is black"
    assert explain_infinite_ergas(truth, truth) is None


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


def test_ergas_of_a_reference_band_of_mean_zero():
    truth = _bands(0.0, 0.5)
    assert metrics.ergas(_bands(0.1, 0.5), truth).item() == math.inf
    assert metrics.ergas(_bands(0.0, 0.6), truth).item() == pytest.approx(20 / math.sqrt(2))
    assert metrics.ergas(truth, truth).item() == 0


@pytest.mark.parametrize(
    ("x", "truth", "degrees"),
    [
        ((1, 0), (1, 1), 45),
        ((1, 0), (0, 3), 90),
        ((1, 2, 3), (1, 2, 3), 0),
        ((1, 2, 3), (-2, -4, -6), 180),
        ((math.sqrt(3), 1), (2, 0), 30),
        ((1, 0, 0), (-1, math.sqrt(3), 0), 120),
        ((0, 0), (0, 0), 0),
        ((0, 0), (0.2, 0.1), 90),
        ((0.2, 0.1), (0, 0), 90),
    ],
)
def test_angles_by_hand(x, truth, degrees):
    assert metrics.sam(_bands(*x), _bands(*truth)).item() == pytest.approx(degrees, abs=1e-12)


@pytest.mark.parametrize("degrees", [1e-9, 1e-6, 1e-3, 0.1])
def test_small_angles_are_exact(degrees):
    angle = math.radians(degrees)
    x = _bands(math.cos(angle), math.sin(angle), 0)
    assert metrics.sam(x, _bands(1, 0, 0)).item() == pytest.approx(degrees, rel=1e-6)


def test_equal_and_proportional_float32_cubes():
    truth = torch.rand(28, 16, 16, generator=torch.Generator().manual_seed(0))
    assert metrics.sam(truth, truth).item() == 0
    # A float32 cosine would give up to 0.03 degrees here.
    assert metrics.sam(truth * 4, truth).item() < 1e-7
    assert metrics.sam(truth * 0.3, truth).item() < 1e-5


def test_mean_over_pixels_of_the_arc_cosine():
    generator = torch.Generator().manual_seed(1)
    x, truth = torch.rand(2, 3, 6, 9, 8, generator=generator, dtype=torch.float64) - 0.2
    a, b = x.numpy(), truth.numpy()
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    expected = np.degrees(np.arccos(cosine)).mean(axis=(1, 2))
    np.testing.assert_allclose(metrics.sam(x, truth), expected, rtol=1e-12)
    np.testing.assert_allclose(metrics.sam(truth, x), expected, rtol=1e-12)


def test_brightness_of_a_pixel_does_not_matter_and_its_place_does():
    generator = torch.Generator().manual_seed(2)
    x, truth = torch.rand(2, 5, 6, 7, generator=generator, dtype=torch.float64)
    gain = torch.rand(6, 7, generator=generator, dtype=torch.float64) + 0.1
    value = metrics.sam(x, truth).item()
    assert metrics.sam(x * gain, truth).item() == pytest.approx(value, rel=1e-12)
    order = [3, 1, 4, 0, 2]
    assert metrics.sam(x[order], truth[order]).item() == pytest.approx(value, rel=1e-12)
    assert metrics.sam(x[order], truth).item() != pytest.approx(value, rel=1e-3)
    assert metrics.sam(x + 0.3, truth).item() != pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("name", DEFINED)
def test_structural_similarity_is_symmetric(name):
    x, truth = _pair(4, 17, 17)
    value = metrics.ssim(x, truth, name).item()
    assert -1 <= value < 1
    assert metrics.ssim(truth, truth, name).item() == 1
    assert metrics.ssim(truth, x, name).item() == pytest.approx(value, abs=1e-14)
    assert metrics.ssim(x[[1, 0, 2, 3]], truth, name).item() < value


@pytest.mark.parametrize(("height", "width"), [(10, 11), (11, 10), (1, 64)])
def test_image_smaller_than_the_window(height, width):
    x, truth = _pair(2, height, width)
    for name in ("matlab-uint8", "unit"):
        with pytest.raises(ValueError, match=rf"11x11 pixels.*'{name}', got {height}x{width}"):
            metrics.ssim(x, truth, name)
        assert metrics.evaluate(x, truth, name)["ssim"] is None


def test_gradient_where_nothing_is_rounded():
    x, truth = _pair(1, 7, 6)
    assert torch.autograd.gradcheck(
        lambda a: metrics.ssim(a, truth, "torch-256"), (x.requires_grad_(),)
    )
