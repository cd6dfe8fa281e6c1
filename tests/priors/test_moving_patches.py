"""Patches that are followed from frame to frame."""

import pytest
import torch
from shared import uniform

from cassi.priors import MovingPatches, NonLocalLowRank
from cassi.priors.non_local import match_patches


def test_matches_are_the_nearest_patches_of_all_frames_in_reach():
    video = uniform(4, 2, 9, 8, dtype=torch.float64)  # of two channels
    (groups,) = match_patches(video[None], patch=3, stride=3, matches=5, radius=2, reach=1)
    frames, _, height, width = video.shape
    starts = [(t, h, w) for t in range(4) for h in (0, 3, 6) for w in (0, 3, 5)]
    assert groups.shape == (len(starts), 5)
    for (t, h, w), group in zip(starts, groups.tolist(), strict=True):
        patch = video[t, :, h : h + 3, w : w + 3]
        costs = {}
        for other in range(max(0, t - 1), min(frames, t + 2)):
            for row in range(max(0, h - 2), min(height - 3, h + 2) + 1):
                for column in range(max(0, w - 2), min(width - 3, w + 2) + 1):
                    there = video[other, :, row : row + 3, column : column + 3]
                    place = (other * height + row) * width + column
                    costs[place] = float((patch - there).square().sum())
        assert group[0] == (t * height + h) * width + w
        assert group == sorted(costs, key=costs.__getitem__)[:5]


def test_a_moving_object_is_followed():
    video = torch.zeros(1, 5, 20, 24)
    texture = uniform(6, 6)
    for t in range(5):
        video[0, t, 7:13, 3 * t : 3 * t + 6] = texture
    noisy = video + 0.1 * torch.randn(video.shape)
    moving = MovingPatches(weight=1.0, stride=2, matches=16)(noisy, 0.1)
    still = NonLocalLowRank(weight=1.0, stride=2, matches=16)(noisy, 0.1)
    moving, still, before = ((x - video)[video > 0].square().mean() for x in (moving, still, noisy))
    assert moving < 0.8 * still
    assert moving < before


def test_without_noise_nothing_changes_and_the_search_is_seldom():
    x = uniform(2, 3, 10, 9, dtype=torch.float64)
    torch.testing.assert_close(MovingPatches()(x, 0.0), x)
    run = MovingPatches(refresh=2).begin()
    run(x, 0.1)
    other = x.flip(-1).contiguous()
    assert not torch.equal(run(other, 0.1), MovingPatches()(other, 0.1))
    torch.testing.assert_close(run(other, 0.1), MovingPatches()(other, 0.1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weight": -1}, "MovingPatches weight: expected a number >= 0"),
        ({"reach": 0}, "MovingPatches reach: expected a whole number"),
        ({"stride": 7}, "stride: expected at most patch = 6, got 7"),
    ],
)
def test_wrong_numbers_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MovingPatches(**wrong)
