"""The spectral angle."""

import math

import numpy as np
import pytest
import torch

from cassi import metrics


def _pixel(*spectrum):
    return torch.tensor(spectrum, dtype=torch.float64)[:, None, None]


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
def test_by_hand(x, truth, degrees):
    assert metrics.sam(_pixel(*x), _pixel(*truth)).item() == pytest.approx(degrees, abs=1e-12)


@pytest.mark.parametrize("degrees", [1e-9, 1e-6, 1e-3, 0.1])
def test_small_angles_are_exact(degrees):
    angle = math.radians(degrees)
    x = _pixel(math.cos(angle), math.sin(angle), 0)
    assert metrics.sam(x, _pixel(1, 0, 0)).item() == pytest.approx(degrees, rel=1e-6)


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
