"""Reconstruct a snapshot, and convert the cube to the unit of the settings."""

from __future__ import annotations

from dataclasses import replace

import torch
from typing_extensions import Unpack

from cassi.pipeline.snapshot import Result, Snapshot
from cassi.solvers.base import Options, Reconstructor
from cassi.solvers.linear_system import zero_bad_pixels
from cassi.solvers.statistics import Statistics


def reconstruct(
    snapshot: Snapshot, method: Reconstructor, seed: int = 0, **options: Unpack[Options]
) -> Result:
    """Reconstruct a snapshot with its camera.

    Args:
        snapshot: what `cassi.pipeline.find.find_camera` returns.
        method: what `cassi.pipeline.fit.fit` returns.
        seed: seed of the method's random numbers.
        options: see `cassi.solvers.Reconstructor.run`.

    Raises:
        ValueError: camera and method do not fit, or the cube is not finite.
    """
    y, system = snapshot.y, snapshot.camera.system
    # Noise and signal level are estimated once. The second reconstruction of the error bars gets
    # the same statistics, so that both runs differ in their measurement alone.
    statistics = Statistics(lambda: [(zero_bad_pixels(y, system), system)])
    torch.manual_seed(seed)
    solution = method.run(y, system, **{"statistics": statistics} | options).checked()
    return add_response(Result(snapshot, method, solution, statistics))


def add_response(result: Result) -> Result:
    """Return a result with the response of its camera; without a response, the result as it is."""
    unit = result.snapshot.camera.unit
    return result if unit is None else replace(result, response=unit.response(result.solution.x))


def in_unit(result: Result) -> Result:
    """Return a result with cube and error bars in the unit of the settings.

    The solution stays in the unit of the camera, so that it can be compared with the measurement.
    """
    camera, response = result.snapshot.camera, result.response
    if camera.unit is None or camera.unit.name is None or response is None:
        return result
    # The camera has the wavelengths of a network if no others were given.
    wavelengths = camera.wavelengths or camera.unit.wavelengths
    unit = replace(camera.unit, wavelengths=wavelengths)
    x, uncertainty = result.solution.x, result.uncertainty
    if uncertainty is not None:
        std, pattern = unit.errors(x, uncertainty.std, uncertainty.pattern, response)
        samples = uncertainty.samples
        if samples is not None:
            samples = samples.converted(lambda cube: unit.scene(cube, response))
        uncertainty = replace(uncertainty, std=std, pattern=pattern, samples=samples)
    return replace(result, scene=unit.scene(x, response), scene_uncertainty=uncertainty)
