import numpy as np
import pytest

from cassi import viz
from cassi.viz.points import correlation, region_spectrum


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


def test_spectra_between_pixels_are_between_theirs(cube, wavelengths, tmp_path):
    def mean(row, column):
        return cube[:, max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3].mean(
            (1, 2), dtype=np.float64
        )

    np.testing.assert_array_equal(region_spectrum(cube, 12, 30), mean(12, 30))
    np.testing.assert_array_equal(region_spectrum(cube, 0.0, 52.0), mean(0, 52))
    for row, column in ((12.5, 30.25), (17.75, 25), (0, 0.5), (36, 51.5), (35.5, 52)):
        (top, down), (left, across) = divmod(row, 1), divmod(column, 1)
        expected = sum(
            wr * wc * mean(int(top) + r, int(left) + c)
            for r, wr in ((0, 1 - down), (1, down))
            for c, wc in ((0, 1 - across), (1, across))
            if wr * wc
        )
        np.testing.assert_allclose(region_spectrum(cube, row, column), expected, rtol=1e-12)
    viz.save_spectra(tmp_path / "a.png", cube, wavelengths, [[12.5, 30.25], [36, 52]], truth=cube)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_spectra_as_a_table(cube, wavelengths, tmp_path):
    points = [[12.5, 30.25], [36, 52]]
    viz.save_spectra(
        tmp_path / "a.csv", cube, wavelengths, points, 2 * cube, bars=lambda *_: np.ones(len(cube))
    )
    head, *rows = (tmp_path / "a.csv").read_text().splitlines()
    names = head.split(",")
    assert names[:4] == [
        "wavelength_nm",
        *(f"row 12.5 column 30.25{s}" for s in ("", " +-", " truth")),
    ]
    table = np.array([row.split(",") for row in rows], float).T
    spectrum = region_spectrum(cube, 36, 52)
    expected = [wavelengths, spectrum, np.ones(len(cube)), 2 * spectrum]
    np.testing.assert_allclose(table[[0, 4, 5, 6]], expected, rtol=1e-6)
    viz.save_spectra(tmp_path / "b.csv", cube, None, points)
    assert (
        (tmp_path / "b.csv").read_text().startswith("band,row 12.5 column 30.25,row 36 column 52")
    )


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_correlation_in_any_unit(unit):
    truth, flat = unit * np.array([1.0, 2.0, 4.0]), unit * np.ones(3)
    assert correlation(2 * truth, truth) == pytest.approx(1)
    assert correlation(flat, truth) is None
