"""Find the camera of a snapshot: align or calibrate it, add a guide or a spectral grid.

No other module changes the camera of a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cassi.camera.grid_ends import find_grid
from cassi.methods.automatic import auto
from cassi.pipeline.align import align
from cassi.pipeline.snapshot import CalibrationRun, Snapshot
from cassi.solvers.solver import Solver
from cassi.systems.base import System

if TYPE_CHECKING:
    from cassi.calibration.frame import Frame

Step = Callable[[Snapshot], Snapshot]


def find_camera(
    snapshot: Snapshot, calibrate: Step | None = None, guide: Step | None = None
) -> Snapshot:
    """Return a snapshot with the camera that reconstructs it.

    First the mask is aligned, or the camera is calibrated. Then a guide is added, or a spectral
    grid is chosen for the frame. Finally a white frame is fitted with this camera.

    Args:
        snapshot: a measurement with its nominal camera.
        calibrate: `align_snapshot`, `calibrate_snapshot`, or a function like them; None leaves the
            camera.
        guide: returns the snapshot with a guide added to its camera; None: no guide.
    """
    snapshot = snapshot if calibrate is None else calibrate(snapshot)
    snapshot = add_grid(snapshot) if guide is None else guide(snapshot)
    return apply_white_frame(snapshot)


def align_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with its mask aligned, if its frame shows a misalignment."""
    alignment = align(snapshot.y, snapshot.camera.system)
    if alignment is None:
        return snapshot
    note = f"camera: {alignment}; align=false leaves it where it was"
    return snapshot.with_camera(note, system=alignment.system, alignment=alignment)


def calibrate_snapshot(
    snapshot: Snapshot,
    solver: Solver | None = None,
    light_frames: Sequence[Frame] = (),
    **options: Any,
) -> Snapshot:
    """Return a snapshot with its camera calibrated on it.

    Args:
        snapshot: a measurement with its nominal camera.
        solver: see `calibrate_on`.
        light_frames: see `calibrate_on`.
        options: further arguments of `calibrate_on`.
    """
    from cassi.pipeline.calibrate import calibrate_on

    start, camera = time.perf_counter(), snapshot.camera
    arguments: dict[str, Any] = {"light_frames": light_frames, "wavelengths": camera.wavelengths}
    calibration = calibrate_on(snapshot.y, camera.system, solver, **arguments, **options)
    record = CalibrationRun(calibration, camera.system.base_camera, time.perf_counter() - start)
    return snapshot.with_camera(
        "camera: calibrated on the measurement",
        system=camera.system.wrap_like_self(calibration.system),
        calibration=record,
        wavelengths_error=None if calibration.told else camera.wavelengths_error,
    )


def add_grid(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the spectral grid for its frame, if it needs one."""
    return snapshot.with_camera(grid=find_grid(snapshot.y, snapshot.camera.system))


def apply_white_frame(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot corrected by its white frame; if it has none, the snapshot as it is."""
    camera = snapshot.camera
    if camera.unit is None:
        return snapshot
    y, unit, correction = camera.unit.measured(
        snapshot.y, camera.system, reconstruct_by_auto, camera.grid
    )
    return replace(snapshot.with_camera(f"response: {unit.note}{correction}", unit=unit), y=y)


def reconstruct_by_auto(y: Tensor, system: System) -> Tensor:
    """Reconstruct a measurement with `auto` and return the cube."""
    return auto().run(y, system).checked().x
