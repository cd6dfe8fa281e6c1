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


@pytest.mark.release
def test_frames_are_shown_as_they_come(open_tab, tmp_path):
    cube = cassi.read_cube(bundled_path("scene.tif")).float()[..., :96, :80]
    bands, height, width = cube.shape[1:]
    mask = (torch.rand(height, width, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    camera = cassi.SDCassi(mask, bands=bands, step=1)
    np.save(tmp_path / "mask.npy", mask.numpy())
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "one.npy", camera(cube)[0, 0].numpy())
    words = [f"source={folder}", f"mask={tmp_path}/mask.npy", "system.step=1"]
    words += [f"system.bands={bands}", "--no-browser", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-m", "cassi", "live", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http\S+", process.stdout.readline())[0]
            size = {"width": 1300, "height": 900}
            page = open_tab(address, "http://127.0.0.1:", harmless=HARMLESS, viewport=size)
            page.set_default_timeout(60_000)
            page.get_by_text("1 done, 0 dropped, 0 broken").wait_for()
            page.get_by_role("img", name="Spectra of 3 regions").wait_for()
            (folder / "two.npy").write_bytes(b"broken")
            page.get_by_text("skipped two").first.wait_for()
            np.save(folder / "three.npy", camera(cube.roll(1, -2))[0, 0].numpy())
            page.get_by_text("2 done, 0 dropped, 1 broken").wait_for()
            field = page.get_by_role("textbox", name="Regions: row, column; row, column")
            field.fill("10, 10; 20, 30")
            field.press("Enter")
            page.get_by_role("img", name="Spectra of 2 regions").wait_for()
            if path := os.environ.get("CASSI_SCREENSHOT"):
                page.screenshot(path=path)
        finally:
            process.terminate()
