"""How sure is a cube: the standard deviation of every value, and of what is read off it."""

from cassi.uncertainty.error_model import LEVELS, NORMAL
from cassi.uncertainty.estimate import Uncertainty, estimate
from cassi.uncertainty.regions import Region, region, score, sparsification

__all__ = [
    "LEVELS",
    "NORMAL",
    "Region",
    "Uncertainty",
    "estimate",
    "region",
    "score",
    "sparsification",
]
