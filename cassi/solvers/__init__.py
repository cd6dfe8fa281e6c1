"""Iterative reconstruction: algorithms as pure steps, one loop, and their binding to a prior."""

from cassi.solvers.admm import ADMM
from cassi.solvers.base import (
    Algorithm,
    LinearSystem,
    Prior,
    Proximal,
    Remembering,
    State,
    begin,
    softened_inverse,
)
from cassi.solvers.dip import DIP
from cassi.solvers.fista import FISTA
from cassi.solvers.gap import GAP
from cassi.solvers.hqs import HQS
from cassi.solvers.level import signal_level
from cassi.solvers.loop import Iteration, Solution, iterate
from cassi.solvers.noise import noise_level
from cassi.solvers.phases import Phases, Steps
from cassi.solvers.refine import refine
from cassi.solvers.schedules import Constant, Geometric, Linear
from cassi.solvers.softening import relative_noise, softening
from cassi.solvers.solver import Solver, solve
from cassi.solvers.twist import TwIST

__all__ = [
    "ADMM",
    "DIP",
    "FISTA",
    "GAP",
    "HQS",
    "Algorithm",
    "Constant",
    "Geometric",
    "Iteration",
    "Linear",
    "LinearSystem",
    "Phases",
    "Prior",
    "Proximal",
    "Remembering",
    "Solution",
    "Solver",
    "State",
    "Steps",
    "TwIST",
    "begin",
    "iterate",
    "noise_level",
    "refine",
    "relative_noise",
    "signal_level",
    "softened_inverse",
    "softening",
    "solve",
]
