"""The geometry that fits frames best, and how sure it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration.geometry import Geometry
from cassi.calibration.parameters import PARAMETERS, changed, place_of
from cassi.calibration.windows import Evidence, Frame, Windows
from cassi.systems import SDCassi

LEAST_WINDOWS = 20
"""Lit windows of a frame: fewer tell nothing."""
_LINES = 192  # of a frame's middle, to search
_SEARCHED = 64  # windows are enough to find the right pixel


@dataclass(frozen=True)
class Fit:
    """A geometry found, and how.

    Attributes:
        geometry: the best.
        keys: of the parameters that were free.
        errors: standard error of each.
        covariance: `(T, T)`.
        objectives: mean logarithm of the windows' relative residual variance: at the start, and
            after each iteration.
        windows: number of windows.
    """

    geometry: Geometry
    keys: tuple[str, ...]
    errors: list[float]
    covariance: Tensor
    objectives: list[float]
    windows: int


def fit_geometry(
    frames: Sequence[Frame],
    system: SDCassi,
    start: Geometry,
    keys: Sequence[str] | None = None,
    *,
    central: bool = False,
    iterations: int = 15,
) -> Fit:
    r"""Fit a geometry to frames by damped Gauss–Newton steps on the objective of `Windows`.

    The standard errors come from (H⁻¹ G H⁻¹) with the curvature H and the scatter G of the gradient
    between the sixteenths of the frames: what the scene does not fit is no white noise, and
    windows near each other err alike.

    Args:
        frames: of one camera.
        system: the nominal camera.
        start: where to start.
        keys: of the parameters that are free; those of the place, with as many degrees of the
            dispersion as `start` has, if None.
        central: use the middle of the frames only.
        iterations: at most this many.

    Raises:
        ValueError: the frames have too few bright windows.
    """
    parts = [Windows(frame, system, central=central) for frame in frames]
    count = sum(len(part) for part in parts)
    if count < LEAST_WINDOWS:
        raise ValueError(
            f"calibration: expected at least {LEAST_WINDOWS} lit windows of 16×16 pixels, got "
            f"{count}; take a larger or brighter frame"
        )
    keys = place_of(start) if keys is None else tuple(keys)
    steps = [PARAMETERS[key].step(system) for key in keys]
    geometry, damping = start, 1e-3
    found = [part.evidence(geometry, keys) for part in parts]
    objectives = [_mean(found)]
    for _ in range(iterations):
        curvature, gradient = _sum(found)
        diagonal = torch.diag(curvature.diagonal() * damping)
        step = -torch.linalg.solve(curvature + diagonal, gradient)
        limit = torch.tensor(steps, dtype=step.dtype) * 5
        step = step * (limit / step.abs().clamp_min(1e-30)).min().clamp_max(1)
        tried = changed(
            geometry,
            {
                key: PARAMETERS[key].read(geometry) + away
                for key, away in zip(keys, step.tolist(), strict=True)
            },
        )
        if _objective(parts, tried) < objectives[-1]:
            geometry, damping = tried, max(damping / 10, 1e-6)
            found = [part.evidence(geometry, keys) for part in parts]
            objectives.append(_mean(found))
        else:
            damping = max(damping, 1e-2) * 10
        # A thousandth of a pixel is less than any camera holds still.
        small = (step.abs() < limit / 500).all()
        if small or damping > 1e4:
            break
    covariance = _covariance(found)
    errors = covariance.diagonal().clamp_min(0).sqrt().tolist()
    return Fit(geometry, tuple(keys), errors, covariance, objectives, count)


def significant(
    frames: Sequence[Frame], system: SDCassi, fit: Fit, keys: Sequence[str], least: float
) -> list[str]:
    """Return which further parameters plain scenes ask for: by one Gauss–Newton step from a fit.

    Args:
        frames: of one camera.
        system: the nominal camera.
        fit: the best without them.
        keys: of the further parameters.
        least: standard errors, of what is asked for.
    """
    parts = [Windows(frame, system) for frame in frames]
    found = [part.evidence(fit.geometry, (*fit.keys, *keys)) for part in parts]
    curvature, gradient = _sum(found)
    first, asked = len(fit.keys), []
    covariance = _covariance(found)
    for k, key in enumerate(keys, first):  # each by itself beside those of the fit
        index = [*range(first), k]
        step = -torch.linalg.solve(curvature[index][:, index], gradient[index])[-1]
        if abs(step) > least * covariance[k, k].clamp_min(0).sqrt():
            asked.append(key)
    return asked


def sureness(
    frames: Sequence[Frame], system: SDCassi, geometry: Geometry, other: Geometry
) -> float:
    """Return by how many standard errors plain scenes fit one geometry better than another.

    Of the fall of the objective, between the sixteenths of the frames.
    """
    means = []
    for frame in frames:
        windows = Windows(frame, system)
        (a, place), (b, _) = (windows.variances(each) for each in (geometry, other))
        falls = b.log() - a.log()
        means += [falls[place == part].mean() for part in place.unique()]
    each = torch.stack(means)
    spread = each.std() / len(each) ** 0.5 if len(each) > 1 else each.new_tensor(math.inf)
    return float(each.mean() / spread.clamp_min(1e-12))


def objective(frames: Sequence[Frame], system: SDCassi, geometry: Geometry) -> float:
    """Return the objective of a geometry, over all windows that `fit_geometry` takes."""
    return _objective([Windows(frame, system) for frame in frames], geometry)


def search_start(
    frames: Sequence[Frame],
    system: SDCassi,
    start: Geometry,
    radius: int,
    bent: float = 0.0,
) -> list[Geometry]:
    """Find where to start: shift and dispersion on a grid, then a short fit of each best shift.

    The objective has valleys beside each other, about a pixel apart, where shift and dispersion
    make up for each other. Only the middle of the frames is looked at, which a rotation moves
    little.

    Args:
        frames: of one camera.
        system: the nominal camera.
        start: the middle of the grid.
        radius: pixels, of the shift; 0 searches nothing.
        bent: pixels; if not 0, dispersion curves of second degree that are bent by so much either
            way are tried, each with three steps.

    Returns:
        Different places, the best first; `start` alone where nothing is searched.
    """
    frames, system = _middle(frames, system)
    side = range(-radius, radius + 1)
    shifts = list(itertools.product(side, side))
    parts = [Windows(frame, system, central=True, most=_SEARCHED) for frame in frames]
    parts = [part for part in parts if len(part)]
    if radius == 0 or sum(len(part) for part in parts) < LEAST_WINDOWS:
        return [start]
    weights = torch.tensor([float(len(part)) for part in parts])
    # Steps that move the outermost bands by a pixel at most.
    per_band = 1 / max(system.bands - 1, 1)
    fits: list[Fit] = []
    slopes = (-2, -1, 0, 1, 2) if bent == 0 else (-1, 0, 1)
    bends = (0.0,) if bent == 0 else (bent, -bent)
    for slope, bend in itertools.product(slopes, bends):
        curved = start.with_degree(1 if bent == 0 else 2)
        curve = list(curved.dispersion)
        curve[0] += slope * per_band
        curve[1:2] = [value + bend for value in curve[1:2]]
        # A fraction of half a pixel is as far from a whole pixel as can be.
        halves = [_shifted(replace(curved, dispersion=tuple(curve)), system, d) for d in (0, 0.5)]
        tables = torch.stack(
            [
                weights @ torch.tensor([part.shifted_objective(half, shifts) for part in parts])
                for half in halves
            ]
        )
        half, best = divmod(int(tables.argmin()), len(shifts))
        down, right = shifts[best]
        if system.axis == -2:
            down, right = right, down
        shift = (halves[half].shift[0] + down, halves[half].shift[1] + right)
        geometry = replace(halves[half], shift=shift)
        fits.append(fit_geometry(frames, system, geometry, central=True, iterations=6))
    found: list[Geometry] = []
    for fit in sorted(fits, key=lambda fit: fit.objectives[-1]):
        if not any(are_near(fit.geometry, other, system) for other in found):
            found.append(fit.geometry)
    return found


def _shifted(geometry: Geometry, system: SDCassi, along: float) -> Geometry:
    """Shift a geometry along the dispersion, by pixels."""
    down, right = geometry.shift
    shift = (down, right + along) if system.axis == -1 else (down + along, right)
    return replace(geometry, shift=shift)


def _middle(frames: Sequence[Frame], system: SDCassi) -> tuple[list[Frame], SDCassi]:
    """Crop large frames across the dispersion, about their middle, where a rotation moves least."""
    lines = -1 if system.axis == -2 else -2
    length = system.mask.shape[lines]
    rest = max(length - _LINES, 0) // 2
    kept = length - 2 * rest
    mask = system.mask.detach().narrow(lines, rest, kept)
    camera = SDCassi(
        mask, system.bands, offsets=system.offsets, detector=system.detector, axis=system.axis
    )
    cropped = [
        replace(
            frame,
            y=frame.y.narrow(lines, rest, kept),
            good=None if frame.good is None else frame.good.narrow(lines, rest, kept),
        )
        for frame in frames
    ]
    return cropped, camera


def are_near(a: Geometry, b: Geometry, system: SDCassi) -> bool:
    """Tell whether two places are the same minimum."""
    parameters = [PARAMETERS[key] for key in place_of(a)]
    return all(abs(each.read(a) - each.read(b)) < 3 * each.step(system) for each in parameters)


def _objective(parts: Sequence[Windows], geometry: Geometry) -> float:
    total = sum(len(part) * part.objective(geometry) for part in parts if len(part))
    return total / sum(len(part) for part in parts)


def _mean(found: Sequence[Evidence]) -> float:
    return torch.cat([part.variance for part in found]).log().mean().item()


def _sum(found: Sequence[Evidence]) -> tuple[Tensor, Tensor]:
    curvature = sum((part.curvature for part in found), torch.zeros(()).double())
    gradient = torch.cat([part.gradient for part in found]).sum(0)
    return curvature.cpu(), gradient.cpu()


def _covariance(found: Sequence[Evidence]) -> Tensor:
    curvature, _ = _sum(found)
    gradients, places, start = [], [], 0
    for part in found:
        gradients.append(part.gradient.cpu())
        places.append(part.place.cpu() + start)
        start += int(part.place.max()) + 1 if len(part.place) else 0
    gradient, place = torch.cat(gradients), torch.cat(places)
    names, index = place.unique(return_inverse=True)
    sums = torch.zeros(len(names), gradient.shape[1], dtype=gradient.dtype)
    sums.index_add_(0, index, gradient)
    sums -= sums.mean(0)
    many = max(len(names), 2)
    inverse = torch.linalg.inv(curvature)
    # A mean over few parts scatters less about itself than about the truth.
    scatter = sums.mT @ sums * (many / max(many - gradient.shape[1], 1))
    return inverse @ scatter @ inverse
