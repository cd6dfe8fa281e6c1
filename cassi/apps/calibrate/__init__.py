"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from cassi import ops
from cassi.apps.calibrate.inputs import load_frames
from cassi.apps.calibrate.results import Result, say, write_results
from cassi.apps.command import Run, choose_device, prepare_process, run_command
from cassi.apps.reconstructors import build_solver
from cassi.apps.results import environment
from cassi.apps.settings import Calibrate
from cassi.calibration import Calibration, Frame, calibrate, fit_light, refine_mask
from cassi.calibration.mask import Light
from cassi.solvers.base import Reconstructor
from cassi.systems import SDCassi


def main() -> None:
    """Run the command."""
    run_command("cassi-calibrate", Calibrate, calibrate_camera)


def calibrate_camera(settings: Calibrate, run: Run) -> float:
    """Calibrate what the settings name and write the results.

    Returns:
        The relative residual with the calibrated camera, for sweeps.
    """
    device = choose_device(settings.device)
    prepare_process(settings)
    torch.manual_seed(settings.seed)
    solver = build_solver(settings)
    problem = load_frames(settings, device)
    print(*problem.notes, sep="\n")
    start = time.perf_counter()
    numbers = {"radius": settings.radius, "degree": settings.degree, "gain": settings.gain}
    found, system, lights = find_camera(problem.frames, problem.system, solver, **numbers)
    gain = None if settings.white is None else lights[0].level
    seconds = time.perf_counter() - start
    result = Result(settings, problem.frames, problem.system, found, system, gain, seconds)
    more = environment(device, ops.backend(device)) | {"inputs": problem.notes}
    written = write_results(run.folder, result, more, problem.wavelengths)
    print(say(written), f"-> {run.folder}", sep="\n")
    return found.stages[found.chosen].residual


def find_camera(
    frames: Sequence[Frame], nominal: SDCassi, reconstructor: Reconstructor, **settings: Any
) -> tuple[Calibration, SDCassi, list[Light]]:
    """Calibrate a camera, and refine its mask where there are frames of known light.

    Args:
        frames: the snapshots, then those of known light.
        nominal: the camera as it is thought to be.
        reconstructor: whose residual says which model to believe.
        settings: `radius`, `degree` and `gain` of `cassi.calibration.calibrate`.

    Returns:
        What was found, the camera, and the spectra of the frames of known light.
    """
    y = frames[0].y

    def residual(camera: SDCassi) -> float:
        squares = 0.0
        for sample in y.split(1):
            history = reconstructor.run(sample, camera).checked().history
            squares += history[-1].residual ** 2
        return float((squares / len(y)) ** 0.5)

    found = calibrate(frames, nominal, residual, **settings)
    system = found.system
    lights = [fit_light(frame, system) for frame in frames[1:]]
    if lights:
        mask, offsets = refine_mask(lights, system), system.offsets
        system = SDCassi(
            mask, system.bands, offsets=offsets, detector=system.detector, axis=system.axis
        )
    return found, system, lights
