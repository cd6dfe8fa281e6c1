"""What a person does with the report, done in a headless Chromium."""

import base64
import csv
import io
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from cassi.viz.report import encode_answers, encode_scene, make_report

HOSTILE = "<b onclick=alert(1)>&amp;"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two scenes with truth and two methods, one capture with a single method, three pages."""
    folder = tmp_path_factory.mktemp("report")
    bands = np.linspace(0, 1, 6)[:, None, None]
    y, x = np.mgrid[0:40, 0:60] / 60
    truth = (0.2 + 0.6 * np.exp(-(((bands - x) / 0.4) ** 2)) * (0.5 + y)).astype(np.float32)
    cubes = {"good": truth + 0.02 * np.sin(20 * y), HOSTILE: 0.7 * truth}
    metrics = {
        "good": {"psnr": 35.0, "ssim": 0.91, "seconds": 9.0},
        HOSTILE: {"psnr": 20.0, "ssim": 0.6, "seconds": 1.5},
        "failed": {"psnr": None, "ssim": None, "seconds": None},
    }
    flipped = {method: 0.5 * cube[:, ::-1] for method, cube in cubes.items()}
    worse = {
        method: {key: v and v / 2 for key, v in row.items()} for method, row in metrics.items()
    }
    first = encode_scene("first", cubes, truth, metrics)
    second = encode_scene("second", flipped, 0.5 * truth[:, ::-1], worse)
    capture = encode_scene("capture", {"good": truth}, None, {"good": {"seconds": 1.0}})
    nm = np.linspace(450, 650, 6)
    (folder / "both.html").write_bytes(make_report([first, second], nm, title=f"Two {HOSTILE}"))
    (folder / "capture.html").write_bytes(make_report([capture], None, title="Capture"))
    half = np.broadcast_to(0.01 + 0.2 * x, truth.shape).astype(np.float32)
    sure = encode_scene("sure", {"good": truth}, truth, {"good": {"psnr": 35.0}}, {"good": half})
    (folder / "sure.html").write_bytes(make_report([sure], nm, title="Sure"))
    named = make_report([sure], nm, title="Named", errors=[2.0] * 6)
    (folder / "named.html").write_bytes(named)
    return folder


@pytest.fixture
def open_page(open_tab, folder):
    """Opens a report."""

    def open_page(name, **options):
        viewport = {"width": 1366, "height": 800}
        path, mark, method = name.partition("#")
        page = open_tab(
            (folder / path).as_uri() + mark + method, "file:", viewport=viewport, **options
        )
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        return page

    return open_page


def _picture(page, panel=1):
    return page.locator(".frame > canvas").nth(panel).evaluate("canvas => canvas.toDataURL()")


def _spectrum(page):
    return page.evaluate("document.getElementById('spectrum').data.map((d) => Array.from(d.y))")


def _column(page, number):
    return page.locator(f"#table tbody td:nth-child({number})").all_inner_texts()


def _click(page, x, y, panel=0):
    canvas = page.locator(".frame > canvas").nth(panel)
    box = canvas.bounding_box()
    canvas.click(position={"x": x * box["width"], "y": y * box["height"]})
    page.wait_for_timeout(100)


def _drag(page, first, last, panel=0):
    """Drags between two places (x, y), shares of a picture."""
    box = page.locator(".frame > canvas").nth(panel).bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (first, last)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=5)
    page.mouse.up()


def test_pictures_and_spectra_are_those_of_the_cubes_at_any_point(open_page):
    page = open_page("both.html")
    expression = "Array.from(scenes[0].cubes.get('good').spectrum(20 * 60 + 30))"
    bands = np.linspace(0, 1, 6)
    truth = 0.2 + 0.6 * np.exp(-(((bands - 0.5) / 0.4) ** 2)) * (0.5 + 20 / 60)
    np.testing.assert_allclose(
        page.evaluate(expression), truth + 0.02 * np.sin(20 * 20 / 60), atol=0.012
    )
    red, _, blue = page.evaluate(
        "[...document.querySelector('.frame > canvas').getContext('2d')"
        ".getImageData(55, 20, 1, 1).data].slice(0, 3)"
    )
    assert red > blue  # the right of the scene is bright at long wavelengths

    # Names stay text.
    assert page.locator("h1").inner_text() == f"Two {HOSTILE}"
    assert page.locator("b").count() == 0
    assert HOSTILE in " ".join(page.locator("#spectrum .legendtext").all_text_contents())

    # The pointer alone shows the spectrum under it.
    page.locator(".frame > canvas").first.hover(position={"x": 5, "y": 5})
    page.wait_for_timeout(100)
    first, marked = _spectrum(page), page.locator(".card").count()
    page.locator(".frame > canvas").first.hover(position={"x": 300, "y": 5})
    page.wait_for_timeout(100)
    assert not np.allclose(first, _spectrum(page))
    assert page.locator(".card").count() == marked

    # A click keeps the point.
    before, marked = _spectrum(page), page.locator(".card").count()
    _click(page, 0.93, 0.93)
    after = _spectrum(page)
    assert len(after) == 3  # two methods and the truth
    assert not np.allclose(before, after)
    assert page.locator(".card").count() == marked + 1
    page.locator(".card button").last.click()
    assert page.locator(".card").count() == marked

    # Nothing stands over the edge.
    for width in (1366, 800, 420):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pickers_views_and_bands_change_the_pictures(open_page):
    page = open_page("both.html")
    color = _picture(page)
    page.locator("#band").fill("1")
    second = _picture(page)
    assert second != color
    assert "490 nm" in page.locator("#band-name").inner_text()
    page.locator("body").press("ArrowRight")
    page.locator("body").press("ArrowRight")
    assert "570 nm" in page.locator("#band-name").inner_text()
    assert _picture(page) != second

    # The difference has one scale for all methods.
    page.click("#view [data-key=difference]")
    scale, good = page.locator("#scale").inner_text(), _picture(page)
    page.locator(".panel select").nth(1).select_option(HOSTILE)
    assert page.locator("#scale").inner_text() == scale
    assert _picture(page) != good
    page.click("#view [data-key=rms]")
    assert "mean over bands" in page.locator("#scale").inner_text()

    page.click("#view [data-key=band]")
    page.locator(".panel select").nth(1).select_option("good")
    first, spectrum = _picture(page), _spectrum(page)
    page.locator(".panel select").nth(1).select_option(HOSTILE)
    other = _picture(page)
    assert other != first
    page.locator("#scene").select_option(label="second")
    page.wait_for_timeout(300)
    assert _picture(page) not in (first, other)
    assert not np.allclose(spectrum, _spectrum(page))
    assert page.locator(".panel select").nth(1).input_value() == HOSTILE


def test_the_table_sorts_and_leads_to_the_worst_scene(open_page):
    page = open_page("both.html")
    assert "PSNR and SSIM as preset" in page.locator("#notes").inner_text()
    assert [text.strip() for text in _column(page, 2)] == ["26.25", "15.00", "–"]
    page.click("#table th[data-key=seconds] button")
    assert [text.strip() for text in _column(page, 4)] == ["1.13", "6.75", "–"]
    page.click("#table th[data-key=seconds] button")
    assert [text.strip() for text in _column(page, 4)] == ["6.75", "1.13", "–"]
    page.click("#table th[data-key=method] button")
    assert _column(page, 1)[-1] == "good"
    page.click("#rows [data-key=every]")
    assert len(_column(page, 1)) == 6
    page.click("#table th[data-key=psnr] button")
    assert [text.strip() for text in _column(page, 3)][:2] == ["35.00", "20.00"]
    page.locator("#table tbody tr", has_text="second").first.click()
    page.wait_for_timeout(300)
    assert page.locator("#scene").input_value() == "1"

    # The worst scene of the best method is two clicks away.
    assert page.locator("#rows button").nth(1).inner_text() == "Scenes of good"
    page.click("#rows [data-key=own]")
    assert _column(page, 2) == ["good", "good"]
    page.click("#table th[data-key=psnr] button")
    assert _column(page, 1) == ["second", "first"]
    page.locator("#table tbody tr").first.click()
    page.wait_for_timeout(800)
    assert page.locator("#scene").input_value() == "1"
    assert page.locator("#viewer").bounding_box()["y"] >= -1  # brought into sight
    page.locator(".panel select").nth(1).select_option(HOSTILE)
    assert page.locator("#rows button").nth(1).inner_text() == f"Scenes of {HOSTILE}"
    assert _column(page, 2) == [HOSTILE, HOSTILE]


def test_marks_are_made_by_clicks_and_by_dragging(open_page):
    page = open_page("both.html")
    names = page.locator(".card p").first.inner_text()
    assert HOSTILE in names
    # A hidden curve stays hidden.
    page.locator("#spectrum .legendtoggle").nth(1).click()
    page.wait_for_timeout(700)  # plotly waits for a double click
    shown = "document.getElementById('spectrum').data.map((d) => d.visible)"
    assert page.evaluate(shown) == [True, "legendonly", True]
    _click(page, 0.9, 0.9)
    page.locator("#scene").select_option(label="second")
    page.wait_for_timeout(300)
    assert page.evaluate(shown) == [True, "legendonly", True]
    assert HOSTILE not in page.locator(".card p").first.inner_text()
    page.locator("#spectrum .legendtoggle").nth(1).click()
    page.wait_for_timeout(700)
    assert page.evaluate(shown) == [True, True, True]

    # Rectangles and outlines are dragged.
    page.get_by_role("button", name="Remove marks").click()
    _drag(page, (0.51, 0.51), (0.74, 0.99))
    assert "rows 20–39, columns 30–44" in page.locator(".card h3").first.inner_text()
    page.get_by_role("button", name="Outline").click()
    _drag(page, (0.1, 0.1), (0.6, 0.6), panel=1)  # there and back encloses nothing
    assert page.locator(".card").count() == 1
    triangle = "inside(scenes[0], [[0, 0], [0, 7.9], [7.9, 0]]).pixels"
    row, column = np.mgrid[0:8, 0:8]
    want = (60 * row + column)[row + column + 1 < 7.9]
    assert page.evaluate(triangle) == want.tolist()
    page.get_by_role("button", name="One cube, all marks").click()
    names = page.evaluate("document.getElementById('spectrum').data.map((d) => d.name)")
    assert names[:2] == ["1: rows 20–39, columns 30–44", "1: truth"]

    # Pictures are enlarged and moved together.
    page.get_by_role("button", name="Larger").click()
    page.get_by_role("button", name="Move", exact=True).click()
    _drag(page, (0.5, 0.5), (2, 2))  # the canvas is twice as large as its frame
    styles = page.locator(".frame > canvas").evaluate_all(
        "all => all.map((c) => c.style.transform)"
    )
    assert styles == 2 * ["scale(2) translate(0%, 0%)"]
    _click(page, 0.26, 0.26)
    assert "row 10, column 15" in page.locator(".card h3").last.inner_text()
    page.get_by_role("button", name="Whole picture").click()
    assert page.evaluate("state.zoom.scale") == 1


def test_cubes_and_bands_are_compared(open_page, tmp_path):
    page = open_page("both.html")
    page.click("#view [data-key=ratio]")
    page.locator("#other").select_option(label="good")
    page.locator("#second").select_option(label="450 nm")
    assert "(x at 570 nm) / (good at 450 nm)" in page.locator("#scale").inner_text()
    value = "comparison().picture(TRUTH)[20 * 60 + 5]"
    truth, good = (f"scenes[0].cubes.get({key})" for key in ("TRUTH", "'good'"))
    spectra = f"[{truth}.spectrum(1205)[3], {good}.spectrum(1205)[0]]"
    x, o = page.evaluate(spectra)
    assert page.evaluate(value) == pytest.approx(x / o, rel=1e-4)
    page.click("#view [data-key=index]")
    assert page.evaluate(value) == pytest.approx((x - o) / (x + o), rel=1e-3, abs=1e-5)
    page.click("#view [data-key=difference]")
    assert page.evaluate(value) == pytest.approx(x - o, rel=1e-3, abs=1e-5)
    page.locator("#other").select_option(label="itself")
    page.locator("#second").select_option(label="the same band")
    assert page.evaluate("comparison().partner('good')") is None
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the left picture").click()
    download.value.save_as(tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").size == (60, 40)

    # The left picture slides over the right.
    page.click("#view [data-key=band]")

    def pixels(panel):
        png = base64.b64decode(_picture(page, panel).partition(",")[2])
        return np.asarray(Image.open(io.BytesIO(png)))

    left, right = pixels(0), pixels(1)
    assert (left != right).any()
    page.locator("#wipe input").fill("50")
    assert (pixels(1)[:, :30] == left[:, :30]).all()
    assert (pixels(1)[:, 30:] == right[:, 30:]).all()

    with page.expect_download() as download:
        page.get_by_role("button", name="Save curves as SVG").click()
    assert download.value.suggested_filename.endswith(".svg")
    download.value.save_as(tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.startswith("<svg")
    assert "wavelength / nm" in text


@pytest.mark.parametrize("view", ["ratio", "difference", "index"])
def test_comparisons_are_white_where_cubes_are_equal(view, open_page, folder, tmp_path):
    truth = np.full((2, 40, 60), 0.4, np.float32)
    cube = truth.copy()
    cube[:, :, :20] /= 2
    cube[:, :, 40:] *= 2
    scene = encode_scene("thirds", {"good": cube}, truth, {})
    (folder / "thirds.html").write_bytes(make_report([scene], None, title="Thirds", unit="lux"))
    page = open_page("thirds.html")
    page.click(f"#view [data-key={view}]")
    low, high = page.evaluate("comparison().range")
    place = page.evaluate(f"[0.5, 1, 2].map(onScale('{view}'))")
    if view == "ratio":
        assert low * high == pytest.approx(1)
        assert place[0] == pytest.approx(-place[2])
        assert high == pytest.approx(2, rel=0.05)
    else:
        assert low == -high
        assert place == [0.5, 1, 2]
    reading = "canvas => [...canvas.getContext('2d').getImageData(0, 20, 60, 1).data]"
    row = page.locator(".frame > canvas").nth(1).evaluate(reading)
    dimmer, equal, brighter = (row[4 * at : 4 * at + 4] for at in (10, 30, 50))
    assert dimmer[2] > 1.2 * dimmer[0]  # blue
    assert min(equal) > 235  # white
    assert brighter[0] > 1.2 * brighter[2]  # red
    assert "white: " in page.locator("#scale").inner_text()
    assert ("lux" in page.locator("#scale").inner_text()) == (view == "difference")

    # A saved picture has the scale below it.
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the right picture").click()
    download.value.save_as(tmp_path / "p.png")
    saved = np.asarray(Image.open(tmp_path / "p.png").convert("RGBA"))
    assert saved[20, [10, 30, 50]].tolist() == [dimmer, equal, brighter]
    colors = saved[54].astype(int)
    assert (colors[:, 2] - colors[:, 0]).max() > 100
    assert (colors[:, 0] - colors[:, 2]).max() > 100


def test_a_capture_without_truth_wavelengths_and_bars(open_page):
    page = open_page("capture.html", color_scheme="dark")
    assert page.locator("#view button").all_inner_texts() == [
        *("Colour", "Band", "Difference", "Ratio", "Index")
    ]
    assert page.locator(".panel:visible").count() == 1
    assert page.locator("#rows, #scene").locator("visible=true").count() == 0
    assert "band 4 of 6" in page.locator("#band-name").inner_text()
    before = _picture(page, 0)
    page.locator("body").press("ArrowLeft")
    assert _picture(page, 0) != before
    assert len(_spectrum(page)) == 1
    assert page.locator("#surer").is_hidden()
    assert "PSNR" not in page.locator("#notes").inner_text()
    assert page.locator("#shaded").inner_text() == ""


def test_unsure_pixels_are_hidden_and_a_region_has_mean_and_spread(open_page, tmp_path):
    page = open_page("sure.html")
    traces = page.evaluate("document.getElementById('spectrum').data.map((d) => d.fill ?? '')")
    assert traces == ["", "", "toself"]
    assert page.locator("#shaded").inner_text() == "Shaded around a point: the 90 % interval."
    page.get_by_role("button", name="Uncertainty").click()
    heat = _picture(page)
    page.get_by_role("button", name="Band", exact=True).click()
    everything = _picture(page)
    assert heat != everything
    page.locator("#surer input").fill("70")
    assert "surer than" in page.locator("#surer span").inner_text()
    row = page.evaluate(
        "[...document.querySelectorAll('.frame > canvas')[1]"
        ".getContext('2d').getImageData(0, 20, 60, 1).data]"
    )
    grey = [row[4 * at : 4 * at + 3] == [112, 112, 128] for at in (2, 57)]
    assert grey == [False, True]
    page.locator("#surer input").fill("100")
    assert _picture(page) == everything

    # Mean and spread of the pixels of a region.
    page.get_by_role("button", name="Remove marks").click()
    for name, value in (("Row", 30), ("Column", 50), ("Rows", 99), ("Columns", 99)):
        page.get_by_role("spinbutton", name=name, exact=True).fill(str(value))
    page.get_by_role("button", name="Add region").click()
    assert "rows 30–39, columns 50–59" in page.locator(".card h3").inner_text()
    assert "the standard deviation of its pixels" in page.locator("#shaded").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save spectra").click()
    download.value.save_as(tmp_path / "s.csv")
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert [(row["cube"], row["pixels"]) for row in rows] == 6 * [("truth", "100")] + 6 * [
        ("good", "100")
    ]
    y, x = np.mgrid[30:40, 50:60] / 60
    for row, band in zip(rows[6:], np.linspace(0, 1, 6), strict=True):
        part = 0.2 + 0.6 * np.exp(-(((band - x) / 0.4) ** 2)) * (0.5 + y)
        assert float(row["wavelength_nm"]) == 450 + 200 * band
        assert float(row["mean"]) == pytest.approx(part.mean(), abs=0.01)
        assert float(row["spread"]) == pytest.approx(part.std(), abs=0.01)
        assert float(row["error"]) == pytest.approx((0.01 + 0.2 * x).mean(), abs=0.01)
    page.get_by_role("spinbutton", name="Row", exact=True).fill("40")
    page.get_by_role("button", name="Add region").click()
    assert "no pixel" in page.locator("#said").inner_text()
    assert page.locator(".card").count() == 1


def test_reference_spectra_are_drawn_beside_the_cubes(open_page, tmp_path):
    page = open_page("sure.html")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save spectra").click()
    download.value.save_as(tmp_path / "saved.csv")
    (tmp_path / "leaf.csv").write_text("nm;green leaf;red leaf\n440;0,1;0,2\n660;0,5;0,4\n")
    (tmp_path / "broken.csv").write_text("no spectrum\n")
    field = page.locator("input[type=file]")
    said = page.locator("#said")
    field.set_input_files([tmp_path / "leaf.csv"])
    said.get_by_text("2 reference spectra").wait_for()
    names = "document.querySelector('#spectrum').data.map(({ name }) => name)"
    assert any(str(name).startswith("green leaf ×") for name in page.evaluate(names))
    drawn = "document.querySelector('#spectrum').data.find(({ name }) => name?.startsWith('red'))"
    assert page.evaluate(f"{drawn}.x") == [450, 650]  # as far as the cube reaches
    field.set_input_files([tmp_path / "saved.csv"])
    said.get_by_text("8 reference spectra").wait_for()
    field.set_input_files([tmp_path / "broken.csv"])
    said.get_by_text("expected nm and a spectrum").wait_for()


def test_bands_are_named_with_the_errors_of_their_wavelengths(open_page):
    page = open_page("named.html")
    assert "570 ± 2 nm (4 of 6)" in page.locator("#band-name").inner_text()
    box = page.locator("#spectrum .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    page.locator("#spectrum .hoverlayer").get_by_text("at 530 ± 2 nm").first.wait_for()


def test_where_it_is_dark_a_ratio_is_none(open_page, folder):
    cube = np.ones((2, 40, 60), np.float32)
    cube[0, :, :30] = 0
    scene = encode_scene("dark", {"good": cube}, None, {})
    (folder / "dark.html").write_bytes(make_report([scene], None, title="Dark"))
    page = open_page("dark.html")
    reading = "canvas => [...canvas.getContext('2d').getImageData(3, 3, 1, 1).data]"
    for kind in ("index", "ratio"):
        page.click(f"#view [data-key={kind}]")
        value = page.evaluate("comparison().picture('good')[3]")
        assert np.isnan(value) == (kind == "ratio")  # the other band is bright there
    assert page.locator(".frame > canvas").first.evaluate(reading) == [128, 128, 128, 255]


def test_an_address_names_the_method_that_is_shown(open_page):
    page = open_page(f"both.html#{quote(HOSTILE)}")
    assert page.locator(".panel select").nth(1).input_value() == HOSTILE


def test_answers_have_maps_with_intervals_and_a_table(open_page, folder):
    x = np.mgrid[0:40, 0:60][1] / 100
    ends = np.array([0.01, 0.06])[:, None, None]
    hidden = x < 0.1
    about = {"labels": (), "unit": "", "reason": "the samples differ"}
    maps = SimpleNamespace(
        value=x, low=(x - ends).clip(0), high=x + ends, abstained=hidden, **about
    )
    about["labels"] = ("450 nm", "500 nm")
    numbers = SimpleNamespace(
        value=np.array([0.5, 2.0]),
        low=np.array([[0.4, 1], [0.31, 0]]),
        high=np.array([[0.6, 3], [0.69, 4]]),
        abstained=np.array([False, True]),
        **about,
    )
    scene = encode_scene("one", {"good": np.ones((6, 40, 60))}, None, {})
    answers = encode_answers({HOSTILE: maps, "patch": numbers})
    page = make_report([scene], None, title="Answers", answers=answers)
    (folder / "answers.html").write_bytes(page)
    page = open_page("answers.html")
    assert page.locator("#answers figcaption").all_inner_texts() == [HOSTILE]
    canvas, line = page.locator("#maps .frame canvas"), page.locator("#maps p")
    box = canvas.bounding_box()
    height = 20.5 / 40 * box["height"]
    canvas.hover(position={"x": 31.5 / 60 * box["width"], "y": height})
    assert line.inner_text() == "0.310, 90 %: 0.250 to 0.370 (row 20, column 31)"
    canvas.hover(position={"x": 4.5 / 60 * box["width"], "y": height})
    assert line.inner_text() == "no answer (row 20, column 4): the samples differ"
    pixels = canvas.evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 9, 480, 1).data]"
    )
    red, _, blue, _ = np.reshape(pixels, (-1, 4)).T
    assert (red[:80] == blue[:80]).all()  # stripes
    assert red[470] > blue[470] + 100  # viridis ends with yellow
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.locator("#shown-part button").last.click()
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    assert [row.split("\t") for row in page.locator("#answers tbody tr").all_inner_texts()] == [
        ["patch", "450 nm", "0.50", "0.40 to 0.60", "0.31 to 0.69"],
        ["patch", "500 nm", "no answer", "the samples differ", ""],
    ]
    assert open_page("capture.html").locator("#answers").is_hidden()
