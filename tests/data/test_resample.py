"""Interpolation over wavelength and between pixels: what it gives, never extrapolated."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from shared import uniform

from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS, interpolate_spectra, resample, spectra_at

CAVE = [400.0 + 10 * band for band in range(31)]


@pytest.fixture(params=[resample, lambda *given: interpolate_spectra(*given)[0]])
def interpolate(request):
    return request.param


def test_equals_numpy():
    cube = uniform(31, 3, 4, dtype=torch.float64)
    result = resample(cube, CAVE, BENCHMARK_WAVELENGTHS)
    for h in range(3):
        for w in range(4):
            expected = np.interp(BENCHMARK_WAVELENGTHS, CAVE, cube[:, h, w].numpy())
            np.testing.assert_allclose(result[:, h, w].numpy(), expected, rtol=1e-12)


def test_bands_that_are_there_are_copied(interpolate):
    cube = uniform(31, 2, 2)
    same_bands = interpolate(cube, CAVE, CAVE)
    assert torch.equal(same_bands, cube)
    assert same_bands.data_ptr() != cube.data_ptr()
    assert torch.equal(interpolate(cube, CAVE, [400.0, 550.0, 700.0]), cube[[0, 15, 30]])
    assert torch.equal(interpolate(cube[:1], [550.0], [550.0]), cube[:1])


def _smooth_spectra(nm, count=40):  # (C, 1, count)
    random = torch.Generator().manual_seed(0)
    middle, width, height = (torch.rand(count, 3, generator=random).double() for _ in range(3))
    t = (torch.tensor(nm).double()[:, None, None] - 400 - 300 * middle) / (40 + 80 * width)
    return (height * torch.exp(-0.5 * t.square())).sum(-1)[:, None]


def test_smooth_spectra_are_followed_between_bands():
    fine_nm = [405.0 + 5 * band for band in range(58)]
    truth = _smooth_spectra(fine_nm)
    std = torch.full((31, 1, 40), 1e-6, dtype=torch.float64)
    result, error = interpolate_spectra(_smooth_spectra(CAVE), CAVE, fine_nm, std)
    linear = resample(_smooth_spectra(CAVE), CAVE, fine_nm)
    assert (result - truth).norm() < 0.2 * (linear - truth).norm()
    normalized_errors = (result - truth)[::2] / error[::2]  # between bands
    assert 0.1 < normalized_errors.square().mean().sqrt() < 2


def test_error_bars_widen_between_bands():
    nm = [450.0, 480.0, 510.0, 540.0, 570.0, 600.0]
    std = 0.01 + uniform(6, 2, 3, dtype=torch.float64)
    cube = uniform(6, 2, 3, dtype=torch.float64)
    target_nm = [480.0, 482.0, 487.0, 495.0, 510.0]
    _, error = interpolate_spectra(cube, nm, target_nm, std)
    assert torch.equal(error[[0, 4]], std[[1, 2]])
    _, interpolation_std = interpolate_spectra(cube, nm, target_nm, 0 * std)
    assert (interpolation_std[0] == 0).all()
    assert (interpolation_std[1:4].diff(dim=0) > 0).all()
    torch.testing.assert_close(
        interpolate_spectra(2 * cube, nm, target_nm, 0 * std)[1], 2 * interpolation_std
    )


def test_what_is_interpolated_is_linear_in_a_flat_cube_and_has_a_gradient():
    cube = torch.full((5, 2, 2), 0.3, dtype=torch.float64, requires_grad=True)
    result, _ = interpolate_spectra(cube, CAVE[:5], [404.0, 433.0])
    torch.testing.assert_close(result, torch.full_like(result, 0.3), rtol=1e-3, atol=0)
    result.sum().backward()
    torch.testing.assert_close(
        cube.grad.sum(0), torch.full((2, 2), 2.0).double(), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize(
    ("cube", "source", "target", "message"),
    [
        *(
            (torch.ones(3, 2, 2), source, target, message)
            for source, target, message in (
                ([450, 500, 650], [440, 500], r"cover the wanted 440-500 nm, got 450-650 nm; 440"),
                ([450, 500, 650], [500, 651], "651 nm would be extrapolated"),
                ([450, 500], [460, 480], "expected 3 wavelengths, one a band, got 2"),
                ([450, 650, 500], [460, 480], "expected rising wavelengths"),
                ([450, 500, 650], [480, 460], "expected rising wavelengths"),
            )
        ),
        (torch.ones(1, 2, 2), [500], [490, 510], "too few bands: expected at least 2"),
        (torch.ones(1, 3, 2, 2), [500, 510, 520], [505], r"expected \(C, H, W\)"),
        (torch.ones(3, 2, 2, dtype=torch.int16), [500, 510, 520], [505], "floating"),
    ],
)
def test_refused(interpolate, cube, source, target, message):
    with pytest.raises((ValueError, TypeError), match=message) as error_info:
        interpolate(cube, source, target)
    assert "\n" not in str(error_info.value)


def test_spectra_between_pixels():
    cube = uniform(4, 5, 7, dtype=torch.float64)
    points = [(0, 0), (4, 6), (2, 3.5), (1.25, 6), (3.75, 0.5)]
    result = spectra_at(cube, points)
    assert torch.equal(result[:2], torch.stack([cube[:, 0, 0], cube[:, 4, 6]]))
    torch.testing.assert_close(result[2], (cube[:, 2, 3] + cube[:, 2, 4]) / 2)
    torch.testing.assert_close(result[3], 0.75 * cube[:, 1, 6] + 0.25 * cube[:, 2, 6])
    upper, lower = (cube[:, row, :2].mean(1) for row in (3, 4))
    torch.testing.assert_close(result[4], 0.25 * upper + 0.75 * lower)
    assert torch.equal(spectra_at(cube[:, :1, :1], [(0, 0)])[0], cube[:, 0, 0])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(4.1, 0)], r"inside \(5, 7\)"),
        ([(0, -0.1)], "inside"),
        ([(math.nan, 0)], "inside"),
        ([(1, 2, 3)], r"pairs \(row, column\)"),
        ([], "pairs"),
    ],
)
def test_points_that_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        spectra_at(torch.ones(4, 5, 7), points)


def test_benchmark_bands_are_those_of_the_configs():
    file = Path(__file__).parents[2] / "conf" / "data" / "_28_bands.yaml"
    assert tuple(yaml.safe_load(file.read_text())["wavelengths"]) == BENCHMARK_WAVELENGTHS
