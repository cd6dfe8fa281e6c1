"""Spectral interpolation: what it gives, and that it never extrapolates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from cassi.data.resample import resample
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS

CAVE = [400.0 + 10 * band for band in range(31)]


def test_equals_numpy() -> None:
    cube = torch.rand(31, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = resample(cube, CAVE, BENCHMARK_WAVELENGTHS)
    for h in range(3):
        for w in range(4):
            expected = np.interp(BENCHMARK_WAVELENGTHS, CAVE, cube[:, h, w].numpy())
            np.testing.assert_allclose(got[:, h, w].numpy(), expected, rtol=1e-12)


def test_bands_that_are_there_are_copied() -> None:
    cube = torch.rand(31, 2, 2, generator=torch.Generator().manual_seed(0))
    same = resample(cube, CAVE, CAVE)
    assert torch.equal(same, cube)
    assert same.data_ptr() != cube.data_ptr()
    assert torch.equal(resample(cube, CAVE, [400.0, 550.0, 700.0]), cube[[0, 15, 30]])
    assert torch.equal(resample(cube[:1], [550.0], [550.0]), cube[:1])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([450, 500, 650], [440, 500], r"cover the wanted 440-500 nm, got 450-650 nm; 440 nm would"),
        ([450, 500, 650], [500, 651], "651 nm would be extrapolated"),
        ([450, 500], [460, 480], "expected 3 wavelengths, one a band, got 2"),
        ([450, 650, 500], [460, 480], "expected rising wavelengths"),
        ([450, 500, 650], [480, 460], "expected rising wavelengths"),
    ],
)
def test_refused(source: list[float], target: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resample(torch.ones(3, 2, 2), source, target)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="too few bands: expected at least 2"):
        resample(torch.ones(1, 2, 2), [500], [490, 510])
    with pytest.raises(ValueError, match=r"expected \(C, H, W\)"):
        resample(torch.ones(1, 3, 2, 2), [500, 510, 520], [505])
    with pytest.raises(TypeError, match="floating"):
        resample(torch.ones(3, 2, 2, dtype=torch.int16), [500, 510, 520], [505])


@pytest.mark.parametrize("group", ["data", "experiment"])
def test_benchmark_bands_are_those_of_the_configs(group: str) -> None:
    file = Path(__file__).parents[2] / "conf" / group / "_28_bands.yaml"
    assert tuple(yaml.safe_load(file.read_text())["wavelengths"]) == BENCHMARK_WAVELENGTHS
