"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from __future__ import annotations

import time

import torch

from cassi import ops
from cassi.apps.calibrate.inputs import load_frames
from cassi.apps.calibrate.results import Result, say, write_results
from cassi.apps.command import Run, choose_device, prepare_process, run_command
from cassi.apps.reconstructors import build_solver
from cassi.apps.results import environment
from cassi.apps.settings import Calibrate
from cassi.camera_search import find_camera


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
