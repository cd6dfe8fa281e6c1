"""Compare the errors of calibrations of random cameras with the stated standard errors.

    python -m scripts.benchmarks.places --draws 8 --seed 100
    python -m scripts.benchmarks.places --draws 8 --seed 100 --calibrate    # and PSNR by `auto`
    python -m scripts.benchmarks.places --draws 8 --seed 100 --filters      # frames through filters

The first two commands estimate the position of mask and bands from a snapshot. They begin with the
users' cameras of `random_cameras.py`. The table has the errors of the mask, of the first band and
of the last band, in the middle of the field. If --filters is given, `cassi-calibrate` calibrates
cameras of `lab.py`: from three frames through filters, or from one such frame, the step and the
snapshot.
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
from cassi.camera.band_offsets import estimate_offsets
from cassi.camera.search import find_light
from cassi.pipeline.align import align
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import SDCassi, System
from scripts.benchmarks.lab import Lab
from scripts.benchmarks.random_cameras import GENERATORS, Capture, write_lab
from scripts.benchmarks.tables import Parser, Table

FILTERS = {"three filters": slice(None), "one filter": slice(1, 2)}


def measure_filters(seed: int, filters: slice) -> tuple[float, float]:
    """Calibrate a camera by frames through filters.

    Returns:
        The largest error of an offset, and the largest standard error, pixels.
    """
    lab = Lab.draw(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        write_lab(lab, folder)
        options = [*lab.filter_options(folder, filters=filters), f"measurement={folder}/frame.png"]
        settings = compose_settings(options, kind=Calibrate)
        with contextlib.redirect_stdout(io.StringIO()):
            error = calibrate_by_filters(settings, Run(folder / "made", False))
        system = cassi.read_camera(folder / "made/camera.yaml").system
    assert isinstance(system, SDCassi)
    errors = lab.offsets().new_tensor(system.offsets) - lab.offsets()
    # If the mask is cut one column further on and all offsets are smaller by one, the camera is the
    # same. So whole pixels are subtracted from the errors.
    errors -= errors.mean().round()
    return float(errors.abs().max()), error


def print_filters(seeds: Sequence[int]) -> None:
    """Print the errors of the offsets of cameras that are calibrated by filters."""
    for name, filters in FILTERS.items():
        pairs = [measure_filters(seed, filters) for seed in seeds]
        errors = [error for error, _ in pairs]
        print(
            f"{name}: offsets off by {median(errors):.2f} px in the median, "
            f"{max(errors):.2f} at most; {count_within(pairs)}",
            flush=True,
        )


def count_within(pairs: Sequence[tuple[float, float]]) -> str:
    """Say how many errors are within twice their standard errors. About 95 % should be."""
    n_within = sum(error <= 2 * standard_error for error, standard_error in pairs)
    return f"within twice the stated error {n_within} of {len(pairs)}"


def measure_psnr(capture: Capture) -> tuple[float, float, float]:
    """Return the PSNR of the default camera and of the calibrated camera, dB, and CPU seconds."""
    system, start = capture.system(capture.user_camera), time.process_time()
    camera: System = calibrate_on(capture.y, system, wavelengths=capture.wavelengths).system
    seconds = time.process_time() - start
    if capture.good_pixels is not None:
        camera = camera.weighted(bad_pixels=~capture.good_pixels)
    alignment = align(capture.y, system)
    default = system if alignment is None else alignment.system
    scores = [
        capture.score(cassi.reconstruct(capture.y, optics, align=False)[0])
        for optics in (default, camera)
    ]
    return scores[0], scores[1], seconds


def print_generator(generator: str, seeds: Sequence[int], calibrate: bool) -> None:
    """Print a table of the cameras of one generator, and a summary."""
    columns = ("across, px", "first band", "last band", "visible ends", "CPU s")
    table = Table(f"{generator}: draw", "camera", *columns, "nominal", "calibrated", "CPU s")
    # Pairs of an error and its standard error, pixels.
    pairs: dict[str, list[tuple[float, float]]] = {"across": [], "bands": []}
    gains = []
    for seed in seeds:
        capture = GENERATORS[generator](seed)
        nominal, start = capture.user_camera, time.process_time()
        estimate = find_light(capture.y, nominal, capture.good_pixels, capture.wavelengths)
        bands = estimate_offsets(estimate.offsets, estimate.light, nominal.offsets)
        seconds = time.process_time() - start
        error = estimate.values["across"] - capture.mask_error
        pairs["across"].append((abs(error), estimate.errors["across"]))
        cells = [f"{error:+.2f} ± {estimate.errors['across']:.2f}"]
        for band, true_offset in zip((0, -1), capture.end_offsets, strict=True):
            error, standard_error = bands.offsets[band] - true_offset, bands.errors[band]
            pairs["bands"].append((abs(error), standard_error))
            cells.append(f"{error:+.2f} ± {standard_error:.2f}")
        cells += [bands.visible_ends or "none", f"{seconds:.1f}"]
        if calibrate:
            default_psnr, calibrated_psnr, seconds = measure_psnr(capture)
            gains.append(calibrated_psnr - default_psnr)
            cells += [f"{default_psnr:.2f}", f"{calibrated_psnr:.2f}", f"{seconds:.0f}"]
        table.print(seed, capture.description[:60], *cells, *([""] * (8 - len(cells))))
    for name, name_pairs in pairs.items():
        errors = [error for error, _ in name_pairs]
        print(
            f"{name}: off by {median(errors):.2f} px in the median, {max(errors):.2f} at most; "
            f"{count_within(name_pairs)}"
        )
    if gains:
        print(
            f"calibrated: {sum(gains) / len(gains):+.1f} dB in the mean, worse by 0.1 dB "
            f"{sum(gain < -0.1 for gain in gains)} of {len(gains)}, at worst {min(gains):+.1f} dB"
        )
    print(flush=True)


def main() -> None:
    """Print a table for each generator, or the errors of calibrations by filters."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=8, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first camera")
    parser.add_argument("--calibrate", action="store_true", help="also measure the gain in PSNR")
    parser.add_argument("--filters", action="store_true", help="calibrate by filters instead")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    if arguments.filters:
        print_filters(seeds)
        return
    for generator in GENERATORS:
        print_generator(generator, seeds, arguments.calibrate)


if __name__ == "__main__":
    main()
