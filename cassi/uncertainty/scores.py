"""Quality of error bars: coverage, width, likelihood, and agreement of large σ and large errors."""

import math

import torch
from torch import Tensor

from cassi.uncertainty.error_model import LEVELS, NORMAL, load_error_model

# Number of points of the sparsification curve.
_STEPS = 50
# Least share of the values that is left in a point of this curve. The mean error of fewer values
# depends on single values.
_MIN_SHARE = 0.02


@torch.no_grad()
def score(x: Tensor, std: Tensor, truth: Tensor) -> dict[str, float]:
    r"""Compare error bars with errors, over all values of a cube.

    Args:
        x: cube `(C, H, W)`.
        std: σ, `(C, H, W)`, > 0, in the unit of the cube.
        truth: the true cube, `(C, H, W)`.

    Returns:
        `coverage/50`, `/80`, `/90`, `/95`: share of the values whose truth is in the interval of
        50 %, 80 %, 90 % and 95 %. `width`: mean width of the 90 % interval, 2 · 1.645 σ, in the
        unit of the cube. `nll`: mean of ½ (e/σ)² + ln σ + ½ ln 2π. `ause`: see `sparsification`.

    Raises:
        ValueError: shapes differ, or a σ is not > 0.
    """
    if not x.shape == std.shape == truth.shape:
        shapes = ", ".join(str(tuple(value.shape)) for value in (x, std, truth))
        raise ValueError(f"score: expected three cubes of one shape, got {shapes}")
    if not bool((std > 0).all()):
        raise ValueError("score: expected standard deviations > 0")
    error = (x.double() - truth.double()).abs()
    sigma = std.double()
    ratio = error / sigma
    intervals = load_error_model().intervals.tolist()
    scores = {
        f"coverage/{round(100 * level)}": float((ratio <= interval).double().mean())
        for level, interval in zip(LEVELS, intervals, strict=True)
    }
    scores["width"] = float(2 * NORMAL * sigma.mean())
    likelihood = 0.5 * ratio.square() + sigma.log()
    scores["nll"] = float(likelihood.mean()) + 0.5 * math.log(2 * math.pi)
    scores["ause"] = sparsification(error, sigma)
    return scores


def sparsification(error: Tensor, measure: Tensor) -> float:
    r"""Return the area under the sparsification error, relative to that of a constant measure.

        AUSE = ∫ s − o dq / ∫ s(0) − o dq

    s(q) is the root mean square error if the share q of the values with the largest `measure` is
    left out. o(q) is the root mean square error if the share q with the largest errors is left out.
    A result of 0 means that the measure sorts the values as their errors do. A constant measure has
    the result 1.

    Args:
        error: |e| of every value, of any shape.
        measure: σ or any other measure, of the same shape; larger where a value is less certain.

    Returns:
        The ratio; 0 if all errors are equal.

    Source: Ilg et al., "Uncertainty estimates and multi-hypotheses networks for optical flow",
    ECCV 2018, 4.1.
    """
    squares = error.flatten().double().square()
    by_measure = squares[measure.flatten().argsort()].cumsum(0)
    by_error = squares.sort().values.cumsum(0)
    count = len(squares)
    shares = torch.linspace(_MIN_SHARE, 1, _STEPS, dtype=torch.float64, device=squares.device)
    counts = (shares * count).long().clamp(1, count)
    curve, oracle = ((sums[counts - 1] / counts).sqrt() for sums in (by_measure, by_error))
    constant = float((oracle[-1] - oracle).mean())
    return float((curve - oracle).mean()) / constant if constant > 0 else 0.0
