"""Fit a method to the camera of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cassi.methods.along_dispersion import AlongDispersion
from cassi.methods.wrapper import ReconstructorWrapper
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers.base import Reconstructor
from cassi.solvers.solver import Solver
from cassi.systems.grid import SpectralGrid


class Card(Protocol):
    """Name and wavelengths of a network."""

    @property
    def name(self) -> str:
        """The name of the network."""

    @property
    def wavelengths(self) -> Sequence[float] | None:
        """The wavelengths of the network's training, nm; None if they are unknown."""


class Recipe(Protocol):
    """Makes a reconstructor for any number of bands."""

    @property
    def may_change(self) -> bool:
        """Whether another method may replace the reconstructor if it suits the camera better."""

    def grid(self, grid: SpectralGrid | None) -> SpectralGrid | None:
        """Return the spectral grid to use; None: the camera's bands.

        Args:
            grid: the grid that was chosen for the frame; None: no grid was chosen.
        """

    def make(self, bands: int) -> tuple[Reconstructor, Card | None]:
        """Return the reconstructor for C bands, and the card of its network, if it has one."""


@dataclass(frozen=True)
class FixedMethod:
    """A recipe that returns one reconstructor, whatever the number of bands."""

    method: Reconstructor
    may_change: bool = False

    def grid(self, grid: SpectralGrid | None) -> SpectralGrid | None:
        """Return the grid for a solver; None for a network or a user's function.

        A network or a user's function may work only with the bands of the camera.
        """
        return grid if isinstance(self.method, Solver | ReconstructorWrapper) else None

    def make(self, bands: int) -> tuple[Reconstructor, None]:
        """Return the reconstructor, without a card."""
        return self.method, None


def fit(snapshot: Snapshot, recipe: Recipe) -> tuple[Snapshot, Reconstructor]:
    """Return the reconstructor for a snapshot, and the snapshot with a network's wavelengths.

    Args:
        snapshot: what `cassi.pipeline.find.find_camera` returns.
        recipe: makes the reconstructor.

    Returns:
        The snapshot, with notes on network and grid, and the reconstructor.

    Raises:
        ValueError: the camera has a guide, and the method takes none.
    """
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
        wavelengths = camera.wavelengths or card.wavelengths
        snapshot = snapshot.with_camera(note, wavelengths=wavelengths)
    fitted_method = method
    if recipe.may_change and camera.guide is None and snapshot.camera.shows_frames:
        from cassi.methods.frames import for_frames

        fitted_method = for_frames(method)
    if fitted_method is not method:
        snapshot = snapshot.with_camera(
            "method: method=video in place of auto: each band has its own mask and no band is "
            "moved, as for the frames of a video; if they are bands, set wavelengths="
        )
    if grid is not None:
        return snapshot.with_camera(describe(grid)), AlongDispersion(fitted_method, grid)
    return snapshot, fitted_method


def _check_guide(method: Reconstructor) -> None:
    from cassi.guide_search import takes_guide

    if not takes_guide(method):
        raise ValueError(
            "guide: expected null, this method takes none; solver=auto and "
            "method=self_supervised do"
        )


def describe(grid: SpectralGrid) -> str:
    """Return a note on the bands on which a cube is computed."""
    margin = abs(grid.offsets[0] - grid.band_offsets[0])
    return (
        f"dispersion: computed on {len(grid.offsets)} bands of {grid.pitch:.3g} pixels, up to "
        f"{margin:.2g} pixels beyond the outermost bands, read at {len(grid.band_offsets)} bands; "
        "light=lines for one line per band"
    )
