"""Problems to reconstruct, as cassi-reconstruct would load them, with the solver it would use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.apps.inputs import load_inputs
from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.apps.settings import Reconstruct
from cassi.solvers import Solver
from cassi.systems import System


@dataclass(frozen=True)
class Problem:
    """A measurement, the camera that made it, the true cube if it is known, and a solver."""

    settings: Reconstruct
    measurement: Tensor
    system: System
    truth: Tensor
    solver: Solver


def load_problem(*overrides: str) -> Problem:
    """Load what `cassi-reconstruct OVERRIDES` would reconstruct, on the CPU.

    `truth` is an empty tensor where there is none.
    """
    settings = compose_settings(overrides)
    inputs = load_inputs(settings, torch.device("cpu"))
    truth = inputs.truth if inputs.truth is not None else torch.empty(0)
    solver = build_solver(settings)
    return Problem(settings, inputs.measurement, inputs.system, truth, solver)
