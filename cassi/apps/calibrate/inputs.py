"""From a config to the frames that a calibration starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor

from cassi.apps.inputs import load_inputs
from cassi.calibration import Frame
from cassi.config import plain
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


def load_frames(config: DictConfig, device: torch.device) -> Problem:
    """Read everything that a config names.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: files and camera do not fit each other.
    """
    files = config.measurement
    several = list(files) if isinstance(files, ListConfig) else [files]
    if not several:
        raise ValueError("measurement: expected at least one file, got an empty list")
    inputs = [load_inputs(_with(config, file), device) for file in several]
    first = inputs[0]
    system, notes = first.system, list(first.notes)
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"system: expected SDCassi, got {type(system).__name__}")
    mismatch = Mismatch(**plain(config.mismatch))
    if mismatch.exists:
        if config.measurement is not None or first.truth is None or config.get("noise") is not None:
            raise ValueError("mismatch: expected a truth alone, measured without noise")
        y = mismatch.measure(first.truth.to(device), system)
        notes.append(f"measurement: simulated by a camera with {mismatch}")
    else:
        y = torch.cat([each.measurement for each in inputs])
    for each in inputs[1:]:
        notes.append(each.notes[0])
    frames = [Frame.snapshot(y, system.bands)]

    def read(role: str, file: str) -> Tensor:
        found = load_inputs(_with(config, file), device)
        notes.append(f"{role}: {found.notes[0]}")
        return found.measurement

    if config.white is not None:
        frames.append(Frame.snapshot(read("white", config.white), system.bands))
    single = config.monochromatic
    if single.file is not None:
        place = _place(single.wavelength, first.wavelengths)
        frames.append(Frame.monochromatic(read("monochromatic", single.file), place))
    return Problem(frames, system, first.wavelengths, notes)


def _with(config: DictConfig, measurement: str | None) -> DictConfig:
    copy = OmegaConf.merge(config, {"measurement": measurement})
    assert isinstance(copy, DictConfig)
    return copy


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
