"""Take the pictures of docs/guides/view.md: cassi-view in a headless Chromium.

python -m scripts.docs.view
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "gallery"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def open_command(name: str, *words: str) -> Iterator[tuple[Any, float]]:
    """Start a command that shows a page; yield the page in a browser, and when it started."""
    from playwright.sync_api import sync_playwright

    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    if browser is None:
        raise SystemExit(f"error: none of {', '.join(NAMES)} is installed")
    with sync_playwright() as play:
        options = ["--no-sandbox", "--disable-gpu"]
        chromium = play.chromium.launch(executable_path=browser, args=options)
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        start = time.perf_counter()
        command = [sys.executable, "-m", "cassi", name, *words, "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http\S+", process.stdout.readline())
                assert found is not None
                page.goto(found[0])
                yield page, start
            finally:
                process.terminate()
                chromium.close()


@contextmanager
def open_page(folder: Path) -> Iterator[tuple[Any, float, float]]:
    """Start the command on a folder; yield its page in a browser.

    Also the seconds to the first page, whose widgets are still to be drawn, and to the application.
    """
    words = str(folder), "--output", str(folder / "results")
    with open_command("view", *words) as (page, start):
        first = time.perf_counter() - start
        page.get_by_role("button", name="Take the example").wait_for()
        yield page, first, time.perf_counter() - start


def show_bands(page: Any) -> Any:
    """Wait for the report on a page, choose its view of single bands, and return its frame."""
    report = page.frame_locator("iframe[title=Report]")
    report.locator("body[data-ready]").wait_for()
    page.locator("iframe").scroll_into_view_if_needed()  # frames out of sight draw nothing
    report.get_by_role("button", name="Band", exact=True).click()
    return report


def main() -> None:
    """Go the way of the guide, and keep two pictures of it."""
    with tempfile.TemporaryDirectory() as name, open_page(Path(name)) as (page, *_):
        page.get_by_role("button", name="Take the example").click()
        page.get_by_text("28 bands of").wait_for()
        page.wait_for_timeout(1500)
        cut = {"width": 1280, "height": page.get_by_text("3 Reconstruct").bounding_box()["y"]}
        whole = FOLDER / "view_camera.png"
        page.screenshot(path=whole, full_page=True, clip={"x": 0, "y": 0, **cut})
        page.get_by_role("button", name="Reconstruct", exact=True).click()
        page.get_by_text("done:").wait_for()
        report = show_bands(page)
        for region in (("92", "64", "16", "16"), ("160", "96", "24", "24")):
            for label, value in zip(("Row", "Column", "Rows", "Columns"), region, strict=True):
                report.get_by_role("spinbutton", name=label, exact=True).fill(value)
            report.get_by_role("button", name="Add region").click()
        report.get_by_role("button", name="One cube, all marks").click()
        page.set_viewport_size({"width": 1280, "height": 1700})  # out of sight nothing is drawn
        page.wait_for_timeout(1500)
        page.add_style_tag(content="header { position: static !important }")  # it would lie over it
        page.locator("section[aria-label=Look]").screenshot(path=FOLDER / "view_look.png")
        print(*sorted(FOLDER.glob("view_*.png")), sep="\n")


if __name__ == "__main__":
    main()
