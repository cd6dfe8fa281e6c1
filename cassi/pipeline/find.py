"""Find the camera of a snapshot: the only place that changes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cassi.camera.ends import find_grid
from cassi.methods.automatic import auto
from cassi.pipeline.align import align
from cassi.pipeline.snapshot import Calibrated, Snapshot
from cassi.solvers.solver import Solver
from cassi.systems.base import System

if TYPE_CHECKING:
    from cassi.calibration.frame import Frame

Step = Callable[[Snapshot], Snapshot]


def find_camera(
    snapshot: Snapshot, calibrate: Step | None = None, guide: Step | None = None
) -> Snapshot:
    """Return a snapshot by the camera that reconstructs it.

    The mask is calibrated or aligned, or stays. Then a guide's picture comes beside it, or the grid
    along the dispersion is found that suits the frame. A white frame is fitted through that camera.

    `calibrate` returns the snapshot with the mask where it is found: `aligned`, or `calibrated`
    with what that is told; None leaves the mask. `guide` returns it with a guide beside the camera.
    """
    found = snapshot if calibrate is None else calibrate(snapshot)
    found = on_grid(found) if guide is None else guide(found)
    return by_white_frame(found)


def aligned(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the mask where the measurement is sure that it lies."""
    found = align(snapshot.y, snapshot.camera.system)
    if found is None:
        return snapshot
    note = f"camera: {found}; align=false leaves it where it was"
    return snapshot.by(note, system=found.system, alignment=found)


def calibrated(
    snapshot: Snapshot, solver: Solver | None = None, known: Sequence[Frame] = (), **asked: Any
) -> Snapshot:
    """Return a snapshot by the camera that is calibrated on it."""
    from cassi.pipeline.calibrate import calibrate_on

    start, camera = time.perf_counter(), snapshot.camera
    told: dict[str, Any] = {"known": known, "wavelengths": camera.wavelengths}
    found = calibrate_on(snapshot.y, camera.system, solver, **told, **asked)
    made = Calibrated(found, camera.system.plain, time.perf_counter() - start)
    return snapshot.by(
        "camera: calibrated on the measurement",
        system=camera.system.around(found.system),
        calibration=made,
        wavelengths_error=None if found.told else camera.wavelengths_error,
    )


def on_grid(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the grid along the dispersion that suits the frame, if any."""
    return snapshot.by(grid=find_grid(snapshot.y, snapshot.camera.system))


def by_white_frame(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot that a white frame corrects, if there is one, and the response it shows."""
    camera = snapshot.camera
    if camera.unit is None:
        return snapshot
    y, unit, done = camera.unit.measured(snapshot.y, camera.system, by_auto, camera.grid)
    return replace(snapshot.by(f"response: {unit.note}{done}", unit=unit), y=y)


def by_auto(y: Tensor, system: System) -> Tensor:
    """Return the cube that `auto` makes of a measurement."""
    return auto().run(y, system).checked().x
