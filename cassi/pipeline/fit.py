"""Fit a method to the camera of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cassi.methods.along_dispersion import AlongDispersion
from cassi.methods.wrapper import Wrapper
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers.base import Reconstructor
from cassi.solvers.solver import Solver
from cassi.systems.grid import Grid


class Card(Protocol):
    """What a network says of itself."""

    @property
    def name(self) -> str:
        """Of the network."""

    @property
    def wavelengths(self) -> Sequence[float] | None:
        """nm, that it was trained for, if known."""


class Recipe(Protocol):
    """What makes a reconstructor for a number of bands."""

    @property
    def may_change(self) -> bool:
        """Whether another method may take its place, where that suits the camera."""

    def grid(self, grid: Grid | None) -> Grid | None:
        """Return the grid along the dispersion that suits it, of one that suits the frame."""

    def make(self, bands: int) -> tuple[Reconstructor, Card | None]:
        """Return the reconstructor for C bands, and what a network says of itself."""


@dataclass(frozen=True)
class Given:
    """A recipe of one reconstructor, for any number of bands if it is a solver."""

    method: Reconstructor
    may_change: bool = False

    def grid(self, grid: Grid | None) -> Grid | None:
        """Return the grid; None for a network or a function, which may be for its own bands."""
        return grid if isinstance(self.method, Solver | Wrapper) else None

    def make(self, bands: int) -> tuple[Reconstructor, None]:
        """Return the reconstructor."""
        return self.method, None


def fit(snapshot: Snapshot, recipe: Recipe) -> tuple[Snapshot, Reconstructor]:
    """Return a snapshot with what a network knows of it, and the reconstructor for it."""
    camera = snapshot.camera
    grid = recipe.grid(camera.grid)
    bands = camera.system.cube_shape[0] if grid is None else len(grid.offsets)
    method, card = recipe.make(bands)
    if camera.guide is not None:
        _check_guide(method)
    if card is not None:
        note = f"network: {card.name}"
        if card.wavelengths is not None:
            note += f", trained for {card.wavelengths[0]:g} to {card.wavelengths[-1]:g} nm"
        known = camera.wavelengths or card.wavelengths
        snapshot = snapshot.by(note, wavelengths=known)
    fitted = method
    if recipe.may_change and camera.guide is None and snapshot.camera.shows_frames:
        from cassi.methods.frames import for_frames

        fitted = for_frames(method)
    if fitted is not method:
        snapshot = snapshot.by(
            "method: method=video in place of auto, as each band has its own mask and none is "
            "moved, as for the frames of a video; else set wavelengths="
        )
    if grid is not None:
        return snapshot.by(describe(grid)), AlongDispersion(fitted, grid)
    return snapshot, fitted


def _check_guide(method: Reconstructor) -> None:
    from cassi.guide_search import takes_guide

    if not takes_guide(method):
        raise ValueError(
            "guide: expected null, this method takes none; solver=auto and "
            "method=self_supervised do"
        )


def describe(grid: Grid) -> str:
    """Say on which bands a cube is computed."""
    beyond = abs(grid.offsets[0] - grid.named[0])
    return (
        f"dispersion: {len(grid.offsets)} bands of {grid.pitch:.3g} pixels, to {beyond:.2g} beyond "
        f"the outermost, read at {len(grid.named)}; light=lines for one line per band"
    )
