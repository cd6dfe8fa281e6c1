"""One estimate of two, of plain scenes and of predictions, with the errors that both share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration.fit import Estimate, Fit, PlainScenes
from cassi.calibration.geometry import Geometry
from cassi.calibration.parameters import PARAMETERS, changed
from cassi.calibration.refine import Step
from cassi.systems import SDCassi

PLAIN, PREDICTED, LEAST = 2.0, 3.0, 0.1
"""Standard errors by which estimates of plain scenes and of predictions are off, and difference
steps beside: all parts of a frame share errors of the model, which the scatter between them does
not show. From scenes of CAVE's training set, `python -m scripts.benchmarks.calibration --fine`."""


@dataclass(frozen=True)
class WeightedMean:
    """The mean of two estimates.

    Attributes:
        geometry: with the means.
        errors: standard errors of these; half of what the two differ by is in them.
        apart: half of what they differ by at most, in difference steps.
    """

    geometry: Geometry
    errors: dict[str, float]
    apart: float


def weighted_mean(
    plain: Fit, predicted: Estimate | None, geometry: Geometry, system: SDCassi
) -> WeightedMean:
    """Return the mean of plain scenes and predictions, weighted by their covariances.

    They err in different ways: predictions by what the reconstruction does not know, plain scenes
    by texture. In noise plain scenes are far better.

    Args:
        plain: of plain scenes, by the parameters that the mean is taken of.
        predicted: of predictions, by these and others; None for plain scenes alone.
        geometry: what the others are.
        system: the nominal camera.
    """
    keys = plain.keys
    geometries, covariances = [plain.geometry], [widened(plain.covariance, PLAIN, keys, system)]
    if predicted is not None:
        index = [predicted.keys.index(key) for key in keys]
        geometries.append(predicted.geometry)
        covariance = predicted.covariance[index][:, index]
        covariances.append(widened(covariance, PREDICTED, keys, system))
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
    return WeightedMean(
        changed(geometry, dict(zip(keys, mean.tolist(), strict=True))),
        dict(zip(keys, errors, strict=True)),
        float((apart / steps).max()),
    )


def halfway(scenes: PlainScenes, predicted: Step, keys: Sequence[str]) -> Step:
    """Put blur and contrast in the middle between predictions and plain scenes.

    A reconstruction predicts best with less contrast than there is, the more the less it knows of
    the scene; plain scenes fit best with more, by about as much. Half of what they differ by is a
    standard error.

    Args:
        scenes: the plain scenes.
        predicted: of predictions.
        keys: of blur, contrast or both.
    """
    geometry, errors = predicted.geometry, dict(predicted.errors)
    plain = scenes.fit(geometry, keys).geometry
    for key in keys:
        ends = [PARAMETERS[key].read(each) for each in (geometry, plain)]
        geometry = changed(geometry, {key: sum(ends) / 2})
        errors[key] = math.hypot(errors[key], (ends[0] - ends[1]) / 2)
    return replace(predicted, geometry=geometry, errors=errors)


def widened(covariance: Tensor, times: float, keys: Sequence[str], system: SDCassi) -> Tensor:
    """Return the covariance of estimates with the errors that all parts of a frame share."""
    steps = torch.tensor([PARAMETERS[key].step(system) for key in keys]).to(covariance)
    return times**2 * covariance + torch.diag((LEAST * steps).square())


def widened_error(error: float, key: str, system: SDCassi) -> float:
    """Return the standard error of a prediction's estimate with the errors that parts share."""
    return math.hypot(PREDICTED * error, LEAST * PARAMETERS[key].step(system))
