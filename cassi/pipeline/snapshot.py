"""What goes through the pipeline: a snapshot, the camera that took it, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cassi.calibration.findings import CameraCheck

if TYPE_CHECKING:
    from cassi.calibration.alignment import Alignment
    from cassi.calibration.calibration import Calibration
    from cassi.calibration.response import Response, Unit
    from cassi.solvers.base import Reconstructor, Solution
    from cassi.solvers.heldout import HeldOut
    from cassi.solvers.statistics import Statistics
    from cassi.systems.base import System
    from cassi.systems.grid import Grid
    from cassi.uncertainty.estimate import Uncertainty


@dataclass(frozen=True)
class Calibrated:
    """A camera that was calibrated on its measurement: what was found, from where, how long."""

    found: Calibration
    nominal: System
    seconds: float


@dataclass(frozen=True)
class Camera:
    """A camera as a snapshot is reconstructed by it, and how it was found.

    Attributes:
        system: the operator A, on the device of the snapshot.
        wavelengths: nm, one per band; None where nobody knows them.
        wavelengths_error: nm, one per band, standard errors; None where nobody knows them.
        grid: bands along the dispersion on which a cube is computed; None for those of the camera.
        unit: in which the cube is wanted; None for what the camera counts.
        alignment: where the mask was moved.
        calibration: where the camera was calibrated on the measurement.
        guide: where a guide's picture lies, and what it does to the error at pixels held out.
    """

    system: System
    wavelengths: tuple[float, ...] | None = None
    wavelengths_error: tuple[float, ...] | None = None
    grid: Grid | None = None
    unit: Unit | None = None
    alignment: Alignment | None = None
    calibration: Calibrated | None = None
    guide: Mapping[str, Any] | None = None

    @property
    def shows_frames(self) -> bool:
        """Whether its bands may be frames of a video, as nothing says that they are bands."""
        return self.wavelengths is None and self.system.plain.codes_frames


@dataclass(frozen=True)
class Snapshot:
    """A measurement, and the camera that took it.

    Attributes:
        y: `(1, K, H', W')`, in the unit of the camera.
        camera: that took it.
        truth: `(1, C, H, W)`, on the CPU; None where it is not known.
        level: what scores take for 1, of the truth and of the cube.
        corrections: what was done to the frame, by step; None where it was simulated without noise.
        notes: how each file was understood and what was found, a line each.
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
    def good(self) -> Tensor | None:
        """The pixels that count, shaped like y; None for all."""
        good = self.camera.system.good_pixels
        return None if good is None else good.expand_as(self.y)

    def by(self, note: str = "", **changes: Any) -> Snapshot:
        """Return the snapshot by a camera with other values, and a note on that."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, camera=replace(self.camera, **changes), notes=notes)


def is_raw(corrections: Mapping[str, Any] | None) -> bool:
    """Tell of what was done to a frame whether it is a sensor's: a dark level was subtracted."""
    return bool((corrections or {}).get("dark", {}).get("level", 0))


@dataclass(frozen=True)
class Result:
    """A cube, and what is known of it.

    Attributes:
        snapshot: that it was made of.
        method: that made it.
        solution: its cube and history, in the unit of the camera.
        statistics: of the measurement, those that the method was given.
        findings: what speaks for and against the camera.
        heldout: how well the method predicts pixels that it is not given, if asked for.
        uncertainty: the error of every value, if asked for, in the unit of the camera.
        response: of the camera, where it is known.
        scene: the cube in the unit that was asked for; None in that of the camera.
        scene_uncertainty: likewise.
        rows: of the iterations.
        batch: snapshots that were reconstructed together.
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
        """The cube `(1, C, H, W)` in the unit that was asked for."""
        return self.solution.x if self.scene is None else self.scene

    @property
    def errors(self) -> Uncertainty | None:
        """The error of every value of `cube`, if asked for."""
        return self.uncertainty if self.scene is None else self.scene_uncertainty

    @property
    def truth(self) -> Tensor | None:
        """The truth `(1, C, H, W)` in that unit."""
        truth = self.snapshot.truth
        if truth is None or self.scene is None or self.response is None:
            return truth
        return self.response.scene(truth)
