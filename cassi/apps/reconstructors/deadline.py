"""The methods that a deadline chooses from, the best one first.

`python -m scripts.benchmarks.deadlines` measures them. The order is that of the PSNR, as a mean
over scenes without noise and with noise of 30 dB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cassi.apps.reconstructors.names import settings_named
from cassi.apps.reconstructors.recipe import Recipe
from cassi.methods.along_dispersion import with_grid_of, without_grid
from cassi.methods.deadline import Choice, choose_within
from cassi.methods.sequence import Sequence
from cassi.pipeline.fit import fit
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Function
from cassi.solvers.base import Reconstructor

SEQUENCE_ITERATIONS = (36, 24, 16, 10)
"""Numbers of iterations per frame of `cassi.methods.Sequence`, from the best cube to the fastest
one. The first number is the default."""


def _shorten(method: str, *counts: int) -> dict[str, Any]:
    """Return items of `reconstructors`: a method with few iterations and no held-out pixels."""
    return {
        f"{method}, {count} iterations": {
            "method": method,
            "overrides": {"solver.iterations": count, "solver.heldout": 0.0},
        }
        for count in counts
    }


# Items of `reconstructors`, by name.
NETWORKS: dict[str, Any] = {
    "pretrained": "pretrained",
    "pretrained, size=small": {"model": "pretrained", "overrides": {"model.size": "small"}},
}
SINGLE_FRAMES = {"auto": "auto", **_shorten("auto", 70, 50, 36, 24)}
FAST = {**_shorten("auto", 16, 10, 6), **_shorten("gap_tv", 2)}
VIDEO_FRAMES = {"video": "video", "gap_tv": "gap_tv", **_shorten("gap_tv", 25, 10, 5, 2)}
MINIMUM_NORM = "minimum-norm solution"


def choose_method(
    snapshot: Snapshot,
    deadline: float,
    run: Callable[[Reconstructor], object],
    is_sequence: bool = False,
) -> Choice:
    """Return the best method that reconstructs a snapshot within a deadline; see `choose_within`.

    Args:
        snapshot: a measurement with the camera that reconstructs it.
        deadline: seconds.
        run: reconstructs the snapshot once, and waits for the result.
        is_sequence: whether more snapshots of the same scene follow, so that each cube may start
            from the cube before it; see `cassi.methods.Sequence`.
    """
    return choose_within(deadline, list_candidates(snapshot, is_sequence), run)


def list_candidates(
    snapshot: Snapshot, is_sequence: bool
) -> Mapping[str, Callable[[], Reconstructor]]:
    """Return functions that make the methods for a snapshot, by name; the best one comes first."""

    def make_all(items: Mapping[str, Any]) -> dict[str, Callable[[], Reconstructor]]:
        return {name: partial(_make, snapshot, item) for name, item in items.items()}

    minimum_norm = {MINIMUM_NORM: partial(Function, lambda y, system: system.pinv(y))}
    if snapshot.camera.shows_frames:
        return make_all(VIDEO_FRAMES) | minimum_norm
    main_methods = make_all(SINGLE_FRAMES)
    if is_sequence:
        main_methods = {
            f"sequence, {count} iterations": partial(_make_sequence, snapshot, count)
            for count in SEQUENCE_ITERATIONS
        }
    return make_all(NETWORKS) | main_methods | make_all(FAST) | minimum_norm


def _make(snapshot: Snapshot, item: Any) -> Reconstructor:
    return fit(snapshot, Recipe(settings_named(item), snapshot.y.device))[1]


def _make_sequence(snapshot: Snapshot, iterations: int) -> Reconstructor:
    method = _make(snapshot, "auto")
    sequence = Sequence(without_grid(method), iterations_each=iterations).begin()
    return with_grid_of(method, sequence)
