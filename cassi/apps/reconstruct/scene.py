"""Write the results of a scene whose cube is too large for the memory."""

import itertools
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cassi import metrics, ops
from cassi.apps import results
from cassi.apps.inputs import name_scene
from cassi.apps.memory import peak_memory
from cassi.apps.reconstruct.parts import Parts
from cassi.apps.settings import Output, Reconstruct
from cassi.apps.snapshot import print_findings
from cassi.data.atomic import atomic_folder
from cassi.data.formats.cells import Json
from cassi.data.formats.stacks import Stack, open_stack
from cassi.data.scenes import score_level
from cassi.metrics.scores import evaluate_all
from cassi.pipeline.judge import check_snapshot
from cassi.pipeline.snapshot import Snapshot
from cassi.uncertainty import score, sparsification

Readable: TypeAlias = Stack | Tensor
"""A cube `(C, H, W)`, in a file or in memory."""
Scores = dict[str, float | None]
# Rows that are read at a time to compute spectral angles.
_ANGLE_ROWS = 64
# AUSE, the area under the sparsification error curve, sorts the values of a cube by their standard
# deviation. If a cube has more values than this, AUSE gets evenly spaced rows with about this many.
_MAX_SORTED_VALUES = 1 << 22
# Pixels along the longer side of pictures.
_MAX_PICTURE_PIXELS = 512
# Keys of a block's record that go into metrics.json.
_BLOCK_NUMBERS = ("block", "lines", "seconds", "cpu_seconds", "reason")


def take_truth(settings: Reconstruct) -> tuple[Reconstruct, Stack | None]:
    """Open the truth as a file to read in parts, and return the settings without it.

    If the settings state no bands or no wavelengths, the returned settings have those of the truth.
    If the truth cannot be read in parts, or if there is no measurement, the settings are returned
    unchanged, and the second value is None.
    """
    # `open_stack` cannot use the settings `axes` and `keys`, which say how to read a file.
    is_explained = settings.axes.truth is not None or settings.keys.truth is not None
    if settings.truth is None or settings.measurement is None or is_explained:
        return settings, None
    path = Path(settings.truth)
    opened_stack = open_stack(path) if path.exists() else None
    if opened_stack is None:
        return settings, None
    stack, wavelengths = opened_stack
    system, own_wavelengths = settings.system, settings.wavelengths
    if system.get("bands") is None:
        system = system | {"bands": stack.shape[0]}
    if own_wavelengths is None and wavelengths is not None:
        own_wavelengths = list(wavelengths)
    return replace(settings, truth=None, system=system, wavelengths=own_wavelengths), stack


def finish(
    settings: Reconstruct,
    folder: Path,
    scene: Parts,
    stacks: list[Stack],
    records: list[Json],
    plan: Json,
    truth: Stack | None,
) -> float:
    """Write the cube with tables and pictures, all or none; return the relative residual.

    Args:
        settings: settings of the command.
        folder: folder of the results.
        scene: the scene, whose measurement and method are needed.
        stacks: files of the cube and, with error bars, of its standard deviations.
        records: records of all blocks.
        plan: the plan of the blocks, as it is in the journal.
        truth: the truth in a file; None if it is in memory or not known.
    """
    (stack, *bars), snapshot, camera = stacks, scene.snapshot, scene.snapshot.camera
    reference = truth if snapshot.truth is None else snapshot.truth[0]
    if reference is not None and tuple(reference.shape) != stack.shape:
        raise ValueError(f"truth: expected {stack.shape}, got {tuple(reference.shape)}")
    numbers = summarize(snapshot, records, plan)
    picture_cube = shrink(stack)
    findings = check_snapshot(snapshot, picture_cube[None], scene.reconstructor)
    numbers |= results.describe_findings(findings)
    if camera.wavelengths_error is not None:
        numbers["wavelengths_error"] = camera.wavelengths_error
    if reference is not None:
        level = None if truth is not None else snapshot.level
        numbers["metrics"] = score_bands(stack, reference, level)
    if bars:
        numbers["uncertainty"] = summarize_uncertainty(stack, bars[0], records, plan, reference)
        messages = dict.fromkeys(w for record in records for w in record["uncertainty"]["warnings"])
        uncertainty_warnings = [
            {"about": "uncertainty", "message": message} for message in messages
        ]
        numbers["warnings"] = [*numbers["warnings"], *uncertainty_warnings]
    with atomic_folder(folder) as stage:
        for cube_file in stacks:
            _link(cube_file.path, stage / cube_file.path.name)
        rows = [row for record in records for row in record["history"]]
        results.write_table(stage / "convergence.csv", rows)
        if settings.output.pictures:
            picture_truth = None if reference is None else shrink(reference)
            output = _shrink_points(settings.output, shrink_factor(stack.shape))
            name = name_scene(settings, "scene")
            wavelengths, errors = camera.wavelengths, camera.wavelengths_error
            results.save_pictures(
                stage, output, name, picture_cube, wavelengths, picture_truth, numbers
            )
            if bars:
                results.save_map(stage, shrink(bars[0]), picture_cube, wavelengths, errors=errors)
        numbers["peak_memory_bytes"] = peak_memory(snapshot.y.device)
        results.write_numbers(stage / "metrics.json", numbers)
    print(results.format_result(numbers), f"-> {folder}", sep="\n")
    print_findings(numbers)
    return float(numbers["relative_residual"])


def _link(path: Path, name: Path) -> None:
    """Give a file or a folder a second name; both names then have the same content."""
    # If a later step fails, the unfinished cube is still there under its first name.
    try:
        if path.is_dir():
            shutil.copytree(path, name, copy_function=os.link)
        else:
            os.link(path, name)
    except OSError:  # this file system has no hard links
        shutil.rmtree(name, ignore_errors=True)
        path.rename(name)


def _shrink_points(output: Output, factor: int) -> Output:
    """Divide the points of spectra by the factor by which a cube was shrunk."""
    if output.points is None or factor == 1:
        return output
    return replace(output, points=[[int(i) // factor for i in point] for point in output.points])


def summarize_uncertainty(
    cube: Stack, bars: Stack, records: list[Json], plan: Json, truth: Readable | None
) -> Json:
    """Collect the numbers of metrics.json on standard deviations, one band in memory at a time."""
    means, squares, scores = [], [], []
    for band in range(cube.shape[0]):
        x, sigma = (torch.from_numpy(read(stack, slice(band, band + 1))) for stack in (cube, bars))
        means.append(float(sigma.double().mean()))
        squares.append(float(sigma.double().square().mean()))
        if truth is not None:
            scores.append(score(x, sigma, torch.from_numpy(read(truth, slice(band, band + 1)))))
    lines = [record["lines"][1] - record["lines"][0] for record in records]
    sources = [record["uncertainty"]["sources"] for record in records]
    # Variances add up. So the squares of a block's sources are summed, times its number of lines.
    sums = {
        name: sum(n * part[name] ** 2 for n, part in zip(lines, sources, strict=True))
        for name in sources[0]
    }
    numbers: Json = {
        "mean": _mean(means),
        "rms": _mean(squares) ** 0.5,
        "sources": {name: math.sqrt(value / sum(lines)) for name, value in sums.items()},
        "shift": plan["probe"]["mask_shift"]["shift"],
        "heldout_error": plan["probe"]["heldout"],
    }
    if truth is not None:
        # Scores are means over the bands, except AUSE, which compares values of all bands.
        numbers["scores"] = {name: _mean([band[name] for band in scores]) for name in scores[0]}
        row_spacing = -(-math.prod(cube.shape) // _MAX_SORTED_VALUES)
        rows = [slice(row, row + 1) for row in range(0, cube.shape[1], row_spacing)]
        x, sigma, t = (
            torch.from_numpy(np.concatenate([read(values, rows=row) for row in rows], axis=1))
            for values in (cube, bars, truth)
        )
        numbers["scores"]["ause"] = sparsification((x - t).abs(), sigma)
    return numbers


def summarize(snapshot: Snapshot, records: list[Json], plan: Json) -> Json:
    """Collect the numbers of metrics.json from the records of the blocks."""
    y = snapshot.y
    # Σ ‖y − Ax‖² over the blocks, because the cube of the whole scene is never in memory.
    squared_residual = sum(record["misfit"] for record in records)
    device = y.device
    return {
        **{
            name: sum(part[name] for part in (plan["preparation"], *records))
            for name in ("seconds", "cpu_seconds")
        },
        "iterations": max(len(record["history"]) for record in records),
        "stopped_by": ", ".join(sorted({record["reason"] for record in records})),
        "relative_residual": (squared_residual / float(y.double().square().sum())) ** 0.5,
        "cube_shape": list(snapshot.camera.system.cube_shape),
        "measurement_shape": list(snapshot.camera.system.measurement_shape),
        "halo": plan["halo"],
        "preparation": plan["preparation"],
        "blocks": [{name: record[name] for name in _BLOCK_NUMBERS} for record in records],
        **results.environment(device, ops.backend(device)),
        "preprocessing": snapshot.corrections,
        "inputs": list(snapshot.notes),
    }


def shrink_factor(shape: tuple[int, ...]) -> int:
    """Return the side of the blocks of pixels that are averaged to one pixel of a picture."""
    return -(-max(shape[1:]) // _MAX_PICTURE_PIXELS)


def shrink(cube: Readable) -> torch.Tensor:
    """Return means over blocks of pixels, small enough for pictures: `(C, H', W')`."""
    factor = shrink_factor(tuple(cube.shape))
    planes = []
    for band in range(cube.shape[0]):
        plane = read(cube, slice(band, band + 1))[0]
        height, width = (max(1, side // factor) for side in plane.shape)
        plane = plane[: height * factor, : width * factor]
        blocks = plane.reshape(height, -1, width, plane.shape[1] // width)
        planes.append(blocks.mean(axis=(1, 3)))
    return torch.from_numpy(np.stack(planes))


def read(cube: Readable, bands: slice = slice(None), rows: slice = slice(None)) -> np.ndarray:
    """Return bands and rows of a cube as an array `(C', H', W)`."""
    if isinstance(cube, Tensor):
        return cube[bands, rows].cpu().numpy()
    return cube.read(bands, rows)


def score_bands(cube: Readable, truth: Readable, level: float | None = None) -> dict[str, Scores]:
    """Compute every metric under every preset, with one band or a few rows in memory at a time.

    The results equal those of `metrics.evaluate`, except for rounding. PSNR and SSIM are means over
    bands. RMSE and ERGAS are root mean squares over bands. SAM is a mean over pixels. Metrics of
    the user's own need the whole cube, so they are left out.

    Args:
        cube: the reconstruction `(C, H, W)`.
        truth: the true cube `(C, H, W)`.
        level: value that both cubes are divided by. None takes `cassi.data.scenes.score_level` of
            the truth.
    """
    bands = [slice(band, band + 1) for band in range(cube.shape[0])]
    if level is None:
        level = score_level(max(float(read(truth, band).max()) for band in bands))
    rows: dict[str, list[Scores]] = {name: [] for name in metrics.list_presets()}
    band_maxima = []
    for band in bands:
        x, t = (torch.from_numpy(read(c, band)) / level for c in (cube, truth))
        band_maxima.append(t.max())
        for name, scores in evaluate_all(x, t, with_user_metrics=False).items():
            rows[name].append(scores)
    angle = _spectral_angle(cube, truth)
    return {name: _join_bands(name, scores, band_maxima, angle) for name, scores in rows.items()}


def _join_bands(name: str, bands: list[Scores], band_maxima: list[Tensor], angle: float) -> Scores:
    """Return the scores of a cube from the scores of its bands.

    Args:
        name: name of the preset.
        bands: scores of each band alone.
        band_maxima: the largest value of each band of the truth.
        angle: SAM of the cube, degrees.
    """
    preset = metrics.get_preset(name)
    # A dark band that is recovered exactly has an infinite PSNR. The mean leaves such bands out,
    # unless all bands are of this kind; `metrics.psnr` does the same.
    is_lit = [
        not (top == 0 and score["psnr"] == math.inf)
        for score, top in zip(bands, band_maxima, strict=True)
    ]
    is_counted = is_lit if any(is_lit) else [True] * len(is_lit)
    counted_bands = list(itertools.compress(bands, is_counted))
    psnr_values = [score["psnr"] for score in counted_bands if score["psnr"] is not None]
    if preset.peak is None:
        # Each band was scored against its own maximum; the cube is scored against the largest one.
        peaks = [
            float(preset.prepare(t.double())) for t in itertools.compress(band_maxima, is_counted)
        ]
        largest_peak = max(peaks)
        psnr_values = [
            value + 20 * math.log10(largest_peak / peak)
            for value, peak in zip(psnr_values, peaks, strict=True)
        ]
    if preset.pool_bands:
        # The lower bound keeps the logarithm finite if every band is recovered exactly.
        psnr = -10 * math.log10(max(_mean([10 ** (-value / 10) for value in psnr_values]), 1e-300))
    else:
        psnr = _mean(psnr_values)
    ssim_values = [score["ssim"] for score in bands]
    defined_ssim = [value for value in ssim_values if value is not None]
    return {
        "psnr": psnr,
        "ssim": _mean(defined_ssim) if len(defined_ssim) == len(ssim_values) else None,
        "sam": angle,
        "rmse": math.sqrt(_mean([(score["rmse"] or 0.0) ** 2 for score in bands])),
        "ergas": math.sqrt(_mean([(score["ergas"] or 0.0) ** 2 for score in bands])),
    }


def _spectral_angle(cube: Readable, truth: Readable) -> float:
    total, height = 0.0, cube.shape[1]
    for first in range(0, height, _ANGLE_ROWS):
        rows = slice(first, min(first + _ANGLE_ROWS, height))
        x, t = (torch.from_numpy(read(c, rows=rows)) for c in (cube, truth))
        total += float(metrics.sam(x, t)) * x.shape[1]
    return total / height


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
