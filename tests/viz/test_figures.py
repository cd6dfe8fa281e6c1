import threading
from functools import partial

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from cassi import viz
from cassi.viz import figures
from cassi.viz.bands import _choose_bands

SAVERS = {
    "rgb": viz.save_rgb,
    "rgb, truth": lambda path, cube, w: viz.save_rgb(path, cube, w, truth=0.9 * cube),
    "bands": viz.save_bands,
    "bands, truth": lambda path, cube, w: viz.save_bands(path, cube, w, truth=0.9 * cube),
    "bands, measurement": lambda path, cube, w: viz.save_bands(path, cube, w, measurement=cube[:1]),
    "bands, all": lambda path, cube, w: viz.save_bands(path, cube, w, cube, cube[0]),
    "spectra": viz.save_spectra,
    "spectra, truth": lambda path, cube, w: viz.save_spectra(path, cube, w, truth=0.9 * cube),
}


def _read(path):
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return imread(path)[..., :3]


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("given", [1, 28, None, (2, 1, 1), (2, 3, 90)])
def test_every_figure_is_a_picture_of_something(saver, given, cube, wavelengths, tmp_path):
    if isinstance(given, tuple):  # extreme shapes, and nothing lit
        SAVERS[saver](tmp_path / "a.png", np.zeros(given), wavelengths[:2])
    else:
        nm = None if given is None else wavelengths[:given]
        SAVERS[saver](tmp_path / "a.png", torch.from_numpy(cube[:given]), nm)
    assert isinstance(given, tuple) or _read(tmp_path / "a.png").std() > 0.02
    assert _read(tmp_path / "a.png").size
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(("bands", "expected"), [(28, 28), (32, 32), (33, 28), (200, 28), (5, 5)])
def test_montage_shows_all_bands_or_an_even_choice(bands, expected):
    shown = _choose_bands(bands, None, beside_truth=False)
    assert len(set(shown)) == expected
    assert (shown[0], shown[-1]) == (0, bands - 1)
    assert len(_choose_bands(bands, None, beside_truth=True)) == min(8, bands)


def test_rgb_alone_is_the_rendering_pixel_for_pixel(cube, wavelengths, tmp_path):
    viz.save_rgb(tmp_path / "a.png", cube, wavelengths)
    picture = np.rint(255 * _read(tmp_path / "a.png"))
    np.testing.assert_array_equal(picture, viz.srgb(cube, wavelengths))


def test_rgb_beside_the_truth_shares_its_exposure(cube, wavelengths, tmp_path):
    viz.save_rgb(tmp_path / "a.png", 0.25 * cube, wavelengths, truth=cube)
    picture = _read(tmp_path / "a.png")
    height, width = picture.shape[:2]
    middle = slice(height // 3, height - 30)
    dim, bright = picture[middle, 40 : width // 2 - 40], picture[middle, width // 2 + 40 : -40]
    assert dim.mean() < 0.75 * bright.mean()


def test_figures_are_the_same_from_every_thread(cube, wavelengths, tmp_path):
    def work(index):
        viz.save_spectra(tmp_path / f"{index}.png", cube, wavelengths, truth=cube)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert len(list(tmp_path.iterdir())) == 3


BAD = {
    "truth": (partial(viz.save_rgb, truth=np.ones((28, 5, 5))), r"truth of the scene's shape"),
    "truth, bands": (partial(viz.save_bands, truth=np.ones((28, 5, 5))), r"got \(28, 5, 5\)"),
    "measurement": (partial(viz.save_bands, measurement=np.ones((1, 1, 5, 5))), "take one scene"),
    "unit": (
        lambda path, cube, w: viz.save_rgb(path, cube, np.array(w) / 1e3),
        "nm, got 0.4535 to .* 1000",
    ),
    "count": (partial(viz.save_bands, count=29), "count of 1 to 28 bands, got 29"),
    "no points": (partial(viz.save_spectra, points=[]), "at least one point"),
    "outside": (partial(viz.save_spectra, points=[(37, 0)]), r"inside 37×53 pixels, got \(37, 0\)"),
    "below": (partial(viz.save_spectra, points=[(1, -1)]), r"got \(1, -1\)"),
    "triple": (partial(viz.save_spectra, points=[(1, 2, 3)]), "give two numbers"),
    "words": (partial(viz.save_spectra, points=[("a", "b")]), "give two numbers"),
    "between": (partial(viz.save_spectra, points=[(36.5, 0)]), r"got \(36.5, 0\)"),
    "no number": (partial(viz.save_spectra, points=[(float("nan"), 0)]), r"got \(nan, 0\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_left(case, cube, wavelengths, tmp_path):
    save, message = BAD[case]
    with pytest.raises(ValueError, match=message) as error:
        save(tmp_path / "a.png", cube, wavelengths)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


METRICS = {"gap_tv": {"psnr": 24.1, "ssim": 0.7}, "net": {"psnr": None}}


def _files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("bands", [1, 28])
@pytest.mark.parametrize("known", [True, False])
def test_a_comparison_is_written_as_png_and_pdf(bands, known, cube, wavelengths, tmp_path):
    truth = cube[:bands]
    cubes = {"gap_tv": 0.9 * truth, "net": torch.from_numpy(0.8 * truth)}
    nm = wavelengths[:bands] if known else None
    figures.save_comparison(tmp_path, "a", cubes, truth if known else None, nm, METRICS)
    assert _files(tmp_path) == ["a.pdf", "a.png"]
    assert _read(tmp_path / "a.png").std() > 0.02
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 3, 90), (2, 90, 3), (2, 500, 420)])
def test_a_comparison_takes_extreme_shapes_and_black(shape, tmp_path):
    black = np.zeros(shape)
    figures.save_comparison(tmp_path, "a", {"$x_": black, "_y": black}, black, [500.0, 600.0], {})
    assert _files(tmp_path) == ["a.pdf", "a.png"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../a"}, "file name without a folder"),
        ({"cubes": {}}, "at least one method"),
        ({"cubes": {"a": np.zeros((3, 4, 5)), "b": np.zeros((3, 5, 4))}}, "of b"),
        ({"truth": np.zeros((3, 5, 4))}, "truth of the scene's shape"),
        ({"wavelengths": [500.0]}, "3 wavelengths"),
        ({"cubes": {"a": np.full((3, 4, 5), np.nan)}}, "cube of a"),
    ],
)
def test_a_comparison_says_what_does_not_fit(change, words, tmp_path):
    given = {"name": "a", "cubes": {"a": np.zeros((3, 4, 5))}, "truth": None, "wavelengths": None}
    with pytest.raises(ValueError, match=words):
        figures.save_comparison(tmp_path, metrics={}, **(given | change))
    assert _files(tmp_path) == []


@pytest.mark.parametrize(
    "layout",
    [
        figures.Layout(zoom="auto"),
        figures.Layout([460, 610.2], (0, 0, 20), [(1, 2)]),
        pytest.param(figures.Layout(zoom=(0, 0, 37)), marks=pytest.mark.release),
    ],
)
def test_a_comparison_shows_what_its_layout_says(layout, cube, wavelengths, tmp_path):
    chosen = layout.choose(cube, wavelengths)
    assert len(chosen.bands) == len(layout.bands or range(4))
    assert len(chosen.regions) == len(layout.regions or range(4))
    figures.save_comparison(tmp_path, "a", {"b": cube}, cube, wavelengths, {}, layout=layout)
    assert _files(tmp_path) == ["a.pdf", "a.png"]
    # Each picture of a column has the frame of the square, and that of its enlargement.
    yellow = np.abs(_read(tmp_path / "a.png") - (1.0, 224 / 255, 0.0)).max(-1) < 0.02
    figures.save_comparison(tmp_path, "b", {"b": cube}, cube, wavelengths, {})
    none = np.abs(_read(tmp_path / "b.png") - (1.0, 224 / 255, 0.0)).max(-1) < 0.02
    assert yellow.sum() > 2 * len(chosen.bands) * 50 > 50 > none.sum()


def test_a_square_of_most_detail_holds_it():
    cube = np.zeros((3, 40, 60))
    cube[:, 20:24, 41:45] = np.indices((4, 4)).sum(0) % 2
    row, column, side = figures.most_detail(cube, 8)
    assert row <= 19
    assert column <= 40
    assert row + side >= 24
    assert column + side >= 45


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (figures.Layout([460, 900]), "figure.bands: expected nm from"),
        (figures.Layout([]), "figure.bands: expected nm from"),
        (figures.Layout(zoom=(0, 40, 20)), r"inside of 37×53 pixels, got \[0, 40, 20\]"),
        (figures.Layout(regions=[(1, 2), (37, 0)]), "figure.regions: expected"),
    ],
)
def test_a_layout_outside_of_the_scene_is_refused(layout, words, cube, wavelengths, tmp_path):
    with pytest.raises(ValueError, match=words):
        figures.save_comparison(tmp_path, "a", {"b": cube}, cube, wavelengths, {}, layout=layout)
    assert _files(tmp_path) == []


def test_convergence_draws_curves_and_dots_and_leaves_out_what_is_not_finite(tmp_path):
    curve = [(0.1 * i, 20 + i) for i in range(1, 50)] + [(6.0, float("nan"))]
    curves = {"gap_tv": curve, "_net$": [(0.3, 30.0)], "none": []}
    figures.save_curves(tmp_path, "convergence", curves, "seconds")
    assert _files(tmp_path) == ["convergence.pdf", "convergence.png"]
    assert _read(tmp_path / "convergence.png").std() > 0.02
    with pytest.raises(ValueError, match="at least one method"):
        figures.save_curves(tmp_path, "none", {"none": [(1.0, float("inf"))]}, "seconds")
