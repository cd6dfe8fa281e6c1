import numpy as np
import pytest

from cassi import viz


def test_points_are_deterministic_distinct_and_inside(cube):
    points = viz.choose_points(cube)
    assert points == viz.choose_points(cube.copy())
    assert len(set(points)) == 4
    assert all(0 <= row < 37 and 0 <= column < 53 for row, column in points)
    assert all(type(index) is int for point in points for index in point)


def test_each_material_gets_a_point(cube):
    quarters = {(row >= 18, column >= 26) for row, column in viz.choose_points(cube)}
    assert len(quarters) == 4


def test_points_avoid_the_dark_and_the_rough():
    rng = np.random.default_rng(0)
    cube = np.full((8, 120, 120), 0.5, np.float32)
    cube[:, :60] = 0.001 * rng.random((8, 60, 120))  # dark, of random spectra
    cube[:, 60:, :40] *= 2 * rng.random((60, 40))  # bright and rough
    for row, column in viz.choose_points(cube, 6):
        assert row >= 60
        assert column >= 40


@pytest.mark.parametrize("shape", [(1, 37, 53), (3, 37, 53), (28, 1, 1), (5, 2, 200), (4, 400, 9)])
@pytest.mark.parametrize("fill", ["flat", "black", "negative", "noise"])
def test_any_cube_has_as_many_points_as_fit(shape, fill):
    noise = np.random.default_rng(1).standard_normal(shape)
    cube = {"flat": np.ones(shape), "black": np.zeros(shape), "negative": -np.ones(shape)}
    count = min(7, shape[1] * shape[2])
    points = viz.choose_points(cube.get(fill, noise), count)
    assert len(set(points)) == count
    assert all(0 <= row < shape[1] and 0 <= column < shape[2] for row, column in points)


@pytest.mark.parametrize("count", [0, -1, 7])
def test_a_count_that_does_not_fit_is_named(count):
    with pytest.raises(ValueError, match=f"expected 1 to 6 points, got {count}"):
        viz.choose_points(np.ones((4, 2, 3)), count)
