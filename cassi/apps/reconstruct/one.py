"""From one measurement to its cube, and the files of its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from cassi import ops
from cassi.apps import outputs
from cassi.apps.inputs import Inputs
from cassi.apps.networks import build_model, check_model
from cassi.apps.progress import Progress
from cassi.config import build
from cassi.data.atomic import atomic_folder
from cassi.data.io import write_cube
from cassi.models.inference import Inference, prepare
from cassi.models.load import Card
from cassi.solvers import Solution, Solver


class Method:
    """The solver or network of a config, made once for all measurements.

    It comes before the inputs: where a network's file says how many bands it knows, and the config
    does not, the config is told.

    Args:
        config: of the command.
        device: where networks go.

    Raises:
        OSError: a file of weights is missing.
        ValueError: what the config describes is no solver, or a network without weights.
    """

    def __init__(self, config: DictConfig, device: torch.device) -> None:
        self.config, self.node = config, config.get("model")
        self.device, self.seed = device, config.seed
        self.networks: dict[int, tuple[Inference, Card]] = {}
        if self.node is None:
            self.solver: Solver = build(config.solver, prior=build(config.prior))
            if not isinstance(self.solver, Solver):
                got = type(self.solver).__name__
                raise ValueError(f"solver: expected cassi.solvers.Solver, got {got}")
            return
        card = check_model(self.node)
        if card is not None and config.wavelengths is None and config.system.bands is None:
            config.system.bands = card.bands

    def fit(self, inputs: Inputs) -> tuple[Inputs, Any]:
        """Return the inputs, with what a network knows of them, and the solver for them.

        Raises:
            ValueError: the network does not fit the camera.
        """
        if self.node is None:
            return inputs, self.solver
        bands = inputs.system.cube_shape[0]
        if bands not in self.networks:
            torch.manual_seed(self.seed)  # random weights are those of the seed
            network, card = build_model(self.node, bands)
            ready = prepare(network, self.config.refine, str(self.config.precision))
            self.networks[bands] = ready.to(self.device), card
        solver, made = self.networks[bands]
        note = f"network: {made.name}"
        if made.wavelengths is not None:
            note += f", trained for {made.wavelengths[0]:g} to {made.wavelengths[-1]:g} nm"
        wavelengths = inputs.wavelengths or made.wavelengths
        return replace(inputs, notes=[*inputs.notes, note], wavelengths=wavelengths), solver


@dataclass(frozen=True)
class Result:
    """A cube and all that is written of it."""

    inputs: Inputs
    solution: Solution
    numbers: dict[str, Any]
    """Of metrics.json."""
    rows: list[dict[str, Any]]
    """Of convergence.csv."""


def recover(inputs: Inputs, solver: Any, seed: int, visible: bool) -> Result:
    """Run a solver or network on a measurement.

    Args:
        inputs: the measurement and its camera.
        solver: as `Method.fit` gives it.
        seed: of what the solver draws.
        visible: show a progress bar.

    Raises:
        ValueError: camera and solver do not fit, or nothing finite comes out.
    """
    torch.manual_seed(seed)
    progress = Progress(inputs, solver.iterations, visible=visible)
    with progress.bar:
        solution = solver.run(inputs.measurement, inputs.system, callback=progress, objective=True)
    return conclude(inputs, solution, progress.rows)


def conclude(inputs: Inputs, solution: Solution, rows: list[dict[str, Any]]) -> Result:
    """Put together what is written of a solution.

    Raises:
        ValueError: there is no finite cube.
    """
    if not solution.history:
        raise ValueError("the solver diverged at its first iteration; check scale, rho and sigma")
    if solution.reason == "diverged":
        print(
            "warning: stopped before values became infinite; see convergence.csv", file=sys.stderr
        )
    device = inputs.measurement.device
    numbers = outputs.summarize(inputs, solution)
    numbers |= outputs.environment(device, ops.backend(device))
    numbers |= {"preprocessing": inputs.preprocessing, "inputs": inputs.notes}
    return Result(inputs, solution, numbers, rows)


def write_results(folder: Path, config: DictConfig, result: Result) -> None:
    """Write cube, convergence, pictures and metrics, all or none.

    metrics.json names the files of its run: what else lies in the folder is not touched.
    """
    inputs = result.inputs
    cube = result.solution.x[0].cpu()
    truth = None if inputs.truth is None else inputs.truth[0]
    with atomic_folder(folder) as stage:
        write_cube(stage / config.output.cube, cube, inputs.wavelengths)
        outputs.write_table(stage / "convergence.csv", result.rows)
        if config.output.pictures:
            outputs.save_pictures(stage, config.output, cube, inputs.wavelengths, truth)
        if config.output.pictures and config.output.report:
            name = Path(str(config.truth or config.measurement or "bundled scene")).stem
            page, numbers = stage / "report.html", result.numbers
            outputs.save_report(page, config.output, name, cube, inputs.wavelengths, truth, numbers)
        files = sorted(file.name for file in stage.iterdir())
        outputs.write_json(stage / "metrics.json", result.numbers | {"files": files})
