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
        return load_inputs(replace(settings, measurement=file), device)

    several = files if isinstance(files, list) else [files]
    if not several:
        raise ValueError("measurement: expected at least one file, got an empty list")
    inputs = [read_inputs(file) for file in several]
    first = inputs[0]
    system, notes = first.system.plain, list(first.notes)
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"system: expected SDCassi, got {type(system).__name__}")
    mismatch = Mismatch(**asdict(settings.mismatch))
    if mismatch.exists:
        if files is not None or first.truth is None or settings.noise is not None:
            raise ValueError("mismatch: expected a truth alone, measured without noise")
        y, good = mismatch.measure(first.truth.to(device), system), good_pixels(first)
        notes.append(f"measurement: simulated by a camera with {mismatch}")
    else:
        y = torch.cat([each.measurement for each in inputs])
        goods = [good_pixels(each) for each in inputs]
        whole = torch.ones_like(y[:1], dtype=torch.bool)
        found = [whole if good is None else good for good in goods]
        good = torch.cat(found) if any(good is not None for good in goods) else None
    for each in inputs[1:]:
        notes.append(each.notes[0])
    frames = [Frame.snapshot(y, system.bands, good)]

    def read(role: str, file: str) -> tuple[Tensor, Tensor | None]:
        found = read_inputs(file)
        notes.append(f"{role}: {found.notes[0]}")
        return found.measurement, good_pixels(found)

    if settings.white is not None:
        y, good = read("white", settings.white)
        frames.append(Frame.snapshot(y, system.bands, good))
    single = settings.monochromatic
    if single.file is not None:
        place = _place(single.wavelength, first.wavelengths)
        y, good = read("monochromatic", single.file)
        frames.append(Frame.monochromatic(y, place, good))
    return Problem(frames, system, first.wavelengths, notes)


def good_pixels(inputs: Inputs) -> Tensor | None:
    """Return the pixels that count, shaped like the measurement; None for all."""
    good = inputs.system.good_pixels
    return None if good is None else good.expand_as(inputs.measurement)


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
