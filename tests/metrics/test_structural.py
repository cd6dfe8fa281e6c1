"""SSIM against scikit-image and its symmetries."""

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from cassi import metrics

DEFINED = [name for name, preset in metrics.PRESETS.items() if preset.ssim]


def _pair(*shape, noise=0.1):
    generator = torch.Generator().manual_seed(3)
    ramp = torch.linspace(0.1, 0.8, shape[-1], dtype=torch.float64)
    truth = ramp + 0.2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return truth + noise * torch.randn(shape, generator=generator, dtype=torch.float64), truth


def _skimage(x, truth, level):
    maps = [
        structural_similarity(
            p,
            q,
            data_range=level,
            gaussian_weights=True,
            sigma=1.5,
            win_size=11,
            use_sample_covariance=False,
            full=True,
        )[1][5:-5, 5:-5]
        for p, q in zip(x, truth, strict=True)
    ]
    return float(np.mean(maps))


@pytest.mark.parametrize("size", [(11, 11), (11, 30), (33, 12), (40, 41)])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_valid_area_equals_scikit_image(size, noise):
    x, truth = _pair(3, *size, noise=noise)
    levels = [np.floor(np.clip(a.numpy(), 0, 1) * 255 + 0.5) for a in (x, truth)]
    expected = _skimage(*levels, level=255)
    assert metrics.ssim(x, truth).item() == pytest.approx(expected, abs=1e-6)
    assert metrics.ssim(x, truth, "unit").item() == pytest.approx(expected, abs=1e-6)


def test_interior_of_the_padded_map_equals_scikit_image():
    """A frame of zeros five wide makes the valid area of one what zero padding is to the other."""
    x, truth = _pair(2, 21, 18)
    framed = [torch.nn.functional.pad(a, [5] * 4).numpy() for a in (x, truth)]
    expected = _skimage(*framed, level=1)
    assert metrics.ssim(x, truth, "torch-256").item() == pytest.approx(expected, abs=1e-6)


def test_torch_256_neither_rounds_nor_clips():
    x, truth = _pair(2, 16, 16, noise=1e-4)
    values = {round(metrics.ssim(a, truth, "torch-256").item(), 12) for a in (x, truth, truth + 1)}
    assert len(values) == 3
    assert metrics.ssim(truth + 1, truth, "torch-256") < 0.9


def test_constant_images_by_hand():
    """Without variance only the luminance term is left: (2ab + c₁)/(a² + b² + c₁)."""
    x, truth = torch.full((1, 12, 12), 51 / 255.0), torch.full((1, 12, 12), 102 / 255.0)
    c1 = (0.01 * 255) ** 2
    expected = (2 * 51 * 102 + c1) / (51**2 + 102**2 + c1)
    assert metrics.ssim(x, truth).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", DEFINED)
def test_symmetries(name):
    x, truth = _pair(4, 17, 17)
    value = metrics.ssim(x, truth, name).item()
    assert -1 <= value < 1
    assert metrics.ssim(truth, truth, name).item() == 1
    assert metrics.ssim(truth, x, name).item() == pytest.approx(value, abs=1e-14)
    for move in (lambda a: a.flip(-1), lambda a: a.mT, lambda a: a[[2, 0, 3, 1]]):
        assert metrics.ssim(move(x), move(truth), name).item() == pytest.approx(value, abs=1e-12)
    assert metrics.ssim(x[[1, 0, 2, 3]], truth, name).item() < value


@pytest.mark.parametrize("name", DEFINED)
def test_mean_over_bands(name):
    x, truth = _pair(4, 15, 19)
    bands = [metrics.ssim(x[c : c + 1], truth[c : c + 1], name).item() for c in range(4)]
    assert metrics.ssim(x, truth, name).item() == pytest.approx(np.mean(bands), abs=1e-14)


@pytest.mark.parametrize("name", DEFINED)
def test_negative_of_a_checkerboard(name):
    board = (torch.arange(14)[:, None] + torch.arange(14)).remainder(2).double()[None]
    value = metrics.ssim(board, 1 - board, name).item()
    assert value < -0.7


@pytest.mark.parametrize(("height", "width"), [(10, 11), (11, 10), (1, 64)])
def test_image_smaller_than_the_window(height, width):
    x, truth = _pair(2, height, width)
    for name in ("matlab-uint8", "unit"):
        with pytest.raises(ValueError, match=rf"11x11 pixels.*'{name}', got {height}x{width}"):
            metrics.ssim(x, truth, name)
        assert metrics.evaluate(x, truth, name)["ssim"] is None
    padded = torch.nn.functional.pad(torch.stack([x, truth]), [5] * 4).numpy()
    expected = _skimage(padded[0], padded[1], level=1)
    assert metrics.ssim(x, truth, "torch-256").item() == pytest.approx(expected, abs=1e-6)


def test_gradient_where_nothing_is_rounded():
    x, truth = _pair(1, 7, 6)
    assert torch.autograd.gradcheck(
        lambda a: metrics.ssim(a, truth, "torch-256"), (x.requires_grad_(),)
    )
