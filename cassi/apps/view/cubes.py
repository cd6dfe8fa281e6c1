"""A cube that is looked at, and the report that shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from cassi.apps.results import (
    errors_of_wavelengths,
    reported_numbers,
    say_camera_check,
    say_warnings,
)
from cassi.apps.settings import Reconstruct
from cassi.pipeline.snapshot import Result
from cassi.uncertainty import NORMAL
from cassi.viz.report import encode_scene, make_report

_SHORT = 12
"""Letters that names may share at their beginning."""


@dataclass(frozen=True)
class Shown:
    """A cube with what is known of it.

    Attributes:
        name: of the scene and the method.
        cube: `(C, H, W)`, float32.
        wavelengths: nm, one per band, if known.
        truth: `(C, H, W)`, if known.
        deviation: standard deviation of every value, `(C, H, W)`, if known.
        numbers: of metrics.json.
        made: settings, options and result, of a cube that was reconstructed here.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None = None
    truth: np.ndarray | None = None
    deviation: np.ndarray | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    made: tuple[Reconstruct, list[str], Result] | None = None


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return a label for each name: what all begin with, up to a whole word, becomes "…".

    >>> short_names(["runs/2026-11-28/lamp, auto", "runs/2026-11-28/lamp, gap_tv"])
    {'runs/2026-11-28/lamp, auto': '…auto', 'runs/2026-11-28/lamp, gap_tv': '…gap_tv'}
    """
    if len(names) < 2:
        return {name: name for name in names}
    same = takewhile(lambda pair: pair[0] == pair[1], zip(min(names), max(names), strict=False))
    shared = "".join(letter for letter, _ in same)
    start = max(shared.rfind(mark) for mark in "/_-, ") + 1
    return {name: f"…{name[start:]}" if start > _SHORT else name for name in names}


def report_on(shown: Shown, others: Iterable[Shown]) -> bytes:
    """Return the report of a cube, beside the others of its shape, as HTML."""
    same = [each for each in others if each.cube.shape == shown.cube.shape]
    named = {each.name: each for each in [shown, *same]}
    scene = encode_scene(
        shown.name,
        {name: each.cube for name, each in named.items()},
        shown.truth,
        {name: reported_numbers(each.numbers) for name, each in named.items()},
        {n: NORMAL * each.deviation for n, each in named.items() if each.deviation is not None},
        fine=True,
    )
    return make_report(
        [scene],
        shown.wavelengths,
        title=shown.name,
        warnings=say_warnings(shown.numbers),
        note=say_camera_check(shown.numbers),
        unit=shown.numbers.get("unit"),
        errors=errors_of_wavelengths(shown.numbers, len(shown.cube)),
    )
