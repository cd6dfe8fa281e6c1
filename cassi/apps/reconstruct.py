"""cassi-reconstruct: one measurement and one mask in, a cube, pictures and numbers out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from cassi import ops
from cassi.apps import outputs
from cassi.apps.command import run_command
from cassi.apps.inputs import Inputs, load_inputs
from cassi.apps.memory import keep_freed_memory
from cassi.apps.networks import (
    NetworkSolver,
    build_model,
    check_model,
    rewrite_model_path,
    store_models,
)
from cassi.apps.progress import Progress
from cassi.apps.settings import check_denoiser, check_keys, choose_device, whole_number
from cassi.config import build, plain
from cassi.data.atomic import atomic_folder
from cassi.data.io import WRITE_SUFFIXES, write_cube
from cassi.solvers import Solution, Solver


def main() -> None:
    """Run the command."""
    store_models()
    sys.argv[1:] = rewrite_model_path(sys.argv[1:])
    run_command("cassi-reconstruct", "reconstruct", reconstruct)


def reconstruct(config: DictConfig) -> float:
    """Reconstruct what the config names and write the results into Hydra's output folder.

    Returns:
        The relative residual, for sweeps that minimise something.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    check_keys(config)
    check_denoiser(config)
    _check_output(config)
    device = choose_device(config.device)
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(whole_number("threads", config.threads, 1, 1024))
    torch.manual_seed(whole_number("seed", config.seed, 0, 2**63 - 1))

    inputs, solver = load_problem(config, device)
    for note in inputs.notes:
        print(note)
    progress = Progress(inputs, solver.iterations, visible=config.output.progress)
    with progress.bar:
        solution = solver.run(inputs.measurement, inputs.system, callback=progress, objective=True)
    if not solution.history:
        raise ValueError("the solver diverged at its first iteration; check scale, rho and sigma")
    if solution.reason == "diverged":
        print(
            "warning: stopped before values became infinite; see convergence.csv", file=sys.stderr
        )
    results = outputs.summarize(inputs, solution)
    results |= outputs.environment(device, ops.backend(device))
    results |= {"preprocessing": inputs.preprocessing, "inputs": inputs.notes}
    write_results(folder, config, inputs, solution, results, progress.rows)
    print(outputs.one_line(results), f"-> {folder}", sep="\n")
    return float(results["relative_residual"])


def load_problem(config: DictConfig, device: torch.device) -> tuple[Inputs, Any]:
    """Read what is to be reconstructed, and make the solver or network that does it.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: files, camera, solver and network do not fit.
    """
    node = config.get("model")
    if node is None:
        solver: Solver = build(config.solver, prior=build(config.prior))
        if not isinstance(solver, Solver):
            raise ValueError(f"solver: expected cassi.solvers.Solver, got {type(solver).__name__}")
        return load_inputs(config, device), solver
    card = check_model(node)
    if card is not None and config.wavelengths is None and config.system.bands is None:
        config.system.bands = card.bands
    inputs = load_inputs(config, device)
    network, made = build_model(node, inputs.system.cube_shape[0])
    note = f"network: {made.name}"
    if made.wavelengths is not None:
        note += f", trained for {made.wavelengths[0]:g} to {made.wavelengths[-1]:g} nm"
    wavelengths = inputs.wavelengths or made.wavelengths
    inputs = replace(inputs, notes=[*inputs.notes, note], wavelengths=wavelengths)
    return inputs, NetworkSolver(network.to(device))


def write_results(
    folder: Path,
    config: DictConfig,
    inputs: Inputs,
    solution: Solution,
    results: dict[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    """Write cube, convergence, pictures and metrics, all or none.

    metrics.json names the files of its run: what else lies in the folder is not touched.
    """
    cube = solution.x[0].cpu()
    truth = None if inputs.truth is None else inputs.truth[0]
    with atomic_folder(folder) as stage:
        write_cube(stage / config.output.cube, cube, inputs.wavelengths)
        outputs.write_table(stage / "convergence.csv", rows)
        if config.output.pictures:
            outputs.save_pictures(stage, config.output, cube, inputs.wavelengths, truth)
        if config.output.pictures and config.output.report:
            name = Path(str(config.truth or config.measurement or "bundled scene")).stem
            outputs.save_report(
                stage / "report.html", config.output, name, cube, inputs.wavelengths, truth, results
            )
        results = results | {"files": sorted(file.name for file in stage.iterdir())}
        outputs.write_json(stage / "metrics.json", results)


def _check_output(config: DictConfig) -> None:
    # Before minutes of work, not after them.
    name = Path(str(config.output.cube))
    if name.suffix.lower() not in WRITE_SUFFIXES or name.name != str(name):
        raise ValueError(
            "output.cube: expected a file name without a folder that ends in "
            f"{' '.join(WRITE_SUFFIXES)}, got {name}"
        )
    points = plain(config.output.points)
    pairs = points if isinstance(points, list) else [points]
    if points is not None and not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"output.points: expected [[row, column], …], got {points!r}")


if __name__ == "__main__":
    main()
