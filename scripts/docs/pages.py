"""Take the screenshots of cassi-view and cassi-live, in a headless Chromium, and time cassi-view.

    python -m scripts.docs.pages view     # the pictures of docs/guides/view.md
    python -m scripts.docs.pages live     # the picture of docs/guides/live.md; needs $CASSI_DATA
    python -m scripts.docs.pages time     # the times in docs/guides/view.md, with 28×660×660 values

The time of a change of the band ends when the report has drawn another picture.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.results import write_json
from cassi.data.io import write_cube
from scripts.benchmarks.spectral_video import STEP, WAVELENGTHS, first_sequence

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "gallery"
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Number of frames after which the screenshot of cassi-live is taken.
FRAMES = 8
# JavaScript that returns the picture that the report has drawn last.
LAST_PICTURE = "() => document.querySelector('.frame > canvas').toDataURL('image/jpeg', 0.3)"


@contextmanager
def open_command(name: str, *words: str) -> Iterator[tuple[Any, float]]:
    """Start a command that serves a page; yield the page in a browser, and when it was started."""
    from playwright.sync_api import sync_playwright

    browser = next((path for path in map(shutil.which, BROWSER_NAMES) if path), None)
    if browser is None:
        raise SystemExit(f"error: none of {', '.join(BROWSER_NAMES)} is installed")
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
                address = re.search(r"http\S+", process.stdout.readline())
                assert address is not None
                page.goto(address[0])
                yield page, start
            finally:
                process.terminate()
                chromium.close()


@contextmanager
def open_view(folder: Path) -> Iterator[tuple[Any, float, float]]:
    """Start cassi-view on a folder; yield its page and two times.

    The times are the seconds until the first page, and until the application can be used.
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
    # Chromium does not draw a frame that is out of sight.
    page.locator("iframe").scroll_into_view_if_needed()
    report.get_by_role("button", name="Band", exact=True).click()
    return report


def take_view(folder: Path) -> None:
    """Take the steps of the guide to cassi-view, with two screenshots."""
    with open_view(folder) as (page, *_):
        page.get_by_role("button", name="Take the example").click()
        page.get_by_text("28 bands of").wait_for()
        page.wait_for_timeout(1500)
        cut = {"width": 1280, "height": page.get_by_text("3 Reconstruct").bounding_box()["y"]}
        path = FOLDER / "view_camera.png"
        page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, **cut})
        page.get_by_role("button", name="Reconstruct", exact=True).click()
        page.get_by_text("done:").wait_for()
        report = show_bands(page)
        for region in (("92", "64", "16", "16"), ("160", "96", "24", "24")):
            for label, value in zip(("Row", "Column", "Rows", "Columns"), region, strict=True):
                report.get_by_role("spinbutton", name=label, exact=True).fill(value)
            report.get_by_role("button", name="Add region").click()
        report.get_by_role("button", name="One cube, all marks").click()
        # Chromium only draws what is in sight, so the window must show the whole section. The fixed
        # header would cover a part of it.
        page.set_viewport_size({"width": 1280, "height": 1700})
        page.wait_for_timeout(1500)
        page.add_style_tag(content="header { position: static !important }")
        page.locator("section[aria-label=Look]").screenshot(path=FOLDER / "view_look.png")


def take_live(folder: Path) -> None:
    """Give cassi-live several frames, one after the other, and take its screenshot."""
    truth, camera = first_sequence(FRAMES)
    np.save(folder / "mask.npy", camera.mask[0, 0].numpy())
    (folder / "in").mkdir()
    nm = ",".join(f"{value:.1f}" for value in WAVELENGTHS)
    words = [f"source={folder}/in", f"mask={folder}/mask.npy", f"system.step={STEP}"]
    words += [f"wavelengths=[{nm}]", "--output", str(folder / "out")]
    with open_command("live", *words) as (page, _):
        page.get_by_text("waits for the first frame").wait_for()
        for count, frame in enumerate(truth, 1):
            # cassi-live may read a file as soon as it appears. The rename makes it appear complete.
            np.save(folder / "in" / ".next.npy", camera(frame[None])[0, 0].numpy())
            (folder / "in" / ".next.npy").rename(folder / "in" / f"{count:04d}.npy")
            page.get_by_text(f"{count} done").wait_for()
            page.wait_for_timeout(1500)
        cut = {"x": 0, "y": 0, "width": 1280, "height": 700}
        page.screenshot(path=FOLDER / "live.png", clip=cut)


def time_view(folder: Path, shape: tuple[int, ...] = (28, 660, 660), changes: int = 10) -> None:
    """Print the seconds until the first page, and from a key press to another band."""
    (folder / "result").mkdir()
    cube = np.random.default_rng(0).random(shape, np.float32)
    write_cube(folder / "result/cube.tif", cube, np.linspace(450, 650, shape[0]))
    numbers = {"iterations": 1, "seconds": 1.0, "relative_residual": 0.1}
    result: dict[str, Any] = {"cube_shape": list(shape), "files": ["cube.tif"], "warnings": []}
    write_json(folder / "result/metrics.json", numbers | result)
    with open_view(folder) as (page, page_seconds, view_seconds):
        print(f"first page: {page_seconds:.2f} s; application: {view_seconds:.2f} s")
        page.get_by_role("button", name=re.compile("Open ")).first.click()
        show_bands(page).get_by_role("slider", name="Band", exact=True).focus()
        page.wait_for_timeout(2000)
        frame, milliseconds = page.frames[-1], []
        for _ in range(changes):
            picture, start = frame.evaluate(LAST_PICTURE), time.perf_counter()
            page.keyboard.press("ArrowRight")
            is_new = f"picture => ({LAST_PICTURE})() !== picture"
            frame.wait_for_function(is_new, arg=picture, polling="raf")
            milliseconds.append(1000 * (time.perf_counter() - start))
            page.wait_for_timeout(300)
    print(
        f"another band of {shape}: median {statistics.median(milliseconds):.0f} ms, "
        f"at most {max(milliseconds):.0f} ms"
    )


TASKS: dict[str, Callable[[Path], None]] = {
    "view": take_view,
    "live": take_live,
    "time": time_view,
}


def main() -> None:
    """Take the screenshots of a command, or the times."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=TASKS)
    with tempfile.TemporaryDirectory() as name:
        TASKS[parser.parse_args().what](Path(name))


if __name__ == "__main__":
    main()
