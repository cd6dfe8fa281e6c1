"""From the files of a lab to cubes, on cameras that are drawn at random.

    python -m scripts.benchmarks.benches --draws 6
    python -m scripts.benchmarks.benches --draws 1 --seed 4 --say    # and all that is printed

Each camera and its files are made by `lab.py`, not by a model of the package. `line` is the camera
as its user knows it: a mask cut from a frame through a filter, and the step between the outermost
bands; `filters` is the camera that `cassi-calibrate` makes of three frames through filters, `one`
that of the middle filter, the step and the snapshot; `true` has the mask of the line and the true
offsets. PSNR in dB is that of cubes registered with the truth by quarters of a pixel, scaled, the
truth's maximum 1, without the outermost 4 pixels. A
warning of the camera is false with the true camera, and due where the line is 3 pixels wrong in its
middle, the mask is mirrored or the bands are in reverse. Bars are those of the true camera: the
share of values within them of nominally 90 %. Scenes are those of CAVE's training set.
"""

import contextlib
import io
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import cassi
from cassi import metrics
from cassi.apps import results
from cassi.apps import snapshot as way
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.command import Run as RunOf
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.settings import Calibrate
from cassi.calibration import check_camera, check_spectra
from cassi.systems import SDCassi
from scripts.benchmarks.lab import BANDS, Lab, read_scene
from scripts.benchmarks.tables import Parser, Table, data_folder

ABOUT = ("mask", "step", "shift", "wavelengths", "direction", "detector", "spectra")
"""Warnings that say that the camera is wrong."""
FAR = 3.0
"""Pixels, by which a line is wrong in its middle and must be found or warned of."""
FOUND = 1.0
"""dB below the true camera, at which a dispersion is found."""
NOT_TOLD = "dispersion: not shown"
"""Begins the line of a calibration that says that no frame tells."""
BARS = 1.645


@dataclass
class Run:
    """What a command returned and said."""

    level: float
    warned: list[str]
    seconds: float
    said: str
    numbers: dict[str, Any]
    covered: float | None = None
    renamed: float | None = None


@dataclass
class Row:
    """What a draw showed."""

    lab: Lab
    scene: str
    first: str
    off: float
    runs: dict[str, Run] = field(default_factory=dict)
    curves: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By how much offsets are off at most, and their largest standard error, pixels."""
    names: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By how much each wavelength is off, and its standard error, nm."""
    mirrored: bool = False
    turned: bool = False


def command(lab: Lab, scene: Tensor, folder: Path, *options: str) -> Run:
    """Run `cassi-reconstruct` in this process on the frame of a folder."""
    output, start = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        quiet = ("output.progress=false",)
        settings = compose_settings([f"measurement={folder / 'frame.png'}", *quiet, *options])
        snapshot, method = way.prepare(settings, Recipe(settings, torch.device("cpu")))
        found = way.recover(
            snapshot, method, settings.seed, False, uncertainty=settings.uncertainty
        )
        print(*snapshot.notes, sep="\n")
        if snapshot.camera.calibration is not None:
            print(results.say_estimates(results.summarize_calibration(snapshot.camera.calibration)))
        numbers = results.summarize(found)
        way.say(numbers)
    seconds = time.process_time() - start
    x = found.cube[0]
    scale, truth = lab.score(x, scene)
    inner = (..., slice(4, -4), slice(4, -4))

    def seen(cube: Tensor) -> Tensor:
        return scale * (cube.mT if lab.axis == -2 else cube)[inner]

    run = Run(
        float(metrics.psnr(seen(x).clamp(0, 1), truth)),
        [each["about"] for each in numbers["warnings"]],
        seconds,
        output.getvalue(),
        numbers,
    )
    if found.uncertainty is not None:
        # A cube with errors gets too small a scale by least squares. Its mean light is right.
        level = truth.mean() / seen(x).mean()
        away = (level * seen(x) - truth).abs()
        held = away <= BARS * level * seen(found.uncertainty.std[0])
        run.covered = float(held.float().mean())
    if snapshot.camera.calibration is not None:
        x = renamed(x, numbers["calibration"], lab)
        scale, truth = lab.score(x, scene)
        run.renamed = float(metrics.psnr(seen(x).clamp(0, 1), truth))
    return run


def renamed(x: Tensor, calibration: dict[str, Any], lab: Lab) -> Tensor:
    """Return a cube at the bands of the camera as the true curve names its places.

    A camera with a wrong curve has light of the right
    places under the names of other wavelengths.

    Args:
        x: cube `(C, H, W)`.
        calibration: numbers of the calibrated camera: where it has its bands.
        lab: the true camera.
    """
    found = {each["name"]: each["value"] for each in calibration["estimates"]}
    along = found["shift down (px)" if lab.axis == -2 else "shift right (px)"]
    offsets = calibration["offsets"]
    have = np.asarray(offsets["calibrated"]) - offsets["calibrated"][0]
    have += offsets["nominal"][0] + along
    want, bands = lab.offsets().double().numpy(), np.arange(BANDS)
    sign = np.sign(lab.span)
    places = np.interp(sign * want, sign * have, bands)
    # A band has the light of its pixels: more of them where the curve is steep.
    share = np.gradient(want) / np.interp(places, bands, np.gradient(have))
    left = places.astype(int).clip(max=BANDS - 2)
    part, share = (torch.from_numpy(each).float()[:, None, None] for each in (places - left, share))
    return share * torch.lerp(x[left], x[left + 1], part)


def first_command(folder: Path) -> tuple[str, list[str]]:
    """Try the README's command, and correct it once as its message says.

    Returns:
        How that went, and the options that worked.
    """
    options: list[str] = []
    for attempt in ("at once", "one correction"):
        try:
            settings = compose_settings(
                [
                    f"camera={folder / 'camera.yaml'}",
                    f"measurement={folder / 'frame.png'}",
                    *options,
                ]
            )
            way.read(settings, Recipe(settings, torch.device("cpu")))
        except (ValueError, OSError) as error:
            named = re.search(r"set (system\.\w+=-?[\d.]*\d)", str(error))
            if named is None:
                return f"no: {error}", options
            options.append(named[1])
        else:
            return attempt, options
    return "no: one correction is not enough", options


FILTERS = {"filters": slice(None), "one": slice(1, 2)}
"""Which filters a camera is made of."""


def by_filters(lab: Lab, folder: Path, name: str) -> tuple[float, float]:
    """Make a camera of frames through filters, in `folder/NAME`.

    Returns:
        By how much offsets are off at most, and the largest standard error, pixels.
    """
    options = [*lab.filter_options(folder, which=FILTERS[name]), f"measurement={folder}/frame.png"]
    settings = compose_settings(options, kind=Calibrate)
    with contextlib.redirect_stdout(io.StringIO()):
        stated = calibrate_by_filters(settings, RunOf(folder / name, False))
    found = cassi.read_camera(folder / name / "camera.yaml").system
    away = torch.tensor(found.offsets) - lab.offsets()
    away -= away.mean().round()  # a field that is cut a column further is the same camera
    return float(away.abs().max()), stated


def names_off(lab: Lab, folder: Path, name: str) -> list[tuple[float, float]]:
    """Return by how much the wavelengths of a camera are off, and their standard errors, nm."""
    camera = cassi.read_camera(folder / name / "camera.yaml")
    fine = np.linspace(lab.wavelengths[0] - 60, lab.wavelengths[-1] + 60, 3000)
    places = np.array([lab.place(nm) for nm in fine])
    away = torch.tensor(camera.system.offsets) - lab.offsets()
    right = lab.places + away - away.mean().round()
    order = np.argsort(places)
    there = np.interp(right.numpy(), places[order], fine[order])
    errors = camera.settings.wavelengths_error
    return [
        (abs(nm - told), error)
        for nm, told, error in zip(there, lab.wavelengths, errors, strict=True)
    ]


def look(seed: int, folder: Path, scenes: Sequence[Path], say: bool) -> Row:
    """Draw a camera, and run what its user runs."""
    lab, path = Lab.drawn(seed), scenes[seed % len(scenes)]
    scene = lab.scene(*read_scene(path))
    with contextlib.redirect_stderr(io.StringIO()):
        lab.files(folder, scene)
        first, options = first_command(folder)
    places = lab.places
    line = torch.linspace(float(places[0]), float(places[-1]), len(places), dtype=places.dtype)
    row = Row(lab, path.stem, first, float((places - line).abs().max()))
    given = (f"camera={folder / 'camera.yaml'}", *options)
    row.runs["line"] = command(lab, scene, folder, *given)
    row.runs["calibrated"] = command(lab, scene, folder, *given, "calibrate=true")
    for name in FILTERS:
        row.curves[name] = by_filters(lab, folder, name)
        row.names[name] = names_off(lab, folder, name)
        row.runs[name] = command(lab, scene, folder, f"camera={folder}/{name}/camera.yaml")
    true = f"camera={folder / 'true.yaml'}"
    row.runs["true"] = command(lab, scene, folder, true, "uncertainty=true")
    with contextlib.redirect_stderr(io.StringIO()):
        camera = cassi.read_camera(folder / "true.yaml")
        y, system = camera.read(folder / "frame.png")
    plain = system.plain
    assert isinstance(plain, SDCassi)
    where: dict[str, Any] = {"offsets": plain.offsets, "detector": plain.detector}
    wrong = SDCassi(plain.mask.flip(plain.axis), plain.bands, axis=plain.axis, **where)
    row.mirrored = "mask" in {each.about for each in check_camera(y, wrong).warnings}
    x = cassi.reconstruct(y, system).flip(1)
    row.turned = any(
        each.about == "direction" for each in check_spectra(x, plain, camera.wavelengths).warnings
    )
    if say:
        for name, run in row.runs.items():
            print(f"--- {name}\n{run.said}")
    return row


def summarize(rows: Sequence[Row]) -> None:
    """Print what all draws showed."""
    below = [row.runs["true"].level - row.runs["calibrated"].level for row in rows]
    worse = [row.runs["line"].level - row.runs["calibrated"].level for row in rows]
    far = [row for row in rows if row.off >= FAR]
    warned = sum(_warned(row.runs["line"]) for row in far)
    false = [about for row in rows for about in row.runs["true"].warned if about in ABOUT]
    bars = [row.runs["true"].covered or 0.0 for row in rows]
    many = len(rows)
    table = Table("", f"{many} draws")
    good = sum(not row.first.startswith("no") for row in rows)
    table.print("first command works, with one correction at most", f"{good} of {many}")
    table.print(
        "PSNR below the true camera's after `calibrate=true`, median / worst",
        f"{median(below):.2f} / {max(below):.2f} dB",
    )
    for kind in ("lines", "all light"):
        some = [d for d, row in zip(below, rows, strict=True) if kind in row.lab.said]
        if some:
            table.print(f"the same, {kind}", f"{median(some):.2f} / {max(some):.2f} dB")
    untold = sum(NOT_TOLD in row.runs["calibrated"].said for row in rows)
    some = [_below_by_any_name(row.runs["true"].level, row.runs["calibrated"]) for row in rows]
    table.print(
        f"the same, each band under its own wavelength or that of its place, whichever is better "
        f"(no frame tells the dispersion in {untold})",
        f"{median(some):.2f} / {max(some):.2f} dB",
    )
    for name, made in (("filters", "three filters"), ("one", "one filter")):
        beside = [row.runs["true"].level - row.runs[name].level for row in rows]
        table.print(
            f"PSNR below the true camera's with {made}, median / worst",
            f"{median(beside):.2f} / {max(beside):.2f} dB",
        )
        off, stated = zip(*(row.curves[name] for row in rows), strict=True)
        table.print(
            f"offsets of {made}: off by, at most, median / worst",
            f"{median(off):.2f} / {max(off):.2f} px",
        )
        within = sum(a <= 2 * b for a, b in zip(off, stated, strict=True))
        table.print("the same, within twice the stated error", f"{within} of {many}")
        names = [each for row in rows for each in row.names[name]]
        nm = [away for away, _ in names]
        table.print(
            f"wavelengths of {made}: off by, median / worst", f"{median(nm):.1f} / {max(nm):.1f} nm"
        )
        near = sum(away <= 2 * error for away, error in names) / len(names)
        table.print("the same, within twice the stated error", f"{near:.0%}")
        table.print(
            f"the camera of {made} warned of",
            f"{sum(_warned(row.runs[name]) for row in rows)} of {many}",
        )
    table.print("`calibrate=true` worse than the default by 0.1 dB", sum(d > 0.1 for d in worse))
    table.print("a line that is 3 px wrong in its middle: warned of", f"{warned} of {len(far)}")
    table.print(
        "the same with `calibrate=true`: found, or said that the frame does not tell",
        f"{sum(map(_found_or_said, far))} of {len(far)}",
    )
    table.print(
        "the true camera warned of",
        f"{sum(_warned(row.runs['true']) for row in rows)} of {many}"
        + (f" ({', '.join(sorted(set(false)))})" if false else ""),
    )
    table.print("mirrored mask warned of", f"{sum(row.mirrored for row in rows)} of {many}")
    table.print("bands in reverse warned of", f"{sum(row.turned for row in rows)} of {many}")
    table.print(
        "values within 90 % error bars, mean (least, most)",
        f"{sum(bars) / many:.1%} ({min(bars):.1%}, {max(bars):.1%})",
    )
    seconds = [row.runs["calibrated"].seconds for row in rows]
    table.print(
        "`calibrate=true`, CPU seconds, median / most",
        f"{median(seconds):.0f} / {max(seconds):.0f}",
    )


def _below_by_any_name(level: float, run: Run) -> float:
    """Return by how much a cube scores lower, its names or those of the true curve: the better."""
    return level - max(run.level, run.renamed or run.level)


def _found_or_said(row: Row) -> bool:
    run = row.runs["calibrated"]
    return NOT_TOLD in run.said or row.runs["true"].level - run.level < FOUND


def _warned(run: Run) -> bool:
    return any(about in ABOUT for about in run.warned)


def main() -> None:
    """Print a line for each draw, and a summary."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=6, help="cameras")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--say", action="store_true", help="print what the commands say")
    arguments = parser.parse_args()
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    rows = []
    table = Table(
        *(
            "draw",
            "camera",
            "scene",
            "line off, px",
            "first command",
            "line",
            "calibrated",
            "filters",
            "one",
        ),
        *("true", "warned: line", "calibrated", "filters", "one", "true"),
        *("calibrated, bands renamed", "filters off, px", "one off, px"),
        *("mirrored, reversed", "bars", "CPU s"),
    )
    for seed in range(arguments.seed, arguments.seed + arguments.draws):
        with tempfile.TemporaryDirectory() as folder:
            row = look(seed, Path(folder), scenes, arguments.say)
        rows.append(row)
        runs = row.runs
        table.print(
            *(seed, row.lab.said, row.scene, f"{row.off:.1f}", row.first),
            *(f"{run.level:.2f}" for run in runs.values()),
            *(", ".join(run.warned) for run in runs.values()),
            f"{runs['calibrated'].renamed:.2f}",
            *(f"{off:.2f} ± {stated:.2f}" for off, stated in row.curves.values()),
            f"{'yes' if row.mirrored else 'no'}, {'yes' if row.turned else 'no'}",
            f"{runs['true'].covered:.1%}",
            " ".join(f"{run.seconds:.0f}" for run in runs.values()),
        )
    summarize(rows)


if __name__ == "__main__":
    main()
