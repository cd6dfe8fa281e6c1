"""Drawn scenes and cameras with defects: reproducible, and what is told of them is true."""

import pytest
import torch
from shared import seeded, uniform

from cassi.data.augment import Augment, augmented_crop
from cassi.data.scenes import Scene
from cassi.data.simulation import Simulator
from cassi.data.synthetic.cameras import RealCameras
from cassi.data.synthetic.patterns import PATTERNS, draw_pattern
from cassi.data.synthetic.twin import Twin

SIZE = (5, 24, 30)


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns(kind):
    cubes = [draw_pattern(kind, *SIZE, seeded(seed)) for seed in (0, 0, 1)]
    assert cubes[0].shape == SIZE
    assert cubes[0].dtype == torch.float32
    assert cubes[0].min() >= 0
    assert cubes[0].max() == 1
    assert torch.equal(cubes[0], cubes[1])
    assert not torch.equal(cubes[0], cubes[2])
    assert cubes[0].std() > 0.01


def test_no_such_pattern():
    with pytest.raises(ValueError, match=r"expected one of patches, .*, got 'stars'"):
        draw_pattern("stars", *SIZE, seeded())


def test_samples_are_drawn_as_often_as_asked():
    scene = Scene("a", torch.full((4, 16, 16), 0.5), (450.0, 480.0, 520.0, 550.0))
    plain = Augment(flip=False, rotate=False, splice=0.0, patterns=0.5)
    drawn = [augmented_crop([scene], 16, 16, plain, seeded(seed)) for seed in range(60)]
    other = sum(not torch.equal(cube, scene.values(0, 0, 16, 16)) for cube in drawn)
    assert 15 <= other <= 45


def test_ideal_cameras_are_those_of_the_simulator():
    x, mask = uniform(3, 4, 12, 14), uniform(12, 14, seed=1)
    expected, nominal = Simulator(mask, step=1)(x, seeded())
    for settings in ({"ideal": 1.0}, {"ideal": 0.0, "chance": 0.0}):
        y, camera = RealCameras(mask, {"shift": [1, 2]}, step=1, **settings)(x, seeded())
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(camera(x), nominal(x))


def test_each_sample_has_a_camera_of_its_own():
    x, mask = uniform(1, 4, 12, 14).repeat(2, 1, 1, 1), uniform(12, 14, seed=1)
    cameras = RealCameras(mask, {"mask_blur": [0.2, 0.8]}, step=1.5, chance=1.0, ideal=0.0)
    y, camera = cameras(x, seeded())
    assert torch.equal(y, cameras(x, seeded())[0])
    assert not torch.equal(y[0], y[1])
    assert torch.equal(camera.mask, mask[None, None])
    sharp, blurred = (Twin(mask_blur=b).measure(x[:1], camera.system, seeded()) for b in (0.2, 0.8))
    distance = (blurred - sharp).norm()
    assert all((one - sharp).norm() <= distance for one in y)


def test_what_is_known_of_a_camera_is_told():
    x, mask = 0.3 + 0.1 * uniform(2, 8, 32, 32), uniform(32, 32, seed=1)
    defects = {"bits": [8, 8], "dark": [0.02, 0.02], "dead": [0.01, 0.01]}
    cameras = RealCameras(mask, defects, chance=1.0, ideal=0.0)
    told = [cameras(x, seeded(seed)) for seed in range(6)]
    assert all((~camera.good).flatten(1).sum(1).tolist() == [15, 15] for _, camera in told)
    # The dark level is gone: on average the frames are those of the nominal camera.
    left = torch.stack(
        [camera.without_bad_pixels(y - camera.system(x)).mean() for y, camera in told]
    )
    assert left.abs().mean() < 0.02
    spreads = torch.stack([camera.variance.flatten(1).std(1) for _, camera in told]).flatten()
    means = torch.stack([camera.variance.flatten(1).mean(1) for _, camera in told]).flatten()
    assert 0 < int((spreads > 0).sum()) < len(spreads)
    torch.testing.assert_close(means, torch.ones_like(means))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"defects": {"blur": [0, 1]}}, "expected values of a twin, got 'blur'"),
        ({"defects": {"dark": [0.2, 0.1]}}, r"defects.dark: expected \(low, high\)"),
        ({"defects": {}, "chance": 2}, "chance: expected 0 to 1"),
        ({"defects": {}, "ideal": -1}, "ideal: expected 0 to 1"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RealCameras(uniform(4, 4), **settings)
