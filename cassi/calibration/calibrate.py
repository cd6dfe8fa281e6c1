"""Calibration of a camera from what it measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cassi.calibration.fit import Fit, fit_geometry, objective, search_start
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.windows import Frame
from cassi.systems import SDCassi

Residual = Callable[[SDCassi], float]
"""The relative residual of a reconstruction with a camera."""

_TIE = 0.01  # in objective: minima this close are equally deep
_SIGNIFICANT = 5  # standard errors, which know nothing of what a plain scene leaves out


@dataclass(frozen=True)
class Stage:
    """A model of a camera that was tried.

    Attributes:
        degree: of the dispersion curve; 0 is the nominal camera.
        fit: what was found; None for the nominal camera.
        residual: of a reconstruction with it.
        seconds: since the start of the calibration.
    """

    degree: int
    fit: Fit | None
    residual: float
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """The result.

    Attributes:
        fit: geometry and uncertainty.
        system: the calibrated camera.
        stages: every model that was tried, the nominal one first.
        chosen: which of them is the result.
        objectives: of the nominal camera, then of every iteration up to the result.
    """

    fit: Fit
    system: SDCassi
    stages: list[Stage]
    chosen: int
    objectives: list[float]


def calibrate(
    frames: Sequence[Frame],
    system: SDCassi,
    residual: Residual,
    *,
    radius: int = 2,
    degree: int = 3,
    gain: float = 0.01,
) -> Calibration:
    """Find how far a camera is from its nominal model.

    A search on a grid and Gauss–Newton steps fit shift, rotation and dispersion to windows of the
    frames, see `Windows`. Then the model is refined: the dispersion curve gets one more degree at a
    time, as long as that is significant and the residual of a reconstruction falls. A residual
    alone decides nothing about the numbers, for a free enough cube fits any frame; among models
    that the windows have fitted, minima of equal depth too, it says which one to believe.

    Args:
        frames: snapshots, and frames of known light, by one camera.
        system: the nominal camera.
        residual: reconstructs with a camera and returns the relative residual.
        radius: of the search for the shift, whole pixels; 0 starts at the nominal camera.
        degree: highest of the dispersion curve.
        gain: by which share a residual must fall for a further degree.

    Raises:
        ValueError: the camera has a mask per sample, the frames do not fit it or are too dark or
            small, or a number is out of range.
    """
    _check(frames, system, radius, degree, gain)
    start = time.perf_counter()
    stages = [Stage(0, None, residual(system), 0.0)]

    def attempt(order: int, fit: Fit) -> Stage:
        value = residual(moved_camera(system, fit.geometry))
        stages.append(Stage(order, fit, value, time.perf_counter() - start))
        return stages[-1]

    places = search_start(frames, system, Geometry(), radius)
    fits = [fit_geometry(frames, system, place) for place in places]
    deepest = min(fit.objectives[-1] for fit in fits)
    valleys = [fit for fit in fits if fit.objectives[-1] <= deepest + _TIE]
    course = [min((attempt(1, fit) for fit in valleys), key=lambda stage: stage.residual)]
    for order in range(2, min(degree, system.bands - 1) + 1):
        before = course[-1]
        assert before.fit is not None
        fit = fit_geometry(frames, system, before.fit.geometry.with_degree(order))
        if abs(fit.geometry.dispersion[-1]) < _SIGNIFICANT * fit.errors[-1]:
            break
        tried = attempt(order, fit)
        if tried.residual > (1 - gain) * before.residual:
            break
        course.append(tried)
    fits = [stage.fit for stage in course if stage.fit is not None]
    objectives = [objective(frames, system, Geometry())]
    objectives += [value for fit in fits for value in fit.objectives]
    chosen = next(k for k, stage in enumerate(stages) if stage is course[-1])
    camera = moved_camera(system, fits[-1].geometry)
    return Calibration(fits[-1], camera, stages, chosen, objectives)


def _check(frames: Sequence[Frame], system: SDCassi, radius: int, degree: int, gain: float) -> None:
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"calibration: expected SDCassi, got {type(system).__name__}")
    if system.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    if not 0 <= radius <= 20:
        raise ValueError(f"radius: expected 0 to 20 pixels, got {radius}")
    if not 1 <= degree <= 5:
        raise ValueError(f"degree: expected 1 to 5, got {degree}")
    if not 0 <= gain < 1:
        raise ValueError(f"gain: expected a share from 0 to below 1, got {gain}")
    if not frames:
        raise ValueError("calibration: expected at least one frame, got none")
    for frame in frames:
        if tuple(frame.y.shape[1:]) != system.measurement_shape:
            raise ValueError(
                f"calibration: expected frames (B, K, H', W') = (B, "
                f"{', '.join(map(str, system.measurement_shape))}), got {tuple(frame.y.shape)}"
            )
