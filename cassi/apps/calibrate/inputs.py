"""From settings to the frames that a calibration starts from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from cassi.apps.inputs import Inputs, load_inputs
from cassi.apps.settings import Calibrate
from cassi.calibration import Frame
from cassi.evaluation import Mismatch
from cassi.systems import SDCassi


@dataclass(frozen=True)
class Problem:
    """What a calibration starts from."""

    frames: list[Frame]
    """Snapshots first, then a white and a monochromatic frame where they are given."""
    system: SDCassi
    wavelengths: tuple[float, ...] | None
    notes: list[str]


def load_frames(settings: Calibrate, device: torch.device) -> Problem:
    """Read everything that settings name.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: files and camera do not fit each other.
    """
    files = settings.measurement

    def read_inputs(file: str | None) -> Inputs:
        # What is fitted here is windows of the detector, whole.
        return load_inputs(replace(settings, measurement=file), device, leave_out=False)

    several = files if isinstance(files, list) else [files]
    if not several:
        raise ValueError("measurement: expected at least one file, got an empty list")
    inputs = [read_inputs(file) for file in several]
    first = inputs[0]
    system, notes = first.system, list(first.notes)
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"system: expected SDCassi, got {type(system).__name__}")
    mismatch = Mismatch(**asdict(settings.mismatch))
    if mismatch.exists:
        if files is not None or first.truth is None or settings.noise is not None:
            raise ValueError("mismatch: expected a truth alone, measured without noise")
        y = mismatch.measure(first.truth.to(device), system)
        notes.append(f"measurement: simulated by a camera with {mismatch}")
    else:
        y = torch.cat([each.measurement for each in inputs])
    for each in inputs[1:]:
        notes.append(each.notes[0])
    frames = [Frame.snapshot(y, system.bands)]

    def read(role: str, file: str) -> Tensor:
        found = read_inputs(file)
        notes.append(f"{role}: {found.notes[0]}")
        return found.measurement

    if settings.white is not None:
        frames.append(Frame.snapshot(read("white", settings.white), system.bands))
    single = settings.monochromatic
    if single.file is not None:
        place = _place(single.wavelength, first.wavelengths)
        frames.append(Frame.monochromatic(read("monochromatic", single.file), place))
    return Problem(frames, system, first.wavelengths, notes)


def _place(wavelength: float | None, wavelengths: tuple[float, ...] | None) -> float:
    """Return where in the spectrum a wavelength is, in bands."""
    if wavelengths is None or len(wavelengths) < 2:
        raise ValueError("monochromatic: expected wavelengths=[…] in nm, one per band, with it")
    if not isinstance(wavelength, int | float) or not (
        wavelengths[0] <= wavelength <= wavelengths[-1]
    ):
        raise ValueError(
            f"monochromatic.wavelength: expected {wavelengths[0]:g} to {wavelengths[-1]:g} nm, "
            f"got {wavelength!r}"
        )
    above = next(k for k in range(1, len(wavelengths)) if wavelengths[k] >= wavelength)
    low, high = wavelengths[above - 1], wavelengths[above]
    return above - 1 + (wavelength - low) / (high - low)
