"""One estimate of two, of plain scenes and of predictions, with the errors that both share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.fit import Fit
from cassi.calibration.parameters import PARAMETERS
from cassi.calibration.refine import Estimate
from cassi.systems import SDCassi

SHOWN, TOLD, LEAST = 2.0, 3.0, 0.1
"""Standard errors by which estimates of plain scenes and of predictions are off, and difference
steps beside: all parts of a frame share errors of the model, which the scatter between them does
not show. From scenes of CAVE's training set, `scripts/benchmarks/calibration.py --fine`."""


@dataclass(frozen=True)
class Fused:
    """The mean of two estimates.

    Attributes:
        values: of the parameters.
        errors: their standard errors; half of what the two differ by is in them.
        apart: half of what they differ by at most, in difference steps.
    """

    values: dict[str, float]
    errors: dict[str, float]
    apart: float


def fuse(
    shown: Fit, told: Estimate | None, kept: Sequence[str], keys: Sequence[str], system: SDCassi
) -> Fused:
    """Return the mean of plain scenes and predictions, weighted by their covariances.

    They err in different ways: predictions by what the reconstruction does not know, plain scenes
    by texture. In noise plain scenes are far better.

    Args:
        shown: of plain scenes, by `keys`.
        told: of predictions; None for plain scenes alone.
        kept: keys of its covariance.
        keys: of the parameters, all of them among `kept`.
        system: the nominal camera.
    """
    geometries, covariances = [shown.geometry], [widened(shown.covariance, SHOWN, keys, system)]
    if told is not None:
        index = [kept.index(key) for key in keys]
        geometries.append(told.geometry)
        covariances.append(widened(told.covariance[index][:, index], TOLD, keys, system))
    ends = [
        torch.tensor([PARAMETERS[key].read(each) for key in keys], dtype=torch.float64)
        for each in geometries
    ]
    information = [torch.linalg.inv(each.double().cpu()) for each in covariances]
    covariance = torch.linalg.inv(sum(information[1:], information[0]))
    mean = covariance @ torch.stack([a @ b for a, b in zip(information, ends, strict=True)]).sum(0)
    apart = (ends[0] - ends[-1]).abs() / 2
    errors = (covariance.diagonal() + apart.square()).sqrt().tolist()
    steps = torch.tensor([PARAMETERS[key].step(system) for key in keys], dtype=torch.float64)
    return Fused(
        dict(zip(keys, mean.tolist(), strict=True)),
        dict(zip(keys, errors, strict=True)),
        float((apart / steps).max()),
    )


def widened(covariance: Tensor, times: float, keys: Sequence[str], system: SDCassi) -> Tensor:
    """Return the covariance of estimates with the errors that all parts of a frame share."""
    steps = torch.tensor([PARAMETERS[key].step(system) for key in keys]).to(covariance)
    return times**2 * covariance + torch.diag((LEAST * steps).square())


def widened_error(error: float, key: str, system: SDCassi) -> float:
    """Return the standard error of a prediction's estimate with the errors that parts share."""
    return math.hypot(TOLD * error, LEAST * PARAMETERS[key].step(system))
