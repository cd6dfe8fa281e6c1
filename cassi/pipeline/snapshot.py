"""Data of the pipeline: a snapshot, the camera that took it, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cassi.calibration.findings import CameraCheck

if TYPE_CHECKING:
    from cassi.calibration.alignment import Alignment
    from cassi.calibration.calibration import Calibration
    from cassi.calibration.response import Response
    from cassi.calibration.unit import Unit
    from cassi.solvers.base import Reconstructor, Solution
    from cassi.solvers.heldout import HeldOut
    from cassi.solvers.statistics import Statistics
    from cassi.systems.base import System
    from cassi.systems.grid import SpectralGrid
    from cassi.uncertainty.estimate import Uncertainty


@dataclass(frozen=True)
class CalibrationRun:
    """A calibration of a camera on its measurement, the nominal camera, and the seconds it took."""

    calibration: Calibration
    nominal: System
    seconds: float


@dataclass(frozen=True)
class Camera:
    """The camera with which a snapshot is reconstructed, and how it was estimated.

    Attributes:
        system: the operator A, on the device of the snapshot.
        wavelengths: nm, one per band; None if they are unknown.
        wavelengths_error: standard errors of the wavelengths, nm; None if they are unknown.
        grid: spectral grid on which the cube is computed; None: the bands of the camera.
        unit: unit of the cube in the results; None: the unit of the camera.
        alignment: the alignment of the mask, if it was moved.
        calibration: the calibration, if the camera was calibrated on the measurement.
        guide: position of the guide, and its effect on the held-out error.
    """

    system: System
    wavelengths: tuple[float, ...] | None = None
    wavelengths_error: tuple[float, ...] | None = None
    grid: SpectralGrid | None = None
    unit: Unit | None = None
    alignment: Alignment | None = None
    calibration: CalibrationRun | None = None
    guide: Mapping[str, Any] | None = None

    @property
    def shows_frames(self) -> bool:
        """Whether the bands may be frames of a video: each has its own mask, but no wavelength."""
        return self.wavelengths is None and self.system.base_camera.codes_frames


@dataclass(frozen=True)
class Snapshot:
    """A measurement, and the camera that took it.

    Attributes:
        y: measurement `(1, K, H', W')`, in the unit of the camera.
        camera: the camera that took it.
        truth: the true cube `(1, C, H, W)`, on the CPU; None if it is unknown.
        level: brightness of truth and cube that counts as 1 in scores.
        corrections: corrections of the raw frame, by step; None if y was simulated without noise.
        notes: lines for the user: how a file was read, and what was estimated.
    """

    y: Tensor
    camera: Camera
    truth: Tensor | None = None
    level: float = 1.0
    corrections: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_raw(self) -> bool:
        """Whether the frame is a sensor's: a dark level was subtracted."""
        return is_raw(self.corrections)

    @property
    def good_pixels(self) -> Tensor | None:
        """The good pixels, shaped like y; None for all."""
        good_pixels = self.camera.system.good_pixels
        return None if good_pixels is None else good_pixels.expand_as(self.y)

    def with_camera(self, note: str = "", **changes: Any) -> Snapshot:
        """Return the snapshot with changed attributes of its camera, and with one more note."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, camera=replace(self.camera, **changes), notes=notes)


def is_raw(corrections: Mapping[str, Any] | None) -> bool:
    """Tell from its corrections whether a frame is a sensor's: a dark level was subtracted."""
    return bool((corrections or {}).get("dark", {}).get("level", 0))


@dataclass(frozen=True)
class Result:
    """The result of a reconstruction.

    Attributes:
        snapshot: the snapshot that was reconstructed.
        method: the method that reconstructed it.
        solution: cube and history, in the unit of the camera.
        statistics: statistics of the measurement that the method got.
        findings: findings for and against the camera.
        heldout: the held-out error, if asked for.
        uncertainty: the error of every value, if asked for, in the unit of the camera.
        response: the response of the camera; None if it is unknown.
        scene: the cube in the unit of the settings; None if this is the unit of the camera.
        scene_uncertainty: the error of every value of `scene`.
        rows: one record per iteration.
        batch: number of snapshots that were reconstructed together.
    """

    snapshot: Snapshot
    method: Reconstructor
    solution: Solution
    statistics: Statistics | None = None
    findings: CameraCheck = field(default_factory=CameraCheck)
    heldout: HeldOut | None = None
    uncertainty: Uncertainty | None = None
    response: Response | None = None
    scene: Tensor | None = None
    scene_uncertainty: Uncertainty | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    batch: int = 1

    @property
    def cube(self) -> Tensor:
        """The cube `(1, C, H, W)` in the unit of the settings."""
        return self.solution.x if self.scene is None else self.scene

    @property
    def errors(self) -> Uncertainty | None:
        """The error of every value of `cube`, if asked for."""
        return self.uncertainty if self.scene is None else self.scene_uncertainty

    @property
    def truth(self) -> Tensor | None:
        """The true cube `(1, C, H, W)` in the unit of `cube`."""
        truth = self.snapshot.truth
        if truth is None or self.scene is None or self.response is None:
            return truth
        return self.response.scene(truth)
