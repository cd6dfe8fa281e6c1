"""The method for video snapshots."""

import pytest
from shared import uniform

from cassi.methods import video
from cassi.priors import TV
from cassi.solvers import GAP, Geometric, Solver
from cassi.systems import SDCassi


@pytest.fixture(scope="module")
def snapshot():
    """A square that moves by a pixel and a half a frame, before a ground of blocks."""
    ground = uniform(6, 6).repeat_interleave(8, 0).repeat_interleave(8, 1)
    frames = ground.repeat(4, 1, 1)
    for t in range(4):
        frames[t, 14:26, 8 + 3 * t // 2 : 20 + 3 * t // 2] = 0.9
    masks = (uniform(4, 48, 48, seed=1) > 0.5).float()
    camera = SDCassi(masks, bands=4, step=0)
    return frames[None], camera, camera(frames[None])


def test_it_is_better_than_total_variation_and_passes_better_still(snapshot):
    frames, camera, y = snapshot
    tv = Solver(TV(), GAP(), iterations=100, sigma=Geometric(0.4, 0.1))
    errors = [
        float((m(y, camera) - frames).square().mean()) for m in (tv, video(), video(passes=2))
    ]
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] < 0.8 * errors[1]


def test_iterations_are_those_of_all_passes(snapshot):
    _, camera, y = snapshot
    method = video(iterations=2, passes=1)
    assert method.iterations == 22
    assert len(method.run(y, camera).history) == 22
    with pytest.raises(ValueError, match="passes: expected a whole number"):
        video(passes=-1)
