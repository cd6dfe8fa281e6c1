"""Estimate and score error bars, and answer questions about a scene with intervals."""

from cassi.uncertainty.answers import ANSWER_LEVELS, Answer, answer
from cassi.uncertainty.error_model import LEVELS, NORMAL
from cassi.uncertainty.estimate import Uncertainty, estimate
from cassi.uncertainty.questions import (
    Abundance,
    Area,
    ColorDifference,
    Function,
    Index,
    RegionMean,
    Target,
)
from cassi.uncertainty.regions import Region, region
from cassi.uncertainty.samples import Samples
from cassi.uncertainty.scores import score, sparsification

__all__ = [
    "ANSWER_LEVELS",
    "LEVELS",
    "NORMAL",
    "Abundance",
    "Answer",
    "Area",
    "ColorDifference",
    "Function",
    "Index",
    "Region",
    "RegionMean",
    "Samples",
    "Target",
    "Uncertainty",
    "answer",
    "estimate",
    "region",
    "score",
    "sparsification",
]
