"""Findings against a camera, with the values to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Finding:
    """One finding against a camera.

    Attributes:
        about: dark, mask, step, shift, direction, detector, light, spectra or weights.
        message: what the measurement shows, and the value to set.
    """

    about: str
    message: str


@dataclass(frozen=True)
class CameraCheck:
    """The result of a check of a camera.

    Attributes:
        warnings: findings, at most one of each kind.
        note: one line on the camera as the frame shows it.
        numbers: numbers behind the warnings, for metrics.json.
    """

    warnings: tuple[Finding, ...] = ()
    note: str = ""
    numbers: dict[str, object] = field(default_factory=dict)

    def __add__(self, check: CameraCheck) -> CameraCheck:
        """Return the findings, notes and numbers of both."""
        note = " ".join(part for part in (self.note, check.note) if part)
        return CameraCheck(self.warnings + check.warnings, note, self.numbers | check.numbers)

    def lines(self) -> list[str]:
        """Return note and warnings for people, a line each."""
        notes = [f"camera check: {self.note}"] if self.note else []
        return notes + [f"warning: {finding.about}: {finding.message}" for finding in self.warnings]


def reversal_advice(offsets: Sequence[float]) -> str | None:
    """Return the setting that reverses the bands; None if no band is dispersed."""
    if max(offsets) == min(offsets):
        return None
    gaps = {round(next_offset - offset, 6) for offset, next_offset in pairwise(offsets)}
    if len(gaps) == 1:
        return f"set system.step={-gaps.pop():g}"
    return "reverse system.offsets (dispersion: the sign of its step, or of its coefficients)"
