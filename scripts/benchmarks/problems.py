"""Problems to reconstruct, as cassi-reconstruct would load them, with the solver it would use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hydra import compose, initialize_config_module
from torch import Tensor

from cassi.apps.inputs import load_inputs
from cassi.config import build
from cassi.solvers import Solver
from cassi.systems import System

CAVE = [f"scene{index:02d}" for index in range(1, 6)]
TSA = [f"scene{index}" for index in range(1, 6)]


@dataclass(frozen=True)
class Problem:
    """A measurement, the camera that made it, the true cube if it is known, and a solver."""

    config: Any
    measurement: Tensor
    system: System
    truth: Tensor
    solver: Solver


def load_problem(*overrides: str) -> Problem:
    """Load what `cassi-reconstruct OVERRIDES` would reconstruct, on the CPU.

    `truth` is an empty tensor where there is none.
    """
    with initialize_config_module("cassi.conf", version_base="1.3"):
        config = compose("reconstruct", list(overrides))
    inputs = load_inputs(config, torch.device("cpu"))
    truth = inputs.truth if inputs.truth is not None else torch.empty(0)
    solver = build(config.solver, prior=build(config.prior))
    return Problem(config, inputs.measurement, inputs.system, truth, solver)
