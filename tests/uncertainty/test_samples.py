"""Samples of a cube: consistent with the measurement, and repeatable."""

from dataclasses import replace

import pytest
import torch

import cassi
from cassi.systems import TiltedCassi
from cassi.uncertainty import estimate

BANDS, NOISE = 6, 0.02


def make_scene(height=64, width=64):
    random = torch.Generator().manual_seed(0)
    # No pixel of the detector is dark: no sample explains the noise of a dark one.
    mask = 0.3 + 0.7 * (torch.rand(height, width, generator=random) > 0.5).float()
    cells = torch.rand(1, BANDS, 8, 8, generator=random)
    return mask, torch.nn.functional.interpolate(cells, size=(height, width), mode="bilinear")


def estimate_of(system, cube, count=4, **options):
    noise = NOISE * torch.randn(system(cube).shape, generator=torch.Generator().manual_seed(1))
    y = system(cube) + noise
    method = cassi.Solver(cassi.TV(), iterations=15)
    return y, estimate(y, system, method, method.run(y, system).x, samples=count, **options)


@pytest.fixture(scope="module")
def case():
    """Samples of a small scene, and its measurement."""
    mask, cube = make_scene()
    y, uncertainty = estimate_of(cassi.SDCassi(mask, bands=BANDS, step=1), cube, 16)
    return y, uncertainty.samples


def test_samples_depend_on_seed_and_index(case):
    samples = case[1]
    mask, cube = make_scene()
    system = cassi.SDCassi(mask, bands=BANDS, step=1)
    fewer = estimate_of(system, cube, 4)[1].samples
    other = estimate_of(system, cube, 4, seed=1)[1].samples
    assert (len(samples), len(fewer)) == (16, 4)
    assert torch.equal(samples[3], samples[3])
    assert torch.equal(samples[3], fewer[3])
    assert not torch.allclose(other[0], fewer[0])
    assert torch.equal(fewer.stack(), torch.stack([fewer[i] for i in range(4)]))
    assert samples[0].shape == (BANDS, 64, 64)
    assert estimate_of(system, cube, 0)[1].samples is None
    with pytest.raises(IndexError, match="samples: expected an index below 16, got 16"):
        samples[16]


def test_samples_are_consistent_with_the_measurement(case):
    y, samples = case
    torch.testing.assert_close(samples.y, y)
    for sample in samples:
        residual = y - samples.system(sample[None])
        assert float(residual.square().mean().sqrt()) == pytest.approx(samples.noise, rel=0.05)
        assert float((sample < -0.02).float().mean()) < 0.01


def test_samples_of_a_pair_have_opposite_errors(case):
    samples = case[1]
    # Far from 0 and without noise, the mean of a pair is the cube.
    bright = samples.x + 10
    pair = replace(samples, count=2, x=bright, y=samples.system(bright), noise=0.0).stack()
    assert float((pair[0] - bright[0]).std()) > 0.01
    torch.testing.assert_close(pair.mean(0), bright[0], rtol=0, atol=1e-3)
    cube, stack = samples.cube[0], samples.stack()
    first, second = (stack[0] - cube).flatten(), (stack[1] - cube).flatten()
    assert float(torch.corrcoef(torch.stack([first, second]))[0, 1]) < -0.5
    std = float(sum(scale.std.square() for scale in samples.scales).mean().sqrt())
    assert 0.3 < float((stack - cube).std()) / std < 1.5


def make_cameras():
    mask, _ = make_scene()
    camera = cassi.SDCassi(mask, bands=BANDS, step=1)
    bad_pixels = torch.zeros(64, 69)
    bad_pixels[20:22, 30:40] = 1
    masks = torch.stack([mask, mask.flip(0)])[:, None]
    across = [0.1 * band for band in range(BANDS)]
    return {
        "two shots": cassi.SDCassi(masks, bands=BANDS, step=-1, axis=-2),
        "tilted": TiltedCassi(mask[:32, :32], BANDS, 1, across=across, iterations=15),
        "bad pixels": camera.weighted(bad_pixels=bad_pixels),
        "small": cassi.SDCassi(mask[:15, :14], bands=BANDS, step=1),
    }


@pytest.mark.parametrize("name", make_cameras())
def test_cameras(name):
    system = make_cameras()[name]
    height, width = {"small": (15, 14), "tilted": (32, 32)}.get(name, (64, 64))
    y, uncertainty = estimate_of(system, make_scene(height, width)[1], 2)
    samples = uncertainty.samples
    assert len(samples.scales) == {"small": 1, "tilted": 2}.get(name, 3)
    for scale in samples.scales:
        assert float(scale.pattern.square().mean()) == pytest.approx(1, rel=1e-4)
    is_good = system.is_good if name == "bad pixels" else torch.ones_like(y, dtype=torch.bool)
    for sample in samples:
        residual = (y - system(sample[None]))[is_good.expand_as(y)]
        # 280 pixels have a standard deviation that is off by 4 %.
        margin = 0.15 if name == "small" else 0.05
        assert float(residual.square().mean().sqrt()) == pytest.approx(samples.noise, rel=margin)


@pytest.mark.parametrize("count", [1, 3, -2, 10_002])
def test_counts_that_are_refused(count):
    mask, cube = make_scene()
    with pytest.raises(ValueError, match="samples: expected an even number from 2 to 10000, got"):
        estimate_of(cassi.SDCassi(mask, bands=BANDS, step=1), cube, count)
