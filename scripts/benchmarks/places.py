"""What calibration finds, on cameras of two independent generators.

    python -m scripts.benchmarks.places --draws 8 --seed 100
    python -m scripts.benchmarks.places --draws 8 --seed 100 --calibrate    # and PSNR by `auto`
    python -m scripts.benchmarks.places --draws 8 --seed 100 --filters      # frames through filters

The first two place mask and bands by a snapshot, of cameras as their users have them
(`drawn.py`). Errors are those in the middle of the field; bands at the ends are the first and the
last. With --filters `cassi-calibrate` makes cameras of `lab.py` of three frames through filters,
and of one, the step and the snapshot.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import cassi
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.command import Run
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Calibrate
from cassi.camera.found import find_light
from cassi.camera.names import name_bands
from cassi.pipeline.align import align
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import SDCassi, System
from scripts.benchmarks.drawn import GENERATORS, Drawn, write_lab
from scripts.benchmarks.lab import Lab
from scripts.benchmarks.tables import Parser, Table

FILTERS = {"three filters": slice(None), "one filter": slice(1, 2)}


def by_filters(seed: int, which: slice) -> tuple[float, float]:
    """Make a camera of frames through filters.

    Returns:
        By how much offsets are off at most, and the largest standard error, pixels.
    """
    lab = Lab.drawn(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        write_lab(lab, folder)
        options = [*lab.filter_options(folder, which=which), f"measurement={folder}/frame.png"]
        settings = compose_settings(options, kind=Calibrate)
        with contextlib.redirect_stdout(io.StringIO()):
            error = calibrate_by_filters(settings, Run(folder / "made", False))
        system = cassi.read_camera(folder / "made/camera.yaml").system
    assert isinstance(system, SDCassi)
    away = lab.offsets().new_tensor(system.offsets) - lab.offsets()
    away -= away.mean().round()  # a field that is cut a column further is the same camera
    return float(away.abs().max()), error


def look_through_filters(seeds: Sequence[int]) -> None:
    """Print how far offsets of cameras of frames through filters are off."""
    for name, which in FILTERS.items():
        found = [by_filters(seed, which) for seed in seeds]
        away = [off for off, _ in found]
        within = sum(off <= 2 * error for off, error in found)
        print(
            f"{name}: offsets off by {median(away):.2f} px in the median, {max(away):.2f} at most; "
            f"within twice the stated error {within} of {len(found)}",
            flush=True,
        )


def levels(drawn: Drawn) -> tuple[float, float, float]:
    """Return the PSNR of the default and of the calibrated camera, and CPU seconds."""
    system, start = drawn.system(drawn.camera), time.process_time()
    found: System = calibrate_on(drawn.y, system, wavelengths=drawn.wavelengths).system
    seconds = time.process_time() - start
    if drawn.good is not None:
        found = found.weighted(bad_pixels=~drawn.good)
    aligned = align(drawn.y, system)
    default = system if aligned is None else aligned.system
    cubes = [cassi.reconstruct(drawn.y, each, align=False)[0] for each in (default, found)]
    return drawn.score(cubes[0]), drawn.score(cubes[1]), seconds


def look_at(generator: str, seeds: Sequence[int], calibrate: bool) -> None:
    """Print a table of one generator, and a summary."""
    columns = ("across, px", "first band", "last band", "told by", "CPU s")
    table = Table(f"{generator}: draw", "camera", *columns, "nominal", "calibrated", "CPU s")
    off: dict[str, list[tuple[float, float]]] = {"across": [], "bands": []}
    gains = []
    for seed in seeds:
        drawn = GENERATORS[generator](seed)
        start = time.process_time()
        place = find_light(drawn.y, drawn.camera, drawn.good, drawn.wavelengths)
        names = name_bands(place.offsets, place.light, drawn.camera.offsets)
        seconds = time.process_time() - start
        across = place.values["across"] - drawn.across
        off["across"].append((abs(across), place.errors["across"]))
        cells = [f"{across:+.2f} ± {place.errors['across']:.2f}"]
        for at, true in zip((0, -1), drawn.ends, strict=True):
            away, error = names.offsets[at] - true, names.errors[at]
            off["bands"].append((abs(away), error))
            cells.append(f"{away:+.2f} ± {error:.2f}")
        cells += [names.told or "nothing", f"{seconds:.1f}"]
        if calibrate:
            default, calibrated, seconds = levels(drawn)
            gains.append(calibrated - default)
            cells += [f"{default:.2f}", f"{calibrated:.2f}", f"{seconds:.0f}"]
        table.print(seed, drawn.said[:60], *cells, *([""] * (8 - len(cells))))
    for name, errors in off.items():
        within = sum(away <= 2 * error for away, error in errors)
        print(
            f"{name}: off by {median(a for a, _ in errors):.2f} px in the median, "
            f"{max(a for a, _ in errors):.2f} at most; within twice the stated error "
            f"{within} of {len(errors)}"
        )
    if gains:
        print(
            f"calibrated: {sum(gains) / len(gains):+.1f} dB in the mean, worse by 0.1 dB "
            f"{sum(gain < -0.1 for gain in gains)} of {len(gains)}, at worst {min(gains):+.1f} dB"
        )
    print(flush=True)


def main() -> None:
    """Print a table for each generator, or what filters are worth."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=8, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--calibrate", action="store_true", help="and what calibration is worth")
    parser.add_argument("--filters", action="store_true", help="by frames through filters")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    if arguments.filters:
        look_through_filters(seeds)
        return
    for generator in GENERATORS:
        look_at(generator, seeds, arguments.calibrate)


if __name__ == "__main__":
    main()
