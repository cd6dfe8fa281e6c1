"""What speaks against a camera, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a camera.

    Attributes:
        about: dark, mask, step, shift, direction, detector, light, spectra or weights.
        message: what is seen, and the value to set.
    """

    about: str
    message: str


@dataclass(frozen=True)
class CameraCheck:
    """What was found.

    Attributes:
        warnings: at most one of each kind.
        note: what the frame shows of the camera, in one line.
        numbers: behind it.
    """

    warnings: tuple[Finding, ...] = ()
    note: str = ""
    numbers: dict[str, object] = field(default_factory=dict)

    def __add__(self, other: CameraCheck) -> CameraCheck:
        """Put two together."""
        note = " ".join(part for part in (self.note, other.note) if part)
        return CameraCheck(self.warnings + other.warnings, note, self.numbers | other.numbers)

    def lines(self) -> list[str]:
        """Return it as a person reads it, a line each."""
        notes = [f"camera check: {self.note}"] if self.note else []
        return notes + [f"warning: {each.about}: {each.message}" for each in self.warnings]


def other_way(offsets: Sequence[float]) -> str | None:
    """Return what to set for bands in reverse; None where nothing is dispersed."""
    if max(offsets) == min(offsets):
        return None
    gaps = {round(after - before, 6) for before, after in pairwise(offsets)}
    if len(gaps) == 1:
        return f"set system.step={-gaps.pop():g}"
    return "reverse system.offsets (dispersion: the sign of its step, or of its coefficients)"
