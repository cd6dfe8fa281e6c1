"""`cassi-reconstruct --info`: describe a reconstruction, with estimates of time and memory."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.memory import peak_memory, peak_of
from cassi.apps.reconstruct.parts import Parts
from cassi.apps.reconstruct.snapshots import find_snapshots, is_many, settings_of_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.settings import UNCERTAINTY, Reconstruct
from cassi.apps.snapshot import prepare
from cassi.data.formats import machine_memory
from cassi.methods.along_dispersion import AlongDispersion, without_grid
from cassi.pipeline.snapshot import Snapshot
from cassi.precision import resolve
from cassi.solvers import Solver
from cassi.solvers.base import Reconstructor
from cassi.systems import System

# Rows of the three strips that are reconstructed to measure the time. The first strip is a warm-up,
# which loads and compiles. The other two are timed. Networks may need 32 rows at least.
_STRIP_ROWS = (32, 32, 64)
# Iterations that are run to measure the memory, and also the time if no strip is reconstructed.
# More iterations average out more of the noise in the time, and take longer.
_PROBE_ITERATIONS = 3
# A method with more iterations would take long even on a strip. So only `_PROBE_ITERATIONS` of its
# iterations are run, on the whole scene.
_MAX_STRIP_ITERATIONS = 1000


def describe(settings: Reconstruct, recipe: Recipe, output_folder: str) -> list[str]:
    """Return about ten lines that describe a reconstruction; a trial gives time and memory.

    Args:
        settings: settings of the command.
        recipe: recipe of the method that the settings name.
        output_folder: folder into which the command would write, as the user gave it.
    """
    n_snapshots = 1
    if is_many(settings.measurement):
        snapshots, _ = find_snapshots(settings)
        n_snapshots, settings = len(snapshots), settings_of_snapshot(settings, snapshots[0])
    snapshot, reconstructor = prepare(replace(settings, calibrate=False), recipe)
    bands, height, width = snapshot.camera.system.cube_shape
    wavelengths = snapshot.camera.wavelengths
    span = "" if wavelengths is None else f", {wavelengths[0]:g} to {wavelengths[-1]:g} nm"
    if snapshot.camera.wavelengths_error is not None:
        span += f" ± {max(snapshot.camera.wavelengths_error):.2g}"
    seconds, tensor_bytes = estimate(snapshot, reconstructor)
    n_reconstructions = _count_reconstructions(settings)
    total = seconds * n_reconstructions * n_snapshots
    budget = settings.memory_budget
    # The peak so far includes Python, torch and the snapshot. The tensors of the run come on top.
    memory = peak_memory(snapshot.y.device) + tensor_bytes
    memory_text = f"about {memory / 2**30:.1f} GiB of {machine_memory() / 2**30:.1f} GiB"
    file_names = [settings.output.cube, "metrics.json", "convergence.csv"]
    file_names += ["rgb.png", "bands.png", "spectra.png", "spectra.csv"] * settings.output.pictures
    file_names += [UNCERTAINTY] * settings.has_error_bars
    file_names += ["sample_00.tif, …"] * (settings.samples > 0)
    file_names += ["answers.csv"] * (settings.answers is not None)
    file_names += ["report.html"] * (settings.output.pictures and settings.output.report)
    device = snapshot.y.device
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    first = f"{n_snapshots}, of which the first is {settings.measurement}"
    subfolder = "/NAME" if n_snapshots > 1 else ""
    rows = {
        "snapshots": first if n_snapshots > 1 else None,
        "files": "; ".join(snapshot.notes) or None,
        "camera": _describe_camera(snapshot.camera.system),
        "cube": f"{bands} bands of {height} x {width} pixels{span}{_describe_grid(reconstructor)}",
        "method": name_method(without_grid(reconstructor)),
        "besides": ", ".join(_describe_extra_steps(settings)) or None,
        "device": f"{device}{threads}, {ops.backend(device)} operators, "
        f"precision=auto is {resolve('auto', device)}",
        "time": f"{_format_duration(total)} to reconstruct, without reading, pictures and report",
        "memory": memory_text if budget is None else f"at most {budget}, block by block",
        "writes": f"{', '.join(file_names)} into {output_folder}{subfolder}",
    }
    if Path(output_folder).exists() and any(os.scandir(output_folder)):
        rows["note"] = f"{output_folder} is not empty: files of these names are replaced"
    return [f"{name:10}{value}" for name, value in rows.items() if value is not None]


def _describe_grid(reconstructor: Reconstructor) -> str:
    grid = reconstructor.grid if isinstance(reconstructor, AlongDispersion) else None
    return "" if grid is None else f", interpolated from {len(grid.offsets)} along the dispersion"


def estimate(snapshot: Snapshot, reconstructor: Reconstructor) -> tuple[float, int]:
    """Estimate the seconds of a reconstruction and the bytes of its tensors.

    After a warm-up, a strip of 32 rows and one of 64 rows are reconstructed. The difference of
    their times, per row, is extrapolated to the whole scene. If the camera cannot be cut into
    strips, or if the method takes more than 1000 iterations, a few iterations of the whole scene
    are measured instead.

    Returns:
        Seconds of one reconstruction, and bytes of its tensors at their peak.
    """
    y, system = snapshot.y, snapshot.camera.system
    if system.part_axis is None or reconstructor.iterations > _MAX_STRIP_ITERATIONS:
        # The first run also loads and compiles, so its time does not count.
        _measure_seconds(reconstructor, y, system, None, 1)
        n_iterations = min(_PROBE_ITERATIONS, reconstructor.iterations)
        seconds = _measure_seconds(reconstructor, y, system, None, n_iterations)
        tensor_bytes = _measure_bytes(reconstructor, y, system, None)
        return seconds * reconstructor.iterations / n_iterations, tensor_bytes
    scene = Parts(snapshot, reconstructor)
    statistics = scene.statistics
    strips = [min(lines, scene.length) for lines in _STRIP_ROWS]
    # The first of the three strips is the warm-up.
    _, short_seconds, long_seconds = (
        _measure_seconds(reconstructor, *scene.part(0, n), statistics) for n in strips
    )
    per_line = max(long_seconds - short_seconds, 0.0) / max(strips[2] - strips[1], 1)
    if per_line == 0:
        # Overhead hid the difference of the two strips. The longer strip gives an upper bound.
        per_line = long_seconds / strips[2]
    strip_bytes = _measure_bytes(reconstructor, *scene.part(0, strips[2]), statistics)
    seconds = long_seconds + per_line * (scene.length - strips[2])
    return seconds, math.ceil(strip_bytes / strips[2] * scene.length)


def _measure_seconds(
    reconstructor: Reconstructor,
    y: Tensor,
    system: System,
    statistics: Any,
    max_iterations: int = 1 << 62,
) -> float:
    # The state of the generator is restored, so that every run draws the same random numbers and
    # does the same work.
    state, started_at = torch.random.get_rng_state(), time.perf_counter()
    reconstructor.run(y, system, callback=_stop_after(max_iterations), statistics=statistics)
    torch.random.set_rng_state(state)
    return time.perf_counter() - started_at


def _measure_bytes(reconstructor: Reconstructor, y: Tensor, system: System, statistics: Any) -> int:
    def run() -> None:
        reconstructor.run(y, system, callback=_stop_after(_PROBE_ITERATIONS), statistics=statistics)

    return peak_of(run)


def _stop_after(max_iterations: int) -> Callable[..., bool]:
    """Return a callback that stops a solver after so many iterations; True stops it."""
    calls = iter(range(max_iterations - 1))
    return lambda *_: next(calls, None) is None


def name_method(reconstructor: Reconstructor) -> str:
    """Describe a method in a few words: algorithm, prior and iterations, or the network."""
    if isinstance(reconstructor, Solver):
        algorithm = type(reconstructor.algorithm).__name__
        prior = type(reconstructor.prior).__name__
        return f"{algorithm} with {prior}, at most {reconstructor.iterations} iterations"
    if reconstructor.network is not None:
        network = reconstructor.network
        weights = sum(p.numel() for p in network.parameters())
        return f"network {type(network).__name__}, {weights / 1e6:.2f} million weights"
    return type(reconstructor).__name__


def _describe_camera(system: System) -> str:
    """Return the kind of the camera and the number of its bad pixels."""
    good_pixels = system.good_pixels
    n_bad = 0 if good_pixels is None else int((~good_pixels).sum())
    kind = str(system.unweighted).splitlines()[0]
    return f"{kind}, {n_bad} pixels left out" if n_bad else kind


def _count_reconstructions(settings: Reconstruct) -> int:
    # The held-out error and the error bars each take about as long as one more reconstruction.
    return 1 + (settings.heldout is not None) + settings.has_error_bars


def _describe_extra_steps(settings: Reconstruct) -> list[str]:
    steps = []
    if settings.calibrate:
        steps.append("calibrates first, which takes longer than all else")
    if settings.heldout is not None:
        steps.append(f"withholds {settings.heldout} of the pixels in one more reconstruction")
    if settings.has_error_bars:
        steps.append("estimates error bars, by one more reconstruction and a part of one")
    if settings.truth is not None:
        steps.append("scores against the truth")
    return steps


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(seconds, 0.1):.1f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"
