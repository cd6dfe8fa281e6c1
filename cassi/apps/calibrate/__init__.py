"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.calibrate.inputs import load_frames
from cassi.apps.calibrate.results import Result, say, write_results
from cassi.apps.command import Run, choose_device, prepare_process, run_command
from cassi.apps.reconstructors import build_solver
from cassi.apps.results import environment
from cassi.apps.settings import Calibrate
from cassi.calibration import (
    Calibration,
    Frame,
    Prepare,
    Reconstruct,
    calibrate,
    fit_light,
    refine_mask,
)
from cassi.calibration.geometry import placed_camera
from cassi.calibration.mask import Light
from cassi.solvers import Solver
from cassi.solvers.schedules import as_schedule
from cassi.solvers.statistics import relative_noise
from cassi.systems import SDCassi, TiltedCassi


def main() -> None:
    """Run the command."""
    run_command("cassi-calibrate", Calibrate, calibrate_camera)


def calibrate_camera(settings: Calibrate, run: Run) -> float:
    """Calibrate what the settings name and write the results.

    Returns:
        The held-out error with the calibrated camera, for sweeps.
    """
    device = choose_device(settings.device)
    prepare_process(settings)
    torch.manual_seed(settings.seed)
    solver = build_solver(settings)
    problem = load_frames(settings, device)
    print(*problem.notes, sep="\n")
    start = time.perf_counter()
    names = ("radius", "degree", "gain", "seed")
    numbers = {name: getattr(settings, name) for name in names}
    found, system, lights = find_camera(problem.frames, problem.system, solver, **numbers)
    gain = None if settings.white is None else lights[0].level
    seconds = time.perf_counter() - start
    result = Result(settings, problem.frames, problem.system, found, system, gain, seconds)
    more = environment(device, ops.backend(device)) | {"inputs": problem.notes}
    written = write_results(run.folder, result, more, problem.wavelengths)
    print(say(written), f"-> {run.folder}", sep="\n")
    return found.after


def find_camera(
    frames: Sequence[Frame], nominal: SDCassi, solver: Solver, **settings: Any
) -> tuple[Calibration, SDCassi | TiltedCassi, list[Light]]:
    """Calibrate a camera, and refine its mask where there are frames of known light.

    Args:
        frames: the snapshots, then those of known light.
        nominal: the camera as it is thought to be.
        solver: that predicts pixels which were withheld from it.
        settings: `radius`, `degree`, `gain` and `seed` of `cassi.calibration.calibrate`.

    Returns:
        What was found, the camera, and the spectra of the frames of known light.
    """
    found = calibrate(frames, nominal, by_solver(solver), **settings)
    system = found.system
    lights = [fit_light(frame, system) for frame in frames[1:]]
    if lights:
        across = system.across if isinstance(system, TiltedCassi) else None
        system = placed_camera(nominal, refine_mask(lights, system), system.offsets, across)
    return found, system, lights


_FIRST, _MORE = 80, 30
"""Iterations from nothing, and on from a cube of nearly the same camera. Fifteen leave a cube that
has not adapted to the camera, and the shift is off by 0.03 pixels; 60 give what 30 do."""
_RESUMED = 0.45  # of the schedule: where the strength of the prior begins again


def by_solver(solver: Solver) -> Prepare:
    """Return a solver as a calibration takes it: short runs, on from a cube where there is one."""
    strength, total = as_schedule(solver.sigma), solver.iterations

    def resumed(i: int, n: int) -> Any:
        done = _RESUMED + (1 - _RESUMED) * (i + 1) / n
        return strength(round(done * (total - 1)), total)

    def prepare(y: Tensor, camera: SDCassi) -> Reconstruct:
        noise = relative_noise(y, camera, solver.noise).mean().item()
        settled = replace(solver, noise=noise, consistent=False)
        first = replace(settled, iterations=min(_FIRST, total))
        more = replace(settled, iterations=min(_MORE, total), sigma=resumed)

        def reconstruct(y: Tensor, camera: Any, start: Tensor | None) -> Tensor:
            chosen = first if start is None else more
            return chosen.run(y, camera, x0=start).checked().x

        return reconstruct

    return prepare
