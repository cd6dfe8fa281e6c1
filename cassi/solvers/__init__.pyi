from .admm import ADMM
from .base import (
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
from .fista import FISTA
from .function import Function
from .gap import GAP
from .hqs import HQS
from .linear_system import LinearSystem, damped_inverse
from .loop import iterate
from .refinement import refine
from .schedules import Constant, Geometric, Linear, Phases, Steps, Timed
from .solver import Solver, solve
from .statistics import (
    AboveNoise,
    Statistics,
    largest_eigenvalue,
    noise_damping,
    noise_level,
    relative_noise,
    signal_level,
)
from .twist import TwIST
from .untrained import Untrained

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
