"""A cube on display with its numbers, and the report that shows it beside others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from cassi.apps.results import (
    errors_of_wavelengths,
    format_camera_check,
    format_warnings,
    reported_numbers,
)
from cassi.apps.settings import Reconstruct
from cassi.pipeline.snapshot import Result
from cassi.uncertainty import NORMAL
from cassi.viz.report import encode_scene, make_report

# A common beginning of at most this length stays in the labels, because it takes little room.
_MAX_SHARED_LETTERS = 12


@dataclass(frozen=True)
class CubeView:
    """A cube on display, with its truth, error bars and numbers if there are any.

    Attributes:
        name: name of scene and method.
        cube: `(C, H, W)`, float32.
        wavelengths: nm, one per band; None if the bands have only numbers.
        truth: `(C, H, W)`, of a simulated snapshot.
        deviation: standard deviation of every value, `(C, H, W)`.
        numbers: content of metrics.json.
        origin: settings, options and result of a cube that was reconstructed in this tab; None for
            a cube that was read from a file.
        answers: answers about the cube's scene, as `cassi.viz.report.encode_answers` packs them;
            None if there are no questions.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None = None
    truth: np.ndarray | None = None
    deviation: np.ndarray | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[Reconstruct, list[str], Result] | None = None
    answers: bytes | None = None


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Return a label for each name: the common beginning, up to a whole word, becomes "…".

    >>> shorten_names(["runs/2026-11-28/lamp, auto", "runs/2026-11-28/lamp, gap_tv"])
    {'runs/2026-11-28/lamp, auto': '…auto', 'runs/2026-11-28/lamp, gap_tv': '…gap_tv'}
    """
    if len(names) < 2:
        return {name: name for name in names}
    # In alphabetical order, all names between the first and the last share what these two share.
    equal_pairs = takewhile(
        lambda pair: pair[0] == pair[1], zip(min(names), max(names), strict=False)
    )
    prefix = "".join(letter for letter, _ in equal_pairs)
    start = max(prefix.rfind(separator) for separator in "/_-, ") + 1
    return {name: f"…{name[start:]}" if start > _MAX_SHARED_LETTERS else name for name in names}


def render_report(cube_view: CubeView, other_views: Iterable[CubeView]) -> bytes:
    """Return the report of a cube as HTML. It also shows the other cubes of the same shape."""
    comparable = [view for view in other_views if view.cube.shape == cube_view.cube.shape]
    views = {view.name: view for view in [cube_view, *comparable]}
    scene = encode_scene(
        cube_view.name,
        {name: view.cube for name, view in views.items()},
        cube_view.truth,
        {name: reported_numbers(view.numbers) for name, view in views.items()},
        {
            name: NORMAL * view.deviation
            for name, view in views.items()
            if view.deviation is not None
        },
        is_local=True,
    )
    return make_report(
        [scene],
        cube_view.wavelengths,
        title=cube_view.name,
        warnings=format_warnings(cube_view.numbers),
        note=format_camera_check(cube_view.numbers),
        unit=cube_view.numbers.get("unit"),
        errors=errors_of_wavelengths(cube_view.numbers, len(cube_view.cube)),
        answers=cube_view.answers,
    )
