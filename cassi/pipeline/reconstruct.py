"""Reconstruct a snapshot, and put the cube into the unit that was asked for."""

from __future__ import annotations

from dataclasses import replace

import torch
from typing_extensions import Unpack

from cassi.pipeline.snapshot import Result, Snapshot
from cassi.solvers.base import Options, Reconstructor
from cassi.solvers.linear_system import seen
from cassi.solvers.statistics import Statistics


def reconstruct(
    snapshot: Snapshot, method: Reconstructor, seed: int = 0, **given: Unpack[Options]
) -> Result:
    """Reconstruct a snapshot by the camera that was found.

    Args:
        snapshot: see `cassi.pipeline.find_camera`.
        method: as `cassi.pipeline.fit` gives it.
        seed: of what it draws.
        given: see `cassi.solvers.Reconstructor.run`.

    Raises:
        ValueError: camera and method do not fit, or nothing finite comes out.
    """
    y, system = snapshot.y, snapshot.camera.system
    # What is estimated from the measurement serves for its error bars too.
    statistics = Statistics(lambda: [(seen(y, system), system)])
    torch.manual_seed(seed)
    solution = method.run(y, system, **{"statistics": statistics} | given).checked()
    return responding(Result(snapshot, method, solution, statistics))


def responding(result: Result) -> Result:
    """Return a result with the response of its camera, if there is one."""
    unit = result.snapshot.camera.unit
    return result if unit is None else replace(result, response=unit.response(result.solution.x))


def in_unit(result: Result) -> Result:
    """Return a result in the unit that was asked for: cube and error bars over the response.

    What compares the cube with its measurement or its truth stays as it was.
    """
    camera, response = result.snapshot.camera, result.response
    if camera.unit is None or camera.unit.name is None or response is None:
        return result
    known = camera.wavelengths or camera.unit.wavelengths  # a network may know them
    unit = replace(camera.unit, wavelengths=known)
    x, found = result.solution.x, result.uncertainty
    if found is not None:
        std, pattern = unit.errors(x, found.std, found.pattern, response)
        found = replace(found, std=std, pattern=pattern)
    return replace(result, scene=unit.scene(x, response), scene_uncertainty=found)
