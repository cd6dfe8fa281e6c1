"""Iterative reconstruction: algorithms as pure steps, one loop, and their binding to a prior."""

from cassi.solvers.admm import ADMM
from cassi.solvers.base import Algorithm, LinearSystem, Prior, Remembering, State, begin
from cassi.solvers.gap import GAP
from cassi.solvers.level import signal_level
from cassi.solvers.loop import Iteration, Solution, iterate
from cassi.solvers.schedules import Constant, Geometric
from cassi.solvers.solver import Solver, solve

__all__ = [
    "ADMM",
    "GAP",
    "Algorithm",
    "Constant",
    "Geometric",
    "Iteration",
    "LinearSystem",
    "Prior",
    "Remembering",
    "Solution",
    "Solver",
    "State",
    "begin",
    "iterate",
    "signal_level",
    "solve",
]
