"""shrink_groups: values, derivatives, strides, dtypes, errors."""

import numpy as np
import pytest
import torch

from cassi import ops

HEIGHT, WIDTH = 7, 9


def _image(batch=2, channels=3):
    generator = torch.Generator().manual_seed(batch + channels)
    shape = batch, channels, HEIGHT, WIDTH
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1


def _groups(batch, count, matches):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(HEIGHT * WIDTH, (batch, count, matches), generator=generator)


def _by_definition(image, groups, threshold, patch):
    total = np.zeros(image.shape)
    for sample, pixels, some in zip(total, image.numpy(), groups.numpy(), strict=True):
        for group in some:
            places = [
                (slice(r, r + patch), slice(c, c + patch))
                for r, c in (
                    (min(p // WIDTH, HEIGHT - patch), min(p % WIDTH, WIDTH - patch)) for p in group
                )
            ]
            stack = np.array([pixels[:, r, c].ravel() for r, c in places])
            mean = stack.mean(0)
            u, s, v = np.linalg.svd(stack - mean, full_matrices=False)
            root = np.sqrt(np.where(s > threshold, s**2 - threshold**2, 0))
            clean = (u * np.where(s > threshold, (s + root) / 2, 0)) @ v + mean
            for (r, c), row in zip(places, clean, strict=True):
                sample[:, r, c] += row.reshape(-1, patch, patch)
    return total


@pytest.mark.parametrize(
    ("matches", "patch", "count"),
    [(1, 2, 4), (5, 3, 4), (16, 3, 4), (24, 1, 4), (9, 7, 4), (48, 6, 63), (49, 2, 4)],
)
def test_groups_are_shrunk_and_added(matches, patch, count):
    """Of 49 patches, more than kernels are compiled for, as well."""
    image, groups = _image(), _groups(2, count, matches)
    expected = _by_definition(image, groups, 0.7, patch)
    got = ops.shrink_groups(image, groups, torch.tensor([0.7], dtype=torch.float64), patch)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-9)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_more_groups_than_a_block_looks_at_in_turn():
    height, width, count = 5, 1000, 4900
    groups = torch.arange(count).flip(0).view(1, -1, 1)
    got = ops.shrink_groups(torch.ones(1, 1, height, width), groups, torch.ones(1), 1)
    assert torch.equal(got.flatten(), (torch.arange(height * width) < count).float())


def test_samples_have_thresholds_of_their_own():
    image, groups = _image(), _groups(2, 4, 5)
    levels = torch.tensor([0.0, 1.2], dtype=torch.float64)
    both = ops.shrink_groups(image, groups, levels, 3)
    for b in range(2):
        one = ops.shrink_groups(image[b : b + 1], groups[b : b + 1], levels[b : b + 1], 3)
        assert torch.equal(both[b : b + 1], one)


def test_a_group_comes_out_the_same_beside_any_other():
    image, groups = _image(1).float(), _groups(1, 40, 8)
    level = torch.tensor([0.3])
    last = ops.shrink_groups(image, groups[:, -1:], level, 3)
    for count in range(2, 20):
        others = ops.shrink_groups(image, groups[:, -count:-1], level, 3)
        both = ops.shrink_groups(image, groups[:, -count:], level, 3)
        torch.testing.assert_close(both, others + last, rtol=0, atol=1e-5)
    spoilt = image.clone()
    spoilt[..., 0, 0] = torch.nan
    groups = torch.where(groups < WIDTH, groups + 4 * WIDTH, groups)
    away = torch.cat([torch.zeros_like(groups[:, :1]), groups], 1)
    kept = ops.shrink_groups(spoilt, away, level, 3)[..., 4:, 4:]
    alone = ops.shrink_groups(image, groups, level, 3)[..., 4:, 4:]
    assert torch.equal(kept, alone)


def test_positions_in_any_strides_and_beyond_the_image():
    image, groups = _image(), _groups(2, 6, 4)
    level = torch.ones(1)
    expected = ops.shrink_groups(image, groups, level, 3)
    for turned in (groups.mT.contiguous().mT, groups.repeat_interleave(3, 2)[..., ::3]):
        assert torch.equal(ops.shrink_groups(image, turned, level, 3), expected)
    first = ops.shrink_groups(image, torch.zeros_like(groups), level, 3)
    for far in (-1, -(2**63)):
        assert torch.equal(ops.shrink_groups(image, torch.full_like(groups, far), level, 3), first)
    last = torch.full_like(groups, (HEIGHT - 3) * WIDTH + WIDTH - 3)
    beyond = torch.full_like(groups, 2**62)
    assert torch.equal(*(ops.shrink_groups(image, g, level, 3) for g in (last, beyond)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_not_rounded(dtype):
    image, groups = _image().to(dtype), _groups(2, 4, 5)
    got = ops.shrink_groups(image, groups, torch.ones(1), 3)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, ops.shrink_groups(image.float(), groups, torch.ones(1), 3))


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_shrink(sizes):
    batch, channels, count = sizes
    got = ops.shrink_groups(
        torch.ones(batch, channels, HEIGHT, WIDTH), _groups(batch, count, 5), torch.ones(1), 3
    )
    assert torch.equal(got, torch.zeros(batch, channels, HEIGHT, WIDTH))
