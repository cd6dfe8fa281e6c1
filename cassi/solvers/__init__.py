"""Iterative reconstruction: algorithms as pure steps, one loop, and their binding to a prior."""

from cassi.solvers.admm import ADMM
from cassi.solvers.base import (
    Algorithm,
    Callback,
    Iteration,
    Prior,
    Proximal,
    Reconstructor,
    Remembering,
    Solution,
    State,
    begin,
)
from cassi.solvers.fista import FISTA
from cassi.solvers.function import Function
from cassi.solvers.gap import GAP
from cassi.solvers.hqs import HQS
from cassi.solvers.linear_system import LinearSystem, damped_inverse
from cassi.solvers.loop import iterate
from cassi.solvers.refine import refine
from cassi.solvers.schedules import Constant, Geometric, Linear, Phases, Steps, Timed
from cassi.solvers.solver import Solver, solve
from cassi.solvers.statistics import (
    AboveNoise,
    Statistics,
    largest_eigenvalue,
    noise_damping,
    noise_level,
    relative_noise,
    signal_level,
)
from cassi.solvers.twist import TwIST
from cassi.solvers.untrained import Untrained

__all__ = [
    "ADMM",
    "FISTA",
    "GAP",
    "HQS",
    "AboveNoise",
    "Algorithm",
    "Callback",
    "Constant",
    "Function",
    "Geometric",
    "Iteration",
    "Linear",
    "LinearSystem",
    "Phases",
    "Prior",
    "Proximal",
    "Reconstructor",
    "Remembering",
    "Solution",
    "Solver",
    "State",
    "Statistics",
    "Steps",
    "Timed",
    "TwIST",
    "Untrained",
    "begin",
    "damped_inverse",
    "iterate",
    "largest_eigenvalue",
    "noise_damping",
    "noise_level",
    "refine",
    "relative_noise",
    "signal_level",
    "solve",
]
