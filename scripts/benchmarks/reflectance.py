"""Reflectances of a reference patch on cameras that are drawn at random, and their error bars.

    python -m scripts.benchmarks.reflectance --draws 8
    python -m scripts.benchmarks.reflectance --draws 1 --seed 3 --say

Each camera, its lamp and its sensor are made by `lab.py`, not by a model of the package. A grey
reference, a coloured patch and a white one lie in a scene of CAVE's training set. Reflectances are
recovered as a user does it, with `output.unit=reflectance uncertainty=true`: by a frame of a white
sheet, `response={white: …}`, and by the white patch, `response={patch: …}`. `true` is the camera
with the true offsets, `filters` the one that `cassi-calibrate` makes of three filters and the white
frame. Of the reference and of the coloured patch are printed the spectral angle of the mean to the
truth, in degrees, without the response in brackets, and the share of bands in which the truth is
within the 90 % error bar of that mean; then the share of all values of the scene within theirs.
"""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cassi.apps import snapshot as way
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.command import Run as RunOf
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.results import summarize
from cassi.apps.settings import Calibrate
from cassi.pipeline.snapshot import Result
from cassi.uncertainty import region
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.tables import Parser, Table, data_folder

BARS = 1.645
SIDE = 16
"""Pixels of a patch."""
PLACES = ((64, 40), (64, 64), (64, 88))
"""Row and column of the coloured, the white and the grey patch, of the camera's field."""
GREY, WHITE = 0.5, 0.9
"""Reflectances."""
INNER = 3
"""Pixels that are left out on every side of a patch: it need not lie on the pixels of the cube."""
LEVELS = ((0.15, 0.75), (0.70, 0.10), (0.30, 0.65))
"""Reflectance of the patch, blue and red; cameras take turns."""


def with_patches(
    cube: Tensor, wavelengths: Sequence[float], lab: Lab, seed: int
) -> tuple[Tensor, Sequence[float]]:
    """Return a cube `(1, C, h, w)` of the field's shape with patches in it, and its wavelengths."""
    height, width = lab.shape
    scale = max(height / cube.shape[-2], width / cube.shape[-1])
    size = [-(-round(1e6 * side * scale) // 10**6) for side in cube.shape[-2:]]
    x = torch.nn.functional.interpolate(cube.float(), size=size, mode="area")
    x = x[..., :height, :width] / x.max()
    for number, (top, left) in enumerate(PLACES):
        spectrum = patch_spectrum(number, wavelengths, seed)
        x[0, :, top : top + SIDE, left : left + SIDE] = spectrum[:, None, None]
    return x, wavelengths


def patch_spectrum(number: int, wavelengths: Sequence[float], seed: int) -> Tensor:
    """Return the reflectance of a patch at wavelengths, nm."""
    if number > 0:
        return torch.full((len(wavelengths),), WHITE if number == 1 else GREY)
    low, high = LEVELS[seed % len(LEVELS)]
    return low + (high - low) * torch.sigmoid((torch.tensor(wavelengths) - 550) / 20)


def angle(a: Tensor, b: Tensor) -> float:
    """Return the angle between two spectra, degrees."""
    return float(torch.rad2deg(torch.cosine_similarity(a, b, 0).clamp(-1, 1).acos()))


def place(lab: Lab, number: int) -> list[int]:
    """Return the inner part of a patch in a file's cube: top, left, height, width."""
    top, left = (each + INNER for each in PLACES[number])
    side = SIDE - 2 * INNER
    return [left, top, side, side] if lab.axis == -2 else [top, left, side, side]


def look(seed: int, folder: Path, scenes: list[Path], say: bool) -> list[tuple[str, ...]]:
    """Draw a camera and return what each way of calibrating it shows."""
    lab = Lab.drawn(seed)
    scene = lab.scene(*with_patches(*read_scene(scenes[seed % len(scenes)]), lab, seed))
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        lab.files(folder, scene)
        options = [*lab.filter_options(folder), f"white={folder}/white.png"]
        settings = compose_settings(options, kind=Calibrate)
        calibrate_by_filters(settings, RunOf(folder / "filters", False))
    rows = []
    patch = f"response={{patch: {place(lab, 1)}, reflectance: {WHITE}}}"
    for name, camera, more in (
        ("true, white frame", "true.yaml", [f"response={{white: {folder}/white.png}}"]),
        ("true, white patch", "true.yaml", [patch]),
        ("filters, white frame", "filters/camera.yaml", []),
    ):
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            settings = compose_settings(
                [
                    *(f"camera={folder}/{camera}", f"measurement={folder}/frame.png"),
                    *("output.unit=reflectance", "uncertainty=true", *more),
                ]
            )
            snapshot, method = way.prepare(settings, Recipe(settings, torch.device("cpu")))
            found = way.recover(snapshot, method, 0, False, uncertainty=True)
            numbers = summarize(found)
            way.say(numbers)
        rows.append((name, *judge(found, numbers, lab, scene, seed)))
    if say:
        print(output.getvalue())
    return rows


def judge(
    found: Result, numbers: dict[str, Any], lab: Lab, scene: Tensor, seed: int
) -> tuple[str, ...]:
    """Return the angles of the patch, with the response and without, and what bars hold."""
    x, bars = found.cube, found.errors
    assert bars is not None
    r = torch.tensor(numbers["response"]["values"])
    said: list[str] = []
    for number in (2, 0):
        top, left, height, width = place(lab, number)
        where = (slice(top, top + height), slice(left, left + width))
        patch = region(SimpleNamespace(x=x, std=bars.std, pattern=bars.pattern), where)
        mean, truth = patch.mean[0], patch_spectrum(number, lab.wavelengths, seed)
        # The exposures of frame and white differ: the level is free, the spectrum is not.
        level = (mean * truth).sum() / truth.square().sum()
        covered = ((mean - level * truth).abs() <= BARS * patch.std[0]).float().mean()
        said += [
            f"{angle(mean, truth):.2f} ({angle(mean * r, truth):.0f})",
            f"{float(covered):.1%}",
        ]
    light = torch.tensor([[lab.light(float(nm)) for nm in band] for band in lab.lights()]).mean(1)
    lit = light[:, None, None]  # what is asked is the reflectance, in units of the true light
    raw, there = lab.score(x[0] * lit, scene)
    seen, sigma = raw * x[0] * lit, raw * bars.std[0] * lit
    inner = (..., slice(4, -4), slice(4, -4))
    seen, sigma = ((v.mT if lab.axis == -2 else v)[inner] for v in (seen, sigma))
    whole = ((seen - there).abs() <= BARS * sigma).float().mean()
    warned = ", ".join(each["about"] for each in numbers["warnings"])
    return (*said, f"{float(whole):.1%}", warned)


def main() -> None:
    """Print a line for each draw and way, and the medians."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=8, help="cameras")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--say", action="store_true", help="print what the commands say")
    arguments = parser.parse_args()
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    table = Table(
        *("draw", "camera", "response", "reference, °", "in bars", "coloured, °", "in bars"),
        *("values in bars", "warned"),
    )
    every: dict[str, list[tuple[str, ...]]] = {}
    for seed in range(arguments.seed, arguments.seed + arguments.draws):
        with tempfile.TemporaryDirectory() as folder:
            for name, *row in look(seed, Path(folder), scenes, arguments.say):
                table.print(seed, Lab.drawn(seed).said, name, *row)
                every.setdefault(name, []).append(tuple(row))
    print()
    table = Table(
        *("response", "reference, median / worst", "3° at most", "in bars"),
        *("coloured, median / worst", "in bars", "values in bars", "85 to 95 %, or warned"),
    )
    for name, rows in every.items():
        grey, coloured = ([float(row[k].split()[0]) for row in rows] for k in (0, 2))
        held = [[float(row[k].rstrip("%")) for row in rows] for k in (1, 3, 4)]
        share = [f"{sum(values) / len(rows):.1f} %" for values in held]
        sure = sum(
            85 <= value <= 95 or "uncertainty" in row[5]
            for value, row in zip(held[2], rows, strict=True)
        )
        table.print(
            *(name, f"{median(grey):.2f}° / {max(grey):.2f}°"),
            f"{sum(value <= 3 for value in grey)} of {len(rows)}",
            *(share[0], f"{median(coloured):.2f}° / {max(coloured):.2f}°", *share[1:]),
            f"{sure} of {len(rows)}",
        )


if __name__ == "__main__":
    main()
