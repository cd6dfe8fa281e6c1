"""`cassi-reconstruct --info`: what will be done, how long it takes and in how much memory."""

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
from cassi.apps.memory import peak_of
from cassi.apps.reconstruct.parts import Parts
from cassi.apps.reconstruct.snapshots import find_snapshots, is_many, settings_of_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.results import peak_memory
from cassi.apps.settings import UNCERTAINTY, Reconstruct
from cassi.apps.snapshot import prepare
from cassi.data.formats import machine_memory
from cassi.methods.along_dispersion import AlongDispersion, inner_of
from cassi.pipeline.snapshot import Snapshot
from cassi.precision import resolve
from cassi.solvers import Solver
from cassi.solvers.base import Reconstructor
from cassi.systems import System

_STRIPS = (32, 32, 64)  # rows that are reconstructed; networks may want 32 at least
_FEW = 3  # iterations, where the camera cannot be cut, and for the memory
_MANY = 1000  # iterations: a method that takes more would take long for a strip too


def describe(settings: Reconstruct, recipe: Recipe, into: str) -> list[str]:
    """Return about ten lines on a reconstruction that is not done; a strip of it is."""
    many = 1
    if is_many(settings.measurement):
        snapshots, _ = find_snapshots(settings)
        many, settings = len(snapshots), settings_of_snapshot(settings, snapshots[0])
    snapshot, reconstructor = prepare(replace(settings, calibrate=False), recipe)
    bands, height, width = snapshot.camera.system.cube_shape
    nm = snapshot.camera.wavelengths
    span = "" if nm is None else f", {nm[0]:g} to {nm[-1]:g} nm"
    if snapshot.camera.wavelengths_error is not None:
        span += f" ± {max(snapshot.camera.wavelengths_error):.2g}"
    seconds, size = estimate(snapshot, reconstructor)
    times = _times(settings)
    total = seconds * times * many
    budget = settings.memory_budget
    # What Python and torch take is in use already; a cube, and what pictures need, come to it.
    memory = peak_memory(snapshot.y.device) + size
    about = f"about {memory / 2**30:.1f} GiB of {machine_memory() / 2**30:.1f} GiB"
    written = [settings.output.cube, "metrics.json", "convergence.csv"]
    written += ["rgb.png", "bands.png", "spectra.png", "spectra.csv"] * settings.output.pictures
    written += [UNCERTAINTY] * settings.uncertainty
    written += ["report.html"] * (settings.output.pictures and settings.output.report)
    device = snapshot.y.device
    threads = f", {torch.get_num_threads()} threads" * (device.type == "cpu")
    rows = {
        "snapshots": f"{many}, of which the first is {settings.measurement}" if many > 1 else None,
        "files": "; ".join(snapshot.notes) or None,
        "camera": _name_camera(snapshot.camera.system),
        "cube": f"{bands} bands of {height} x {width} pixels{span}{_say_grid(reconstructor)}",
        "method": name_method(inner_of(reconstructor)),
        "besides": ", ".join(_besides(settings)) or None,
        "device": f"{device}{threads}, {ops.backend(device)} operators, "
        f"precision=auto is {resolve('auto', device)}",
        "time": f"{_duration(total)} to reconstruct, without reading, pictures and report",
        "memory": about if budget is None else f"at most {budget}, block by block",
        "writes": f"{', '.join(written)} into {into}{'/NAME' * (many > 1)}",
    }
    if Path(into).exists() and any(os.scandir(into)):
        rows["note"] = f"{into} is not empty: files of these names are replaced"
    return [f"{name:10}{value}" for name, value in rows.items() if value is not None]


def _say_grid(reconstructor: Reconstructor) -> str:
    grid = reconstructor.grid if isinstance(reconstructor, AlongDispersion) else None
    return "" if grid is None else f", read from {len(grid.offsets)} along the dispersion"


def estimate(snapshot: Snapshot, reconstructor: Reconstructor) -> tuple[float, int]:
    """Return the seconds that a reconstruction takes, and the bytes of its tensors, about.

    Two strips of the scene are reconstructed, and the time is taken to grow by as much per row as
    between them; of a camera that cannot be cut, or a method of very many iterations, a few of
    these.
    """
    y, system = snapshot.y, snapshot.camera.system
    if system.part_axis is None or reconstructor.iterations > _MANY:
        _seconds(reconstructor, y, system, None, 1)  # loads what all need
        few = min(_FEW, reconstructor.iterations)
        seconds = _seconds(reconstructor, y, system, None, few)
        return seconds * reconstructor.iterations / few, _bytes(reconstructor, y, system, None)
    scene = Parts(snapshot, reconstructor)
    statistics = scene.statistics
    strips = [min(lines, scene.length) for lines in _STRIPS]
    # The first also loads and compiles what all need.
    _, one, other = (_seconds(reconstructor, *scene.part(0, n), statistics) for n in strips)
    per_line = max(other - one, 0.0) / max(strips[2] - strips[1], 1)
    if per_line == 0:  # so short that only its overhead is seen
        per_line = other / strips[2]
    size = _bytes(reconstructor, *scene.part(0, strips[2]), statistics) / strips[2]
    return other + per_line * (scene.length - strips[2]), math.ceil(size * scene.length)


def _seconds(
    reconstructor: Reconstructor, y: Tensor, system: System, statistics: Any, most: int = 1 << 62
) -> float:
    state, start = torch.random.get_rng_state(), time.perf_counter()
    reconstructor.run(y, system, callback=_stop_after(most), statistics=statistics)
    torch.random.set_rng_state(state)
    return time.perf_counter() - start


def _bytes(reconstructor: Reconstructor, y: Tensor, system: System, statistics: Any) -> int:
    def run() -> None:
        reconstructor.run(y, system, callback=_stop_after(_FEW), statistics=statistics)

    return peak_of(run)


def _stop_after(most: int) -> Callable[..., bool]:
    left = iter(range(most - 1))
    return lambda *_: next(left, None) is None


def name_method(reconstructor: Reconstructor) -> str:
    """Say what reconstructs: algorithm, prior and iterations, or the network."""
    if isinstance(reconstructor, Solver):
        algorithm = type(reconstructor.algorithm).__name__
        prior = type(reconstructor.prior).__name__
        return f"{algorithm} with {prior}, at most {reconstructor.iterations} iterations"
    if reconstructor.network is not None:
        network = reconstructor.network
        weights = sum(p.numel() for p in network.parameters())
        return f"network {type(network).__name__}, {weights / 1e6:.2f} million weights"
    return type(reconstructor).__name__


def _name_camera(system: System) -> str:
    """Say what the camera is, and how many of its pixels are left out."""
    good = system.good_pixels
    left_out = 0 if good is None else int((~good).sum())
    return str(system.unweighted).splitlines()[0] + f", {left_out} pixels left out" * (left_out > 0)


def _times(settings: Reconstruct) -> int:
    return 1 + (settings.heldout is not None) + settings.uncertainty


def _besides(settings: Reconstruct) -> list[str]:
    said = ["calibrates first, which takes longer than all else"] * settings.calibrate
    if settings.heldout is not None:
        said.append(f"withholds {settings.heldout} of the pixels in one more")
    if settings.uncertainty:
        said.append("estimates error bars, by one more and a part of it")
    said += ["scores against the truth"] * (settings.truth is not None)
    return said


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(seconds, 0.1):.1f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
