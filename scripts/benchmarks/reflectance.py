"""Measure errors of recovered reflectances, and coverage of their error bars, on random cameras.

    python -m scripts.benchmarks.reflectance --draws 8
    python -m scripts.benchmarks.reflectance --draws 1 --seed 3 --say

`lab.py` simulates each camera, with its lamp and its sensor. It uses no model of the package. A
grey reference, a coloured patch and a white patch lie in a scene of CAVE's training set.
Reflectances are recovered as a user does it, with `output.unit=reflectance uncertainty=true`. The
response comes from a frame of a white sheet, `response={white: …}`, or from the white patch,
`response={patch: …}`. `true` is the camera with the true offsets. `filters` is the camera that
`cassi-calibrate` estimates from three frames through filters and the white frame.

The table has two columns for the grey reference, and two for the coloured patch. First: the
spectral angle between the mean of the patch and the truth, degrees; in brackets, the angle if the
mean is not divided by the response. Second (`in bars`): the fraction of bands in which the truth is
within the 90 % error bar of the mean. `values in bars` is the fraction of all values of a scene
whose truth is within the 90 % error bar.
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

from cassi.apps import snapshot as pipeline
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.command import Run as RunOf
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.results import summarize
from cassi.apps.settings import Calibrate
from cassi.pipeline.judge import JudgeOptions
from cassi.pipeline.snapshot import Result
from cassi.uncertainty import region
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.tables import Parser, Table, data_folder

SIGMAS_OF_90_PERCENT = 1.645
# Side of a patch, pixels.
PATCH_SIDE = 16
# Row and column of the coloured, the white and the grey patch, in the camera's field.
PATCH_CORNERS = ((64, 40), (64, 64), (64, 88))
# Reflectances of the grey and the white patch.
GREY, WHITE = 0.5, 0.9
# Unused pixels at every side of a patch, since a patch may lie between the pixels of a cube.
PATCH_MARGIN = 3
# Reflectances of the coloured patch in blue and in red. The seed of a camera chooses a pair.
COLOUR_LEVELS = ((0.15, 0.75), (0.70, 0.10), (0.30, 0.65))


def add_patches(
    cube: Tensor, wavelengths: Sequence[float], lab: Lab, seed: int
) -> tuple[Tensor, Sequence[float]]:
    """Return a cube `(1, C, h, w)` of the field's shape with patches in it, and its wavelengths."""
    height, width = lab.shape
    scale = max(height / cube.shape[-2], width / cube.shape[-1])
    # The size is rounded up. It is first rounded to a millionth, or a rounding error of the product
    # could add a pixel.
    size = [-(-round(1e6 * side * scale) // 10**6) for side in cube.shape[-2:]]
    x = torch.nn.functional.interpolate(cube.float(), size=size, mode="area")
    x = x[..., :height, :width] / x.max()
    for number, (top, left) in enumerate(PATCH_CORNERS):
        spectrum = patch_spectrum(number, wavelengths, seed)
        x[0, :, top : top + PATCH_SIDE, left : left + PATCH_SIDE] = spectrum[:, None, None]
    return x, wavelengths


def patch_spectrum(number: int, wavelengths: Sequence[float], seed: int) -> Tensor:
    """Return the reflectance of a patch at wavelengths, nm."""
    if number > 0:
        return torch.full((len(wavelengths),), WHITE if number == 1 else GREY)
    low, high = COLOUR_LEVELS[seed % len(COLOUR_LEVELS)]
    return low + (high - low) * torch.sigmoid((torch.tensor(wavelengths) - 550) / 20)


def measure_angle(a: Tensor, b: Tensor) -> float:
    """Return the angle between two spectra, degrees."""
    return float(torch.rad2deg(torch.cosine_similarity(a, b, 0).clamp(-1, 1).acos()))


def patch_box(lab: Lab, number: int) -> list[int]:
    """Return top, left, height and width of a patch in the cube's file, without its margin."""
    top, left = (corner + PATCH_MARGIN for corner in PATCH_CORNERS[number])
    side = PATCH_SIDE - 2 * PATCH_MARGIN
    return [left, top, side, side] if lab.axis == -2 else [top, left, side, side]


def measure_camera(seed: int, folder: Path, scenes: list[Path], say: bool) -> list[tuple[str, ...]]:
    """Draw a camera, recover reflectances in three ways, and return a row of cells for each way."""
    lab = Lab.draw(seed)
    scene = lab.scene(*add_patches(*read_scene(scenes[seed % len(scenes)]), lab, seed))
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        lab.write_files(folder, scene)
        options = [*lab.filter_options(folder), f"white={folder}/white.png"]
        settings = compose_settings(options, kind=Calibrate)
        calibrate_by_filters(settings, RunOf(folder / "filters", False))
    rows = []
    patch = f"response={{patch: {patch_box(lab, 1)}, reflectance: {WHITE}}}"
    for name, camera, response in (
        ("true, white frame", "true.yaml", [f"response={{white: {folder}/white.png}}"]),
        ("true, white patch", "true.yaml", [patch]),
        ("filters, white frame", "filters/camera.yaml", []),
    ):
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            settings = compose_settings(
                [
                    *(f"camera={folder}/{camera}", f"measurement={folder}/frame.png"),
                    *("output.unit=reflectance", "uncertainty=true", *response),
                ]
            )
            snapshot, method = pipeline.prepare(settings, Recipe(settings, torch.device("cpu")))
            result = pipeline.reconstruct_and_judge(
                snapshot, method, 0, False, JudgeOptions(uncertainty=True)
            )
            numbers = summarize(result)
            pipeline.print_findings(numbers)
        rows.append((name, *judge(result, numbers, lab, scene, seed)))
    if say:
        print(output.getvalue())
    return rows


def judge(
    result: Result, numbers: dict[str, Any], lab: Lab, scene: Tensor, seed: int
) -> tuple[str, ...]:
    """Return the cells of a row: angles and coverage of two patches, all values, and warnings."""
    x, bars = result.cube, result.errors
    assert bars is not None
    response = torch.tensor(numbers["response"]["values"])
    cells: list[str] = []
    for number in (2, 0):
        top, left, height, width = patch_box(lab, number)
        window = (slice(top, top + height), slice(left, left + width))
        patch = region(SimpleNamespace(x=x, std=bars.std, pattern=bars.pattern), window)
        mean, truth = patch.mean[0], patch_spectrum(number, lab.wavelengths, seed)
        # The exposures of the frame and of the white frame differ. So the level of a spectrum is
        # fitted, and only its shape is judged.
        level = (mean * truth).sum() / truth.square().sum()
        deviation = (mean - level * truth).abs()
        coverage = (deviation <= SIGMAS_OF_90_PERCENT * patch.std[0]).float().mean()
        cells += [
            f"{measure_angle(mean, truth):.2f} ({measure_angle(mean * response, truth):.0f})",
            f"{float(coverage):.1%}",
        ]
    # The scene of `lab` is in units of light, and the cube is reflectance. Times the power of the
    # lamp, the cube can be compared with the scene.
    power = [[lab.spectral_power(float(nm)) for nm in band] for band in lab.traced_wavelengths()]
    light = torch.tensor(power).mean(1)[:, None, None]
    scale, truth = lab.score(x[0] * light, scene)
    estimate, sigma = scale * x[0] * light, scale * bars.std[0] * light
    interior = (..., slice(4, -4), slice(4, -4))
    estimate, sigma = ((v.mT if lab.axis == -2 else v)[interior] for v in (estimate, sigma))
    coverage = ((estimate - truth).abs() <= SIGMAS_OF_90_PERCENT * sigma).float().mean()
    topics = ", ".join(warning["about"] for warning in numbers["warnings"])
    return (*cells, f"{float(coverage):.1%}", topics)


def main() -> None:
    """Print a line for each camera and each way to recover reflectances, and the medians."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=8, help="cameras")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first camera")
    parser.add_argument("--say", action="store_true", help="print the output of the commands")
    arguments = parser.parse_args()
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    table = Table(
        *("draw", "camera", "response", "reference, °", "in bars", "coloured, °", "in bars"),
        *("values in bars", "warned"),
    )
    rows_by_name: dict[str, list[tuple[str, ...]]] = {}
    for seed in range(arguments.seed, arguments.seed + arguments.draws):
        with tempfile.TemporaryDirectory() as folder:
            for name, *row in measure_camera(seed, Path(folder), scenes, arguments.say):
                table.print(seed, Lab.draw(seed).description, name, *row)
                rows_by_name.setdefault(name, []).append(tuple(row))
    print()
    table = Table(
        *("response", "reference, median / worst", "3° at most", "in bars"),
        *("coloured, median / worst", "in bars", "values in bars", "85 to 95 %, or warned"),
    )
    for name, rows in rows_by_name.items():
        grey_angles, colour_angles = ([float(row[k].split()[0]) for row in rows] for k in (0, 2))
        coverages = [[float(row[k].rstrip("%")) for row in rows] for k in (1, 3, 4)]
        grey_mean, colour_mean, values_mean = (
            f"{sum(values) / len(rows):.1f} %" for values in coverages
        )
        # Error bars count as reliable if 85 to 95 % of the values are within them, or if a warning
        # about the uncertainty was given.
        n_reliable = sum(
            85 <= value <= 95 or "uncertainty" in row[5]
            for value, row in zip(coverages[2], rows, strict=True)
        )
        table.print(
            name,
            f"{median(grey_angles):.2f}° / {max(grey_angles):.2f}°",
            f"{sum(value <= 3 for value in grey_angles)} of {len(rows)}",
            grey_mean,
            f"{median(colour_angles):.2f}° / {max(colour_angles):.2f}°",
            colour_mean,
            values_mean,
            f"{n_reliable} of {len(rows)}",
        )


if __name__ == "__main__":
    main()
