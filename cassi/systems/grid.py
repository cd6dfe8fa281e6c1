r"""Bands that are even along the dispersion, and the wavelengths that name them.

In light of all wavelengths a measurement is an integral along the dispersion,

    y(p) = ∫ m(p − o) x(p − o, o) do,

o the offset in pixels. The curve o(λ) is not in it: it says what each offset is called. So a cube
is computed on a grid of even offsets, and read at the bands of the camera afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from cassi.systems.base import Around, System
from cassi.systems.sd_cassi import SDCassi

_ABOUT_ONE = 1.1
"""Pixels from band to band that a pitch of one becomes at most, to divide a span of 5 or more."""


@dataclass(frozen=True)
class Grid:
    """Even offsets along the dispersion, and the bands of a camera among them.

    A band of a camera reaches half way to its neighbours. Of the outermost ones the outer half is
    as wide as the inner one. A band of the grid is as wide as the pitch.

    Attributes:
        offsets: of the grid, pixels, in the order of increasing wavelength.
        named: of the bands of the camera, pixels, in the same direction.
    """

    offsets: tuple[float, ...]
    named: tuple[float, ...]

    @staticmethod
    def over(named: Sequence[float], pitch: float = 1.0, beyond: float = 0.0) -> Grid:
        """Return the grid from the first to the last band of a camera.

        The outermost bands lie on it, so the pitch is the nearest that divides their distance.

        The pitch is in pixels, and so is `beyond`, the light beyond the outermost bands on both
        sides.

        >>> Grid.over([0.0, 3.2, 5.0], 1.0, 1.0).offsets
        (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        """
        first, last = named[0], named[-1]
        parts = max(1, round(abs(last - first) / pitch))
        width = (last - first) / parts
        more = round(beyond / pitch)
        places = range(-more, parts + more + 1)
        return Grid(tuple(first + width * place for place in places), tuple(named))

    @property
    def pitch(self) -> float:
        """Distance of two bands of the grid, pixels."""
        return abs(self.offsets[-1] - self.offsets[0]) / (len(self.offsets) - 1)

    def coarser(self, most: int) -> Grid:
        """Return a grid over the same light of so many bands at most; itself if it has no more."""
        if len(self.offsets) <= most:
            return self
        beyond = abs(self.offsets[0] - self.named[0])
        span = abs(self.named[-1] - self.named[0])
        pitch = (span + 2 * beyond) / (most - 1)
        made = Grid.over(self.named, pitch, beyond)
        while len(made.offsets) > most:
            pitch *= 1.02
            made = Grid.over(self.named, pitch, beyond)
        return made

    @cached_property
    def edges(self) -> np.ndarray:
        """Offsets between the bands of the camera, and beyond the outermost, `(C + 1,)`."""
        return _edges(np.asarray(self.named))

    @cached_property
    def reading(self) -> np.ndarray:
        """Shares of the bands of the grid in the light of each band of the camera, `(C, G)`.

        The light up to an offset is a cubic spline through that at the edges of the grid. A band of
        the camera has what it rises by from edge to edge. So a camera whose bands are those of the
        grid is read as it is, and no light is lost between bands.
        """
        from scipy.interpolate import CubicSpline

        sign = np.sign(self.offsets[-1] - self.offsets[0])
        edges = sign * _edges(np.asarray(self.offsets))
        sums = np.vstack([np.zeros(len(self.offsets)), np.tril(np.ones([len(self.offsets)] * 2))])
        at = np.clip(sign * self.edges, edges[0], edges[-1])
        return np.diff(CubicSpline(edges, sums, bc_type="natural")(at), axis=0)

    @cached_property
    def spreading(self) -> np.ndarray:
        """Light of each band of the grid from the bands of the camera, `(G, C)`.

        The density of light is linear between the middles of bands, and ends with the outermost.
        """
        sign = np.sign(self.offsets[-1] - self.offsets[0])
        offsets, named = sign * np.asarray(self.offsets), sign * np.asarray(self.named)
        edges = sign * self.edges
        at = [np.interp(offsets, named, each) for each in np.diag(1 / np.diff(edges))]
        inside = (offsets >= edges[0]) & (offsets <= edges[-1])
        return self.pitch * inside[:, None] * np.stack(at, 1)

    def wavelengths(self, named: Sequence[float]) -> tuple[float, ...]:
        """Return the wavelengths of the grid, nm, linear between those of the camera's bands.

        Beyond the outermost bands they go on as before them.
        """
        sign = np.sign(self.offsets[-1] - self.offsets[0])
        at, places = sign * np.asarray(self.offsets), sign * np.asarray(self.named)
        found = np.interp(at, places, named)
        for end, inner in ((0, 1), (-1, -2)):
            slope = (named[end] - named[inner]) / (places[end] - places[inner])
            outside = at < places[0] if end == 0 else at > places[-1]
            found = np.where(outside, named[end] + slope * (at - places[end]), found)
        return tuple(found.tolist())

    def read(self, x: Tensor) -> Tensor:
        """Return the bands of the camera of a cube on the grid: `(B, G, H, W)` → `(B, C, H, W)`."""
        return _times(self.reading, x)

    def spread(self, x: Tensor) -> Tensor:
        """Return a cube on the grid of one at the bands: `(B, C, H, W)` → `(B, G, H, W)`."""
        return _times(self.spreading, x)

    def camera(self, system: System) -> System:
        """Return a camera with the bands of the grid in place of its own, and all else as it is.

        Bands a pixel apart are interpolated as others are, wider ones are triangles.
        """
        plain = system.plain
        assert isinstance(plain, SDCassi)
        width = self.pitch if self.pitch > _ABOUT_ONE else 1.0
        bands = len(self.offsets)
        return system.around(plain.like(bands=bands, offsets=self.offsets, band_width=width))


class InAllLight(Around):
    """A camera of the bands of another, whose light lies between the bands too.

    A cube at the bands is spread over a grid, and measured by the camera of that.

    Args:
        system: the camera, see `has_grid`.
        grid: of it.
    """

    def __init__(self, system: System, grid: Grid) -> None:
        super().__init__(grid.camera(system))
        self.grid = grid
        self.conjugate, self.part_axis = system.conjugate, system.part_axis

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (len(self.grid.named), *self.system.cube_shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        return self.system(self.grid.spread(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        return _times(self.grid.spreading.T, self.system.adjoint(y))


@runtime_checkable
class _OnGrid(Protocol):
    """A method along the dispersion."""

    grid: Grid


def measuring(system: System, reconstructor: object) -> System:
    """Return the camera that measures cubes of a method, in all light where it has a grid."""
    return InAllLight(system, reconstructor.grid) if isinstance(reconstructor, _OnGrid) else system


def as_wide(camera: SDCassi) -> SDCassi:
    """Return a camera whose bands are as wide as their mean distance, of 1 to 100 pixels."""
    offsets = camera.offsets
    span = abs(offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1)
    return camera.like(band_width=min(max(span, 1.0), 100.0))


def has_grid(system: System) -> bool:
    """Tell whether a camera's measurements are computed along the dispersion.

    They are in light of all wavelengths. Bands a pixel apart are a grid already, and wide bands
    stay as they were chosen. A mask for each band is known at the bands alone.
    """
    plain = system.plain
    if not isinstance(plain, SDCassi) or type(plain) is not SDCassi:
        return False
    if not system.all_light or plain.bands < 2 or plain.band_width > 1:
        return False
    gaps = np.diff(plain.offsets)
    one = bool(np.all(gaps > 0) or np.all(gaps < 0))
    return one and plain.mask.shape[-3] == 1 and not bool(np.all(np.abs(gaps) == 1))


def _edges(places: np.ndarray) -> np.ndarray:
    """Return the middles between places, and beyond the outermost as far as before them."""
    inner = (places[1:] + places[:-1]) / 2
    return np.concatenate(([2 * places[0] - inner[0]], inner, [2 * places[-1] - inner[-1]]))


def _times(matrix: np.ndarray, x: Tensor) -> Tensor:
    return torch.einsum("cg,bghw->bchw", torch.from_numpy(matrix).to(x), x)
