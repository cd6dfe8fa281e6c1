import re
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from cassi import viz
from cassi.viz import figures
from cassi.viz.bands import _choose_bands
from cassi.viz.camera import save_camera
from cassi.viz.canvas import BODY, choose_ticks, text_width
from cassi.viz.color import encode
from cassi.viz.png import save_png

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


def _scales(figure):
    """Returns the lower end, upper end and lightest place of each colour bar, by its label."""
    scales = {}
    for axes in figure.axes:
        if (bar := getattr(axes, "_colorbar", None)) is not None:
            values = np.linspace(bar.vmin, bar.vmax, 1001)
            lightest = bar.mappable.to_rgba(values)[:, :3].min(axis=1).argmax()
            scales[axes.get_ylabel()] = (bar.vmin, bar.vmax, values[lightest])
    return scales


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


def test_bands_have_scales_and_errors_one_that_diverges_at_0(cube, wavelengths, tmp_path, pages):
    estimate = cube.copy()
    estimate[:, :, :26] *= 1.5
    estimate[:, :, 26:] *= 0.9
    viz.save_bands(tmp_path / "a.png", estimate, wavelengths, truth=cube, unit="radiance")
    viz.save_bands(tmp_path / "b.png", estimate, wavelengths)
    beside, alone = ({call.label: call.scale for call in page["scale"]} for page in pages)
    assert list(alone) == ["value in the cube"]
    assert list(beside) == ["radiance", "estimate − truth"]
    assert beside["radiance"].low == 0
    assert beside["radiance"].high == pytest.approx(np.percentile(cube, 99.5), rel=0.1)
    errors = beside["estimate − truth"]
    assert errors.low == -errors.high
    assert abs(int(errors.palette.min(axis=1).argmax()) - 127.5) <= 1  # white in the middle
    # The last picture in these colours is the scale itself.
    last = [call for call in pages[0]["image"] if call.palette is errors.palette][-2]
    error = last.palette[last.picture].astype(int)  # of the last band
    more, less = error[5, 20], error[25, 45]
    assert more[0] > more[2]  # red
    assert less[0] < less[2]  # blue


def test_a_band_has_the_colour_of_its_wavelength_and_of_its_values(
    cube, wavelengths, tmp_path, pages
):
    viz.save_bands(tmp_path / "a.png", cube, wavelengths)
    pictures = [call for call in pages[0]["image"] if call.palette is not None][:28]
    tints = 0.88 * viz.band_colors(wavelengths, 28) + 0.12
    white = np.percentile(cube, 99.5)
    for call, band, tint in zip(pictures, cube, tints, strict=True):
        linear = np.clip(band / white, 0, 1)[..., None] * tint
        expected = encode(linear.astype(np.float32)).astype(int)
        assert np.abs(call.palette[call.picture] - expected).max() <= 1


@pytest.mark.parametrize("unit", ["reflectance", None])
@pytest.mark.parametrize("bands", [1, 4, 28])
def test_uncertainty_has_a_scale_and_says_what_one_sigma_is(bands, unit, cube, tmp_path, pages):
    meaning = "one σ of every value: the truth lies within ±1.645 σ in 90 % of them"
    std, cube = 0.1 * cube[-bands:], 5 * cube[-bands:]
    viz.save_uncertainty(tmp_path / "a.png", std, cube, None, meaning, unit)
    (page,) = pages
    (call,) = page["scale"]
    assert call.label == f"σ, {unit or 'value in the cube'}"
    assert (call.scale.low, call.scale.high) == pytest.approx((0, np.percentile(std, 99.5)))
    assert [text.content for text in page["text"][:2]] == [
        meaning,
        f"99.5 % of the values of the cube are below {np.percentile(cube, 99.5):.2g}",
    ]


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_camera_is_drawn_as_the_detector_saw_it(axis, tmp_path, drawn):
    frame = np.arange(30 * 40, dtype=np.float32).reshape(30, 40)
    mask = np.random.default_rng(0).random((30, 20) if axis == -1 else (10, 40))
    spans = [(10.0 * at, 10.0 * at + mask.shape[axis]) for at in range(3)]
    save_camera(tmp_path / "camera.png", frame, mask, spans, axis)
    picture, chart = drawn[0].axes
    light, tint = picture.images
    assert np.array_equal(light.get_array(), frame)
    assert list(light.get_extent()) == [0, 40, 30, 0]
    assert np.corrcoef(tint.get_array()[..., 3].ravel(), mask.ravel())[0, 1] > 0.999
    assert list(tint.get_extent()) == ([10, 30, 30, 0] if axis == -1 else [0, 40, 20, 10])
    ends = [(bar.get_x(), bar.get_width()) for bar in chart.patches]
    if axis == -2:
        ends = [(bar.get_y(), bar.get_height()) for bar in chart.patches]
    assert [(start, start + size) for start, size in ends] == spans
    across, down = picture.get_xlabel() or chart.get_xlabel(), picture.get_ylabel()
    assert across.startswith("columns")
    assert down.startswith("rows")
    (top, bottom), (left, right) = picture.get_ylim()[::-1], picture.get_xlim()
    assert top < bottom
    assert left < right


def test_spectra_say_what_is_shaded(cube, wavelengths, tmp_path, pages):
    for bars in (None, lambda row, column: np.full(28, 0.1)):
        viz.save_spectra(tmp_path / "a.png", cube, wavelengths, bars=bars)
    without, shaded = ([text.content for text in page["text"]] for page in pages)
    assert "shaded: 90 % interval" in shaded
    assert "shaded: 90 % interval" not in without
    assert [len(page["polygon"]) for page in pages] == [0, 4 + 1]


def test_curves_are_where_the_axes_say(cube, wavelengths, tmp_path, pages):
    points = [(4, 5), (30, 40)]
    viz.save_spectra(tmp_path / "a.png", 2 * cube, wavelengths, points, truth=cube)
    (page,) = pages
    for along_x in (True, False):  # the numbers of an axis give its scale
        names = [text for text in page["text"] if re.fullmatch(r"−?[\d.]+", text.content)]
        names = [text for text in names if (getattr(text, "align", "left") == "right") != along_x]
        names = [text for text in names if not getattr(text, "bold", False)]
        numbers = [float(text.content.replace("−", "-")) for text in names]
        assert len(numbers) > 4
        fit = np.polyfit(numbers, [text.x if along_x else text.y for text in names], 1)
        curves = [call.points for call in page["line"] if len(call.points) == 28]
        assert len(curves) == 4
        for index, curve in enumerate(curves):
            row, column = points[index // 2]
            spectrum = viz.points.region_spectrum(cube, row, column) * (1 + index % 2)
            expected = np.polyval(fit, wavelengths if along_x else spectrum)
            np.testing.assert_allclose(curve[:, 0 if along_x else 1], expected, atol=0.1)


def test_bands_say_how_sure_their_wavelengths_are(cube, wavelengths, tmp_path, pages):
    errors, narrow = [0.2] * 28, cube[:, :, :9]
    viz.save_bands(tmp_path / "a.png", narrow, wavelengths, errors=errors)
    viz.save_uncertainty(tmp_path / "b.png", narrow, narrow, wavelengths, "one σ", errors=errors)
    for page in pages:
        names = [text for text in page["text"] if text.content.endswith("± 0.2 nm")]
        assert len(names) == 28
        assert names[0].content == "453.5 ± 0.2 nm"
        widths = [text_width(text.content, BODY) for text in names[:2]]
        assert names[1].x - names[0].x > sum(widths) / 2  # though the pictures are narrow


def test_a_cube_along_the_dispersion_is_drawn_as_dots_in_the_unit_of_the_bands(tmp_path, pages):
    nm = [450.0, 460.0, 480.0, 520.0]
    fine = np.linspace(440, 530, 31)
    light = np.array([10.0, 15.0, 30.0, 40.0])[:, None, None] * np.ones((4, 8, 8))  # 1 per nm
    along = 3.0 * np.ones((31, 8, 8)), fine.tolist()
    viz.save_spectra(tmp_path / "a.png", light, nm, [[2, 3], [5, 5]], along=along)
    (page,) = pages
    dots = [call for call in page["disc"] if call.radius < 3]
    curve = next(call.points for call in page["line"] if len(call.points) == 4)
    of_x = np.polyfit(nm, curve[:, 0], 1)
    of_y = np.polyfit(light[:, 0, 0], curve[:, 1], 1)
    places = np.interp(fine, nm, light[:, 0, 0])
    expected = np.stack([np.polyval(of_x, fine), np.polyval(of_y, places)], axis=1)
    for color in viz.points.COLORS[:2]:
        drawn = [(call.x, call.y) for call in dots if call.color == color]
        np.testing.assert_allclose(drawn, expected, atol=1e-6)
    assert "along the dispersion" in [text.content for text in page["text"]]


@pytest.mark.parametrize("scale", [1e-12, 3e-6, 0.004, 1.0, 7e4, 3e9])
def test_numbers_of_a_scale_are_few_short_and_true(scale):
    for low, high in ((0, 1), (-1, 1), (-0.2, 3.7), (0.03, 0.031)):
        ticks, names, label = choose_ticks(scale * low, scale * high, 8, "value")
        assert 3 <= len(ticks) <= 9
        assert low - 1e-9 <= ticks[0] / scale < ticks[-1] / scale <= high + 1e-9
        power = 1.0
        if label != "value":
            digits = re.fullmatch(r"value \(×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)\)", label)[1]
            power = 10.0 ** int(digits.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
        assert max(map(len, names)) <= 7
        numbers = [power * float(name.replace("−", "-")) for name in names]
        np.testing.assert_allclose(numbers, ticks, atol=1e-9 * scale)


def test_a_png_has_the_pixels(tmp_path):
    generator = np.random.default_rng(0)
    for shape in ((1, 1, 3), (37, 53, 3), (5, 300, 3)):
        picture = generator.integers(0, 256, shape).astype(np.uint8)
        picture[: shape[0] // 2] //= 64
        save_png(tmp_path / "a.png", picture)
        np.testing.assert_array_equal(np.rint(255 * _read(tmp_path / "a.png")), picture)


def test_pictures_of_a_cube_need_no_matplotlib(cube, wavelengths, tmp_path):
    np.save(tmp_path / "cube.npy", cube)
    code = f"""
import sys
import numpy as np
from cassi import viz
cube = np.load("cube.npy")
viz.save_rgb("rgb.png", cube, {wavelengths}, cube)
viz.save_bands("bands.png", cube, {wavelengths}, cube)
viz.save_spectra("spectra.png", cube, {wavelengths}, truth=cube)
viz.save_uncertainty("uncertainty.png", cube, cube, {wavelengths}, "one σ")
viz.save_answer("answer.png", "a", cube[0], cube[0], cube[0] < 0)
assert "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


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
def test_a_comparison_is_written_as_png_and_pdf(bands, known, cube, wavelengths, tmp_path, drawn):
    truth = cube[:bands]
    cubes = {"gap_tv": 0.9 * truth, "net": torch.from_numpy(0.8 * truth)}
    nm = wavelengths[:bands] if known else None
    figures.save_comparison(tmp_path, "a", cubes, truth if known else None, nm, METRICS)
    assert _files(tmp_path) == ["a.pdf", "a.png"]
    assert _read(tmp_path / "a.png").std() > 0.02
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    scales, titles = _scales(drawn[0]), [axes.get_title() for axes in drawn[0].axes]
    assert list(scales) == ["√ mean over bands of\n(x − truth)²"] * known
    assert ("truth\nPSNR / SSIM" in titles) == known


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
        ({"layout": figures.Layout([460, 900])}, "figure.bands: expected nm from"),
        ({"layout": figures.Layout([])}, "figure.bands: expected nm from"),
        ({"layout": figures.Layout(zoom=(0, 2, 4))}, r"inside of 4×5 pixels, got \[0, 2, 4\]"),
        ({"layout": figures.Layout(regions=[(1, 2), (4, 0)])}, "figure.regions: expected"),
    ],
)
def test_a_comparison_says_what_does_not_fit(change, words, tmp_path):
    given = {"name": "a", "cubes": {"a": np.zeros((3, 4, 5))}, "truth": None}
    given |= {"wavelengths": [450.0, 500.0, 550.0], **change}
    with pytest.raises(ValueError, match=words):
        figures.save_comparison(tmp_path, metrics={}, **given)
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
    row, column, side = figures.find_most_detail(cube, 8)
    assert row <= 19
    assert column <= 40
    assert row + side >= 24
    assert column + side >= 45


def test_convergence_draws_curves_and_dots_and_leaves_out_what_is_not_finite(tmp_path):
    curve = [(0.1 * i, 20 + i) for i in range(1, 50)] + [(6.0, float("nan"))]
    curves = {"gap_tv": curve, "_net$": [(0.3, 30.0)], "none": []}
    figures.save_curves(tmp_path, "convergence", curves, "seconds")
    assert _files(tmp_path) == ["convergence.pdf", "convergence.png"]
    assert _read(tmp_path / "convergence.png").std() > 0.02
    with pytest.raises(ValueError, match="at least one method"):
        figures.save_curves(tmp_path, "none", {"none": [(1.0, float("inf"))]}, "seconds")
