"""Estimate and score error bars: σ of the values of a cube, and σ of regional means."""

from cassi.uncertainty.error_model import LEVELS, NORMAL
from cassi.uncertainty.estimate import Uncertainty, estimate
from cassi.uncertainty.regions import Region, region
from cassi.uncertainty.scores import score, sparsification

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
