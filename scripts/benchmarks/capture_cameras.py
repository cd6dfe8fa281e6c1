"""Which camera of the TSA captures and of the endomicroscope predicts held-out pixels best.

    python scripts/benchmarks/capture_cameras.py                    # all captures
    python scripts/benchmarks/capture_cameras.py --cameras smem
    python scripts/benchmarks/capture_cameras.py --scenes scene1 scene2

Cameras differ in where the mask lies: as it is given; where the package finds it, capture by
capture; 0.04 % larger and moved by 0.50 and 0.40 pixels, as a matrix that was published for the TSA
mask has it, of unknown directions, so all of them are tried; and 0.04 % larger, with the rest
fitted. They differ in how wide a band is along the dispersion: one pixel, or light shared ¼ ½ ¼
(`WideCassi`). Of each the error at 5 % of the detector pixels is printed that `auto` was not
given, on the brightest lines, and the seconds that this took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi.calibration import Frame
from cassi.calibration.fit import fit_geometry
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.mask_alignment import KEYS
from cassi.methods import auto
from cassi.solvers.heldout import hold_out
from cassi.systems import SDCassi, WideCassi
from scripts.benchmarks.captures import CAPTURES, load_capture
from scripts.benchmarks.tables import Parser, Table

PUBLISHED = (1 / 0.9996, 0.50, 0.40)
"""Magnification and shift, pixels."""


def geometries(
    y: Tensor, system: SDCassi, good: Tensor | None, published: bool
) -> Iterator[tuple[str, Geometry]]:
    """Return where the mask may lie."""
    frame = Frame.snapshot(y, system.bands, good)
    yield "as given", Geometry()
    yield "found", fit_geometry([frame], system, Geometry(), KEYS).geometry
    yield (
        "found, not magnified",
        fit_geometry(
            [frame], system, Geometry(), [key for key in KEYS if key != "magnification"]
        ).geometry,
    )
    if not published:
        return
    scale, first, second = PUBLISHED
    larger = Geometry(magnification=scale)
    rest = [key for key in KEYS if key != "magnification"]
    yield "0.04 % larger, rest fitted", fit_geometry([frame], system, larger, rest).geometry
    for shift in ((first, second), (second, first)):
        for down in (1, -1):
            for right in (1, -1):
                there = replace(larger, shift=(down * shift[0], right * shift[1]))
                yield "published", there


def main() -> None:
    """Print a line for each capture and camera."""
    parser = Parser(__doc__)
    parser.add_argument("--cameras", nargs="+", default=list(CAPTURES), choices=list(CAPTURES))
    parser.add_argument("--scenes", nargs="+", help="of these captures alone")
    parser.add_argument(
        "--lines", type=int, default=220, help="brightest ones, that are reconstructed"
    )
    arguments = parser.parse_args()
    table = Table(
        *("capture", "camera", "down", "right", "turned", "magnified", "blur", "band"),
        *("held-out error", "s"),
    )
    for camera in arguments.cameras:
        for name in arguments.scenes or CAPTURES[camera]:
            y, given, _ = load_capture(camera, name)
            assert isinstance(given.plain, WideCassi)
            system, good = given.plain.narrow(), given.good_pixels
            for said, geometry in geometries(y, system, good, camera == "tsa_real"):
                moved = moved_camera(system, geometry)
                assert type(moved) is SDCassi
                for band, tried in (("one pixel", moved), ("¼ ½ ¼", WideCassi.like(moved))):
                    used = tried if good is None else tried.weighted(bad_pixels=~good)
                    lines = hold_out(y, used, arguments.lines)
                    start = time.perf_counter()
                    error = lines.error(auto().run(lines.y, lines.camera).checked().x)
                    table.print(
                        *(f"{camera} {name}", said),
                        *(f"{value:+.2f}" for value in geometry.shift),
                        f"{geometry.rotation:+.3f}°",
                        f"{geometry.magnification:.4f}",
                        f"{geometry.blur:.2f}",
                        band,
                        f"{error:.4f}",
                        f"{time.perf_counter() - start:.0f}",
                    )


if __name__ == "__main__":
    main()
