"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from omegaconf import DictConfig

from cassi import ops
from cassi.apps import results as outputs
from cassi.apps.calibrate.inputs import load_frames
from cassi.apps.calibrate.results import Result, say, write_results
from cassi.apps.command import run_command
from cassi.apps.memory import keep_freed_memory
from cassi.apps.settings import check_denoiser, choose_device, whole_number
from cassi.calibration import calibrate, fit_light, refine_mask
from cassi.config import build
from cassi.solvers import Solver
from cassi.systems import SDCassi


def main() -> None:
    """Run the command."""
    run_command("cassi-calibrate", "calibrate", calibrate_camera)


def calibrate_camera(config: DictConfig) -> float:
    """Calibrate what the config names and write the results into Hydra's output folder.

    Returns:
        The relative residual with the calibrated camera, for sweeps.
    """
    from hydra.core.hydra_config import HydraConfig

    folder = Path(HydraConfig.get().runtime.output_dir).resolve()
    check_denoiser(config)
    device = choose_device(config.device)
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(whole_number("threads", config.threads, 1, 1024))
    torch.manual_seed(whole_number("seed", config.seed, 0, 2**63 - 1))
    solver: Solver = build(config.solver, prior=build(config.prior))
    if not isinstance(solver, Solver):
        raise ValueError(f"solver: expected cassi.solvers.Solver, got {type(solver).__name__}")

    problem = load_frames(config, device)
    print(*problem.notes, sep="\n")
    y = problem.frames[0].y

    def residual(camera: SDCassi) -> float:
        squares = 0.0
        for sample in y.split(1):
            history = solver.run(sample, camera).history
            if not history:
                raise ValueError("the solver diverged at its first iteration; check scale and rho")
            squares += history[-1].residual ** 2
        return float((squares / len(y)) ** 0.5)

    start = time.perf_counter()
    found = calibrate(
        problem.frames,
        problem.system,
        residual,
        radius=whole_number("radius", config.radius, 0, 20),
        degree=whole_number("degree", config.degree, 1, 5),
        gain=config.gain,
    )
    known = [fit_light(frame, found.system) for frame in problem.frames[1:]]
    system, gain = found.system, None
    if known:
        mask = refine_mask(known, system)
        offsets, detector = system.offsets, system.detector
        system = SDCassi(mask, system.bands, offsets=offsets, detector=detector, axis=system.axis)
    if config.white is not None:
        gain = known[0].level
    seconds = time.perf_counter() - start
    result = Result(config, problem.frames, problem.system, found, system, gain, seconds)
    written = write_results(
        folder,
        result,
        outputs.environment(device, ops.backend(device)) | {"inputs": problem.notes},
        problem.wavelengths,
    )
    print(say(written), f"-> {folder}", sep="\n")
    return found.stages[found.chosen].residual
