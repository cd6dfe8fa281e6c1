"""Means over regions: errors of neighbours and bands go together, so σ does not fall as 1/√n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.uncertainty.error_model import LEVELS, NORMAL, load_spread


@dataclass(frozen=True)
class Region:
    """A region's mean spectrum and how sure it is.

    Attributes:
        pixels: n, how many it has.
        mean: spectrum s, the mean of the pixels, `(B, C)`.
        std: of each band of that, `(B, C)`, in the unit of the cube.
        shape: the spectrum divided by its mean over the bands, `(B, C)`.
        shape_std: of each band of that, `(B, C)`.
    """

    pixels: int
    mean: Tensor
    std: Tensor
    shape: Tensor
    shape_std: Tensor


@torch.no_grad()
def region(result: Any, where: Any) -> Region:
    r"""Return the mean spectrum of a region, its shape, and the standard deviations of both.

    With an error z of the method in units of σ (`Uncertainty.pattern`), moved by every t,

        Var s_c = k² · mean_t (1/n · Σ_{p ∈ region} σ_c(p) z_c(p + t))²

    and likewise of the shape s_c/s̄, linear in the error: both have the correlation of errors in
    space and between bands that the method itself shows on this scene. k is the factor for so many
    pixels for which 90 % of the errors of means, of scenes apart, are within ±1.645 σ.

    Args:
        result: a `cassi.Reconstruction`, or anything with `x`, `std` and `pattern`,
            `(B, C, H, W)`.
        where: the pixels: not zero in it, `(H, W)`; or a pair of slices of rows and columns.

    Raises:
        ValueError: the region is empty, or of another size than the cube.

    >>> from types import SimpleNamespace
    >>> ones = torch.ones(1, 3, 8, 8)
    >>> found = region(SimpleNamespace(x=ones, std=ones, pattern=ones), (slice(2, 5), slice(2, 5)))
    >>> found.pixels, found.mean
    (9, tensor([[1., 1., 1.]]))
    """
    x, std, pattern = result.x, result.std, result.pattern
    height, width = x.shape[-2:]
    if isinstance(where, tuple):
        chosen = torch.zeros(height, width, dtype=torch.bool)
        chosen[where] = True
    else:
        chosen = torch.as_tensor(where)
    if tuple(chosen.shape) != (height, width):
        raise ValueError(
            f"region: expected (H, W) = {(height, width)}, or two slices, got {tuple(chosen.shape)}"
        )
    chosen = (chosen != 0).to(x.device)
    count = int(chosen.sum())
    if count == 0:
        raise ValueError("region: expected some pixels, got none")
    mean, spectrum_std, shape, shape_std = shifted_errors(x, std, pattern, chosen)
    spread = load_spread()
    return Region(
        count,
        mean,
        spectrum_std * spread.factor_of(count),
        shape,
        shape_std * spread.factor_of(count, spectra=True),
    )


@torch.no_grad()
def shifted_errors(
    x: Tensor, std: Tensor, pattern: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean, its σ, shape and its σ, each `(B, C)`, before any factor; see `region`."""
    weights = chosen.to(x.dtype) / chosen.sum()
    mean = (x * weights).sum((-2, -1))
    errors = _moved(std * weights, pattern)  # (B, C, H, W), one for each t
    brightness = mean.mean(1, keepdim=True)
    tiny = torch.finfo(x.dtype).tiny
    safe = torch.where(brightness.abs() > tiny, brightness, tiny)
    shape = mean / safe
    bent = (errors - shape[..., None, None] * errors.mean(1, keepdim=True)) / safe[..., None, None]
    return (
        mean,
        errors.square().mean((-2, -1)).sqrt(),
        shape,
        bent.square().mean((-2, -1)).sqrt(),
    )


def _moved(kernel: Tensor, pattern: Tensor) -> Tensor:
    """Return Σ_p k(p) z(p + t) for every t; what leaves on one side comes in on the other."""
    spectrum = torch.fft.rfft2(pattern) * torch.fft.rfft2(kernel).conj()
    return torch.fft.irfft2(spectrum, s=pattern.shape[-2:])


_STEPS = 50
_LEAST = 0.02  # share of the values that stay at the end of the curve


@torch.no_grad()
def score(x: Tensor, std: Tensor, truth: Tensor) -> dict[str, float]:
    r"""Compare error bars with errors, all values of a cube alike.

    Args:
        x: cube `(C, H, W)`.
        std: σ of it.
        truth: of it.

    Returns:
        `coverage/50`, `/80`, `/90`, `/95`: the share of the values whose truth is in the interval
        of that level; `width`, the mean width of the 90 % interval, 2 · 1.645 σ, in the unit of the
        cube; `nll`, the mean of ½ (e/σ)² + ln σ + ½ ln 2π; `ause`, see `sparsification`.

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
    intervals = load_spread().intervals.tolist()
    found = {
        f"coverage/{round(100 * level)}": float((ratio <= times).double().mean())
        for level, times in zip(LEVELS, intervals, strict=True)
    }
    found["width"] = float(2 * NORMAL * sigma.mean())
    likelihood = 0.5 * ratio.square() + sigma.log()
    found["nll"] = float(likelihood.mean()) + 0.5 * math.log(2 * math.pi)
    found["ause"] = sparsification(error, sigma)
    return found


def sparsification(error: Tensor, measure: Tensor) -> float:
    r"""Return the area under the sparsification error, relative to that of a constant.

    Without the share q of the values of which `measure` says that they are least sure, the rest has
    the root mean square error s(q); without those whose errors are largest it has o(q). The area
    between both, ∫ s − o dq, is divided by that of values left out by chance, ∫ s(0) − o dq: 0
    where the least sure values are the wrong ones, 1 where it tells nothing.

    Args:
        error: |e| of every value, of any shape.
        measure: larger where a value is less sure.

    Returns:
        The ratio; 0 where all errors are alike.

    Source: Ilg et al., "Uncertainty estimates and multi-hypotheses networks for optical flow",
    ECCV 2018, 4.1.
    """
    squares = error.flatten().double().square()
    by_measure = squares[measure.flatten().argsort()].cumsum(0)
    by_error = squares.sort().values.cumsum(0)
    count = len(squares)
    shares = torch.linspace(_LEAST, 1, _STEPS, dtype=torch.float64, device=squares.device)
    kept = (shares * count).long().clamp(1, count)
    curve, oracle = ((sums[kept - 1] / kept).sqrt() for sums in (by_measure, by_error))
    constant = float((oracle[-1] - oracle).mean())
    return float((curve - oracle).mean()) / constant if constant > 0 else 0.0
