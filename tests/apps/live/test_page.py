"""The page of cassi-live in a headless Chromium."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import cassi
from cassi.data.bundled import bundled_path

pytest.importorskip("panel", reason="needs panel")
HARMLESS = ("log: ", "info: ", "debug: ", "could not set initial ranges", "Failed to load resource")
HARMLESS += ("WebSocket connection to",)  # it tries once more when the command has ended


@pytest.fixture
def served(tmp_path):
    """A running command: its process, its address, its folder, and what takes a snapshot."""
    cube = cassi.read_cube(bundled_path("scene.tif")).float()[..., :96, :80]
    bands, height, width = cube.shape[1:]
    mask = (torch.rand(height, width, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    camera = cassi.SDCassi(mask, bands=bands, step=1)
    np.save(tmp_path / "mask.npy", mask.numpy())
    folder = tmp_path / "in"
    folder.mkdir()

    def take(name, shift=0):
        np.save(tmp_path / "new.npy", camera(cube.roll(shift, -2))[0, 0].numpy())
        (tmp_path / "new.npy").rename(folder / f"{name}.npy")

    nm = ",".join(map(str, range(450, 450 + 5 * bands, 5)))
    words = [f"source={folder}", f"mask={tmp_path}/mask.npy", "system.step=1"]
    words += [f"wavelengths=[{nm}]", "--no-browser", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-m", "cassi", "live", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, re.search(r"http\S+", process.stdout.readline())[0], folder, take
        finally:
            process.terminate()


@pytest.mark.release
@pytest.mark.parametrize("width", [1280, 820])
def test_frames_are_shown_as_they_come(open_tab, served, width):
    process, address, folder, take = served
    size = {"width": width, "height": 1200}
    page = open_tab(address, "http://127.0.0.1:", harmless=HARMLESS, viewport=size)
    page.set_default_timeout(60_000)
    page.get_by_text("waits for the first frame").wait_for()
    take("one")
    page.get_by_text("1 done, 0 dropped, 0 broken").wait_for()
    page.get_by_text("Spectra of 3 regions").wait_for()
    page.get_by_text(re.compile(r"^[1-9] s ago")).wait_for()  # it grows old
    (folder / "two.npy").write_bytes(b"broken")
    page.get_by_text("skipped two").first.wait_for()
    take("three", 1)
    page.get_by_text("2 done, 0 dropped, 1 broken").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width

    # A click sets a region, another removes it; an arrow key changes the band.
    regions = page.get_by_role("textbox", name="Regions: row, column; row, column")
    box = page.locator(".bk-Figure").first.bounding_box()
    for count in (4, 3):
        page.mouse.click(box["x"] + 250, box["y"] + 250)
        page.get_by_text(f"Spectra of {count} regions").wait_for()
        assert len(regions.input_value().split(";")) == count
        page.wait_for_timeout(600)  # two clicks are no double one
    before = page.get_by_text(re.compile("Band: .* nm")).inner_text()
    page.get_by_role("slider", name="Band").press("ArrowRight")
    page.wait_for_function("before => !document.body.innerText.includes(before)", arg=before)

    # A pause takes nothing; what came meanwhile is taken afterwards.
    page.get_by_role("button", name="Pause").press("Enter")
    page.get_by_text("paused", exact=True).wait_for()
    take("four", 2)
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("3 done, 0 dropped, 1 broken").wait_for()

    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = axe.run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []
        if path := os.environ.get("CASSI_SCREENSHOT"):
            page.screenshot(path=f"{path}-{width}-{scheme}.png", full_page=True)

    # What ends the thread, and then the command, is said.
    folder.rename(folder.with_name("away"))
    page.get_by_text("stopped: ").first.wait_for()
    assert page.get_by_role("button", name="Pause").is_disabled()
    process.terminate()
    page.get_by_text("cassi-live has ended").wait_for()
