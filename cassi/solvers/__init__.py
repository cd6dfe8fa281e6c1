"""Iterative reconstruction: algorithms as pure steps, one loop, and their binding to a prior."""

from cassi.solvers.admm import ADMM
from cassi.solvers.base import Algorithm, Iteration, LinearSystem, Prior, Solution, State, iterate
from cassi.solvers.gap import GAP
from cassi.solvers.schedules import Constant, Geometric
from cassi.solvers.solver import Solver, signal_level, solve

__all__ = [
    "ADMM",
    "GAP",
    "Algorithm",
    "Constant",
    "Geometric",
    "Iteration",
    "LinearSystem",
    "Prior",
    "Solution",
    "Solver",
    "State",
    "iterate",
    "signal_level",
    "solve",
]
