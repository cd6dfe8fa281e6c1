"""How long cassi-view takes: from the command to the first page, and from a key to another band.

    python -m scripts.benchmarks.view                 # 28 bands of 660×660, as from 660×714
    python -m scripts.benchmarks.view --shape 28 256 256 --changes 5

A band is there when the picture of the report is another one, in a headless Chromium on the
same machine. Prints a line each: median and largest of the changes in ms.
"""

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.results import write_json
from cassi.data.io import write_cube
from scripts.docs.view import open_page, show_bands

# The picture that the report has drawn last.
DRAWN = "() => document.querySelector('.frame > canvas').toDataURL('image/jpeg', 0.3)"


def write_result(folder: Path, shape: tuple[int, ...]) -> None:
    """Write a result as cassi-reconstruct does, of random numbers."""
    folder.mkdir()
    cube = np.random.default_rng(0).random(shape, np.float32)
    write_cube(folder / "cube.tif", cube, np.linspace(450, 650, shape[0]))
    numbers = {"iterations": 1, "seconds": 1.0, "relative_residual": 0.1}
    more: dict[str, Any] = {"cube_shape": list(shape), "files": ["cube.tif"], "warnings": []}
    write_json(folder / "metrics.json", numbers | more)


def change_bands(page: Any, changes: int) -> list[float]:
    """Press an arrow key on the slider until the picture is another one, so many times."""
    page.get_by_role("button", name=re.compile("Open ")).first.click()
    report = show_bands(page)
    report.get_by_role("slider", name="Band", exact=True).focus()
    page.wait_for_timeout(2000)
    frame = page.frames[-1]
    seconds = []
    for _ in range(changes):
        before, start = frame.evaluate(DRAWN), time.perf_counter()
        page.keyboard.press("ArrowRight")
        frame.wait_for_function(f"before => ({DRAWN})() !== before", arg=before, polling="raf")
        seconds.append(time.perf_counter() - start)
        page.wait_for_timeout(300)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs=3, default=(28, 660, 660))
    parser.add_argument("--changes", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_result(Path(name) / "result", tuple(given.shape))
        with open_page(Path(name)) as (page, first, usable):
            print(f"first page: {first:.2f} s; application: {usable:.2f} s")
            seconds = change_bands(page, given.changes)
    middle, most = 1000 * statistics.median(seconds), 1000 * max(seconds)
    print(f"another band of {given.shape}: median {middle:.0f} ms, at most {most:.0f} ms")


if __name__ == "__main__":
    main()
