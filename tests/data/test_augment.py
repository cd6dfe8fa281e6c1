"""Variations of training samples: each does what it says and nothing else."""

from dataclasses import replace

import pytest
import torch
from shared import seeded

from cassi.data.augment import Augment, augmented_crop, random_crop, rotate_or_flip
from cassi.data.scenes import Scene

NO_VARIATIONS = Augment(flip=False, rotate=False, splice=0.0)
BANDS = (450.0, 550.0)


def _scene(rows=12, columns=15, base=0.0):
    """Every pixel tells where it is: 16·row + column, in the second band one more half."""
    index = 16.0 * torch.arange(rows)[:, None] + torch.arange(columns)
    return Scene("a", base + torch.stack([index, index + 0.5]), BANDS)


def _all_turns(cube):
    turned_cubes = [torch.rot90(cube, k, (-2, -1)) for k in range(4)]
    return [*turned_cubes, *(turned_cube.flip(-1) for turned_cube in turned_cubes)]


def test_everything_off_is_a_crop():
    scene, places = _scene(), set()
    for seed in range(300):
        crop = augmented_crop([scene], 5, 6, NO_VARIATIONS, seeded(seed))
        top, left = divmod(int(crop[0, 0, 0]), 16)
        assert torch.equal(crop, scene.values(top, left, 5, 6))
        places.add((top, left))
    assert {top for top, _ in places} == set(range(8))
    assert {left for _, left in places} == set(range(10))


def test_flips_and_turns_are_all_drawn():
    scene = _scene(5, 5)
    views = [tuple(view.flatten().tolist()) for view in _all_turns(scene.cube)]
    for augment, expected in (
        (replace(NO_VARIATIONS, flip=True, rotate=True), set(views)),
        (replace(NO_VARIATIONS, rotate=True), set(views[:4])),
        (replace(NO_VARIATIONS, flip=True), {views[0], views[2], views[4], views[6]}),
    ):
        crops = {
            tuple(random_crop(scene, 5, 5, augment, seeded(seed)).flatten().tolist())
            for seed in range(200)
        }
        assert crops == expected


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_turn(turns, flips):
    cube = _scene(4, 6).cube
    dims = [dim for dim, flip in zip((-2, -1), flips, strict=True) if flip]
    result = rotate_or_flip(cube, turns, *map(bool, flips))
    assert torch.equal(result, torch.rot90(cube, turns, (-2, -1)).flip(dims))
    assert result.is_contiguous()


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 7)])
def test_splice_is_made_of_four_crops(size):
    scenes = [_scene(base=1000.0 * k) for k in range(4)]
    height, width = size
    cube_numbers = set()
    for seed in range(40):
        sample = augmented_crop(
            scenes, height, width, replace(NO_VARIATIONS, splice=1.0), seeded(seed)
        )
        assert sample.shape == (2, height, width)
        rows = [slice(0, height // 2), slice(height // 2, None)] if height > 1 else [slice(0, 1)]
        columns = [slice(0, width // 2), slice(width // 2, None)]
        for part in (sample[:, r, c] for r in rows for c in columns):
            k, place = divmod(int(part[0, 0, 0]), 1000)
            top, left = divmod(place, 16)
            assert torch.equal(part, scenes[k].values(top, left, *part.shape[1:]))
            cube_numbers.add(k)
    assert cube_numbers == set(range(4))


def test_mix_is_a_convex_combination():
    scenes = [Scene("a", torch.zeros(2, 6, 6), BANDS), Scene("b", torch.ones(2, 6, 6), BANDS)]
    values = []
    for seed in range(200):
        sample = augmented_crop(scenes, 3, 3, replace(NO_VARIATIONS, mix=1.0), seeded(seed))
        assert sample.min() == sample.max()
        values.append(sample.max().item())
    shares = [value for value in values if 0 < value < 1]
    assert 60 < len(shares) < 140
    assert min(shares) < 0.1
    assert max(shares) > 0.9


def test_scale_keeps_means_and_sizes():
    scene = Scene("a", torch.full((2, 12, 15), 0.25), BANDS)
    for seed in range(20):
        crop = random_crop(scene, 6, 6, replace(NO_VARIATIONS, scale=(0.5, 2.0)), seeded(seed))
        torch.testing.assert_close(crop, torch.full((2, 6, 6), 0.25))
    half = replace(NO_VARIATIONS, scale=(0.5, 0.5))
    crop = random_crop(_scene(12, 12), 6, 6, half, seeded())
    expected = torch.nn.functional.avg_pool2d(_scene(12, 12).cube, 2)
    torch.testing.assert_close(crop, expected)
    assert half.source_size(6, 8) == (12, 16)
    assert Augment(scale=(0.8, 1.0)).source_size(6, 8) == (10, 10)


def test_brightness_is_one_factor():
    scene = Scene("a", torch.rand(2, 6, 6, generator=seeded()), BANDS)
    factors = []
    for seed in range(100):
        sample = augmented_crop(
            [scene], 6, 6, replace(NO_VARIATIONS, brightness=(0.5, 2)), seeded(seed)
        )
        ratio = sample / scene.cube
        torch.testing.assert_close(ratio, ratio[0, 0, 0].expand_as(ratio))
        factors.append(ratio[0, 0, 0].item())
    assert 0.5 <= min(factors) < 0.6
    assert 1.9 < max(factors) <= 2


def test_illumination_is_one_smooth_factor_per_band():
    scene = Scene("a", torch.rand(28, 6, 6, generator=seeded()) + 0.1, tuple(range(28)))
    logs = []
    for seed in range(200):
        sample = augmented_crop(
            [scene], 6, 6, replace(NO_VARIATIONS, illumination=0.3), seeded(seed)
        )
        ratio = sample / scene.cube
        torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
        logs.append(ratio[:, 0, 0].log())
    curves = torch.stack(logs)
    assert curves.std() == pytest.approx(0.3, rel=0.15)
    assert curves.diff(dim=1).abs().max() < 0.4


def test_lifted_spectra_are_sums_of_three_smooth_ones():
    cube = torch.rand(28, 12, 15, generator=seeded()) + 0.1
    scene = Scene("a", cube, tuple(range(28)))
    directions = []
    for seed in range(20):
        sample = augmented_crop([scene], 12, 15, replace(NO_VARIATIONS, lift=1.0), seeded(seed))
        assert sample.min() >= 0
        torch.testing.assert_close(sample.max(), cube.max())
        left, values, _ = torch.linalg.svd(sample.flatten(1).double(), full_matrices=False)
        assert values[3] < 1e-5 * values[0]
        assert values[2] > 1e-4 * values[0]
        directions.append(left[:, 0].abs())
    assert torch.stack(directions).std(0).max() > 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"splice": 1.5}, "splice: expected 0 to 1, got 1.5"),
        ({"scale": (0, 1)}, "scale: expected .low, high."),
        ({"illumination": -1.0}, "illumination: expected at least 0"),
        ({"brightness": (1, float("nan"))}, "brightness: expected"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Augment(**arguments)


def test_crop_larger_than_the_scene():
    with pytest.raises(ValueError, match="a: expected a crop inside 12 x 15, got 13 x 3"):
        random_crop(_scene(), 13, 3, NO_VARIATIONS, seeded())
