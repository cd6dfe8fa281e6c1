"""What a stranger does with cassi-view, done in a headless Chromium."""

import contextlib
import filecmp
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from shared import wait_until

from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstructors import compose_settings
from cassi.data.bundled import bundled_path
from cassi.data.io import read_cube, write_cube

pytest.importorskip("panel", reason="needs panel")
Error = pytest.importorskip("playwright.sync_api", reason="needs playwright").Error
SECTION = "document.querySelector('section[aria-label=Look]')"
HARMLESS = ("log: ", "info: ", "debug: ", "could not set initial ranges", "Failed to load resource")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the snapshot of the package, and nothing else."""
    folder = tmp_path_factory.mktemp("day")
    snapshot = load_snapshot(compose_settings(), torch.device("cpu"))
    write_cube(folder / "snapshot.npy", snapshot.y[0])
    return folder


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("output")


class Served:
    """The command, started: the addresses that it prints, each for one tab.

    Attributes:
        link: a file with what the browser is given; a program of ours is in place of the browser.
        printed: lines, as they come.
    """

    def __init__(self, process, link):
        self.link, self.printed, self.used = link, [], 0
        self.reader = threading.Thread(target=lambda: self.printed.extend(process.stdout))
        self.reader.start()

    def addresses(self):
        return re.findall(r"http\S+", "".join(self.printed))

    def next_address(self):
        wait_until(lambda: len(self.addresses()) > self.used, seconds=60)
        self.used = len(self.addresses())
        return self.addresses()[-1]


@pytest.fixture(scope="module")
def served(folder, output):
    program = output.parent / f"{output.name}-browser.sh"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$1" > "$0.new"\nmv "$0.new" "$0.said"\n')
    program.chmod(0o755)
    command = [sys.executable, "-m", "cassi", "view", str(folder), "--output", str(output)]
    environment = os.environ | {"BROWSER": f"{program} %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        served = Served(process, program.with_name(f"{program.name}.said"))
        try:
            yield served
        finally:
            process.terminate()
            served.reader.join()


@pytest.fixture
def open_view(open_tab, served):
    """Opens a tab of the running command."""

    def open_view():
        page = open_tab(
            *(served.next_address(), "http://127.0.0.1:"),
            harmless=HARMLESS,
            viewport={"width": 1240, "height": 900},
        )
        page.set_default_timeout(40_000)
        page.get_by_role("button", name="Take the example").wait_for(timeout=120_000)
        return page

    return open_view


def _field(page, name):
    return page.get_by_role("textbox", name=name, exact=True)


def _fill(page, name, value):
    _field(page, name).fill(value)
    _field(page, name).press("Enter")


def _see(page, words):
    page.get_by_text(words).first.wait_for()


def _report(page):
    """The report in its frame, drawn and in sight: out of sight nothing is."""
    report = page.frame_locator("iframe[title=Report]")
    report.locator("body[data-ready]").wait_for()
    page.locator("iframe[title=Report]").scroll_into_view_if_needed()
    return report


def _reconstruct(page, method, more):
    page.get_by_role("combobox", name="Method").select_option(method)
    _field(page, "Further settings, one a line, as on the command line").fill(more)
    page.get_by_role("button", name="Reconstruct", exact=True).click()


@pytest.mark.slow
def test_a_browser_comes_in_by_the_one_time_link(browser, served):
    """First, as the link expires."""
    wait_until(served.link.exists, seconds=60)
    link = served.link.read_text().strip()
    used = served.next_address()
    page = browser.new_page()
    page.goto(link)
    page.get_by_role("button", name="Take the example").wait_for(timeout=120_000)
    assert page.url.endswith("/")
    page.close()
    assert not Path(link.removeprefix("file://")).exists()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(used)


@pytest.mark.slow
def test_another_server_of_this_machine_gets_no_cookie_and_no_frame(browser, served):
    """Browsers send cookies to all ports of a host."""
    context, asked = browser.new_context(), []
    page = context.new_page()
    page.goto(served.next_address())
    page.get_by_role("button", name="Take the example").wait_for(timeout=120_000)
    address = page.url

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<iframe src="{address}"></iframe>'.encode())

        def log_message(self, *args):
            pass

    (cookie,) = context.cookies()
    assert address.endswith(f":{urlsplit(address).port}{cookie['path']}")
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever).start()
        other = context.new_page()
        other.goto(f"http://127.0.0.1:{stranger.server_port}/")
        frame = other.frames[1]
        assert frame.get_by_role("button").count() == 0
        assert frame.url.startswith("chrome-error:")
        other.goto(f"http://127.0.0.1:{stranger.server_port}/report/guess")
        context.close()
        stranger.shutdown()
    assert asked
    assert [headers["Cookie"] for headers in asked if "Cookie" in headers] == []


@pytest.mark.slow
def test_sections_fold_away_and_empty_ones_are_no_cards(open_view):
    page = open_view()
    assert not page.locator("section[aria-label=Look]").is_visible()
    example = page.get_by_role("button", name="Take the example")
    page.get_by_role("button", name="Fold Files").press("Enter")
    assert page.evaluate("document.querySelector('section[aria-label=Files] > div').inert")
    assert page.locator("section[aria-label=Files]").bounding_box()["height"] < 70
    page.get_by_role("button", name="Show Files").press("Enter")
    example.click()
    _see(page, "28 bands of 256 × 256 pixels")


@pytest.mark.slow
def test_a_run_comes_into_sight_and_is_not_lost(open_view, output):
    page = open_view()
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.get_by_role("button", name="Take the example").click()
    _see(page, "28 bands of 256 × 256 pixels")
    _reconstruct(page, "gap_tv: of the literature", "solver.iterations=3\noutput.report=false")
    _see(page, "not saved yet: scene, gap_tv")
    report = _report(page)
    page.wait_for_function(f"{SECTION} === document.activeElement")
    page.wait_for_function(f"{SECTION}.getBoundingClientRect().top < innerHeight / 2")
    html = report.locator("html")
    fits = "each => each.scrollHeight <= innerHeight && each.offsetHeight > innerHeight - 2"
    for width in (1280, 820):
        page.set_viewport_size({"width": width, "height": 900})
        wait_until(lambda: html.evaluate(fits), seconds=20)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with contextlib.suppress(Error):  # the navigation is called off
        page.reload(timeout=3000)
    assert asked == ["beforeunload"]
    _fill(page, "Name of the folder", "kept")
    page.get_by_role("button", name="Save", exact=True).last.click()
    _see(page, "saved in")
    page.reload()
    page.get_by_role("button", name="Take the example").wait_for()
    assert asked == ["beforeunload"]
    shutil.rmtree(output / "kept")


@pytest.mark.release
def test_a_drop_of_200_megabytes_arrives(open_view, output, tmp_path):
    large = tmp_path / "large.npy"
    values = np.lib.format.open_memmap(large, "w+", np.float32, (7000, 7200))
    values[-1] = 1
    values.flush()
    assert large.stat().st_size > 200e6
    page = open_view()
    page.locator("input[type=file]").first.set_input_files(large)
    page.get_by_text("snapshot: large.npy").wait_for(timeout=120_000)
    (kept,) = (output / "uploads").glob("*/large.npy")
    assert filecmp.cmp(large, kept, shallow=False)
    page.get_by_role("button", name="Take the example").click()  # the session goes on
    _see(page, "28 bands of 256 × 256 pixels")
    kept.unlink()


@pytest.mark.release
def test_the_path_of_a_stranger(open_view, commands, folder, output):
    page = open_view()
    assert page.url.endswith("/")  # the code does not stay in the address

    # Drop the snapshot and the mask: two files of the package, one from the folder's own.
    drops = page.locator("input[type=file]")
    drops.nth(0).set_input_files(folder / "snapshot.npy")
    _see(page, "snapshot: snapshot.npy")
    drops.nth(1).set_input_files(bundled_path("mask.tif"))
    _see(page, "28 bands of 256 × 256 pixels")

    # A wrong step is seen, and corrected.
    _fill(page, "Step, pixels per band", "1")
    _see(page, "55 bands of 256 × 256 pixels")
    _see(page, "set the step to 2")
    _fill(page, "Step, pixels per band", "2")
    _fill(page, "Wavelengths, nm", "450-650")
    _see(page, "450 to 650 nm")
    _see(page, "the frame is consistent with this camera")

    # What fails leaves a message, and the page goes on.
    _reconstruct(page, "gap_tv: of the literature", "solver.iteration=6")
    _see(page, "did you mean")
    _reconstruct(page, "gap_tv: of the literature", "scale=1e38")
    _see(page, "float32's range")
    _reconstruct(page, "gap_tv: of the literature", "solver.iterations=6\noutput.report=false")
    _see(page, "done: 6 iterations")

    # Spectra of regions, by the keyboard and by the pointer, and another band.
    report = _report(page)
    frame = page.locator("iframe[title=Report]")
    assert frame.get_attribute("sandbox") == "allow-scripts allow-downloads"
    place = page.url + frame.get_attribute("src").partition("#")[0]
    answer = page.request.get(place)
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert page.request.get(f"{page.url}report/guess").status == 404
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(place)  # the key alone opens nothing
    for name, value in (("Row", "20"), ("Column", "30"), ("Rows", "12"), ("Columns", "9")):
        report.get_by_role("spinbutton", name=name, exact=True).fill(value)
    report.get_by_role("button", name="Add region").press("Enter")
    report.get_by_text("rows 20–31, columns 30–38").first.wait_for()
    picture = report.locator(".frame > canvas").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + 80, steps=4)
    page.mouse.up()
    assert report.locator(".card").count() == 5
    assert "450 nm" not in report.locator("#band-name").inner_text()
    report.get_by_role("slider", name="Band", exact=True).press("Home")
    assert "450 nm" in report.locator("#band-name").inner_text()
    for name, suffix in (("Save spectra", "csv"), ("Save the left picture", "png")):
        with page.expect_download() as download:
            report.get_by_role("button", name=name).click()
        assert download.value.suggested_filename.endswith(suffix)

    # Save, and repeat from the saved config.
    _fill(page, "Name of the folder", "stranger")
    page.get_by_role("button", name="Save", exact=True).last.click()
    _see(page, "saved in")
    said = page.get_by_text("to repeat it:").inner_text()
    words = said.partition("cassi-reconstruct ")[2].split()
    words[-1] = f"hydra.run.dir={output / 'repeated'}"
    commands("reconstruct")(*words).ok()
    first, second = (read_cube(output / each / "cube.tif") for each in ("stranger", "repeated"))
    assert torch.equal(first, second)
    saved = {file.name for file in (output / "stranger").iterdir()}
    assert {"cube.tif", "repeat.yaml", "rgb.png"} <= saved

    # Both lie in the gallery by now, and open there; two cubes have a difference.
    opens = page.get_by_role("button", name=re.compile("Open .*repeated"))
    opens.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)  # a click at once goes to the frame, which was there before
    opens.click()
    _see(page, "is open below")
    report.get_by_role("combobox", name="Right picture").locator(
        "option", has_text="repeated"
    ).wait_for(state="attached")
    assert "repeated" in report.get_by_role("combobox", name="Right picture").input_value()
    _report(page).get_by_role("button", name="Difference", exact=True).click()
    report.get_by_text(re.compile(r"x − snapshot.* at .* nm")).wait_for()


@pytest.mark.slow
def test_two_tabs_are_apart_and_everything_has_a_name(open_view):
    first, second = open_view(), open_view()
    first.get_by_role("button", name="Take the example").click()
    _see(first, "28 bands of 256 × 256 pixels")
    assert second.get_by_text("28 bands of").count() == 0
    _reconstruct(first, "gap_tv: of the literature", "solver.iterations=3\noutput.report=false")
    _see(first, "done: 3 iterations")
    assert second.get_by_text("done:").count() == 0
    first.wait_for_timeout(1000)  # sliders are named twice a second
    named = first.locator("input:visible, select:visible, textarea:visible, button:visible")
    for control in named.all():
        snapshot = control.aria_snapshot()
        assert re.search(r'"[^"]+"', snapshot), snapshot
    for slider in first.get_by_role("slider").all():
        assert '"' in slider.aria_snapshot()
    first.get_by_role("combobox", name="Method").focus()
    for _ in range(3):
        first.keyboard.press("Tab")
    assert first.evaluate("document.activeElement !== document.body")


@pytest.mark.release
def test_nothing_is_hard_to_perceive_or_to_reach(open_view):
    """With a first cube the steps before it fold; then the rules of axe-core."""
    page = open_view()
    page.get_by_role("button", name="Take the example").click()
    _see(page, "the frame is consistent with this camera")
    _reconstruct(page, "gap_tv: of the literature", "solver.iterations=3\noutput.report=false")
    _see(page, "done: 3 iterations")
    _report(page)
    page.get_by_role("button", name="Show Camera").wait_for()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.run(page).response["violations"]
        assert [(each["impact"], each["id"], each["nodes"][0]["html"]) for each in found] == []
    page.get_by_role("navigation").get_by_role("link", name="Camera").press("Enter")
    page.get_by_role("button", name="Fold Camera").wait_for()
