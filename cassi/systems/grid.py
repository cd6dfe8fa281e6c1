r"""The spectral grid: even bands along the dispersion, on which broadband cubes are computed.

In broadband light a measurement is an integral along the dispersion,

    y(p) = ∫ m(p − o) x(p − o, o) do,

with the offset o in pixels. The dispersion curve o(λ) does not appear in the integral: the curve
only tells which wavelength belongs to an offset. So a cube is computed on a grid of even offsets.
The bands of the camera are read from this cube afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from cassi.systems.base import System, SystemWrapper
from cassi.systems.sd_cassi import SDCassi

# Grids with a pitch of at most this, pixels, count as grids of one pixel: their bands are
# interpolated linearly. Bands of a larger pitch are triangles as wide as the pitch. A pitch of one
# pixel is adjusted until it divides the distance of the outermost bands. If this distance is 5
# pixels or more, the adjusted pitch is below this limit.
_MAX_UNIT_PITCH = 1.1


@dataclass(frozen=True)
class SpectralGrid:
    """Even offsets along the dispersion, and the offsets of a camera's bands.

    A band of the camera reaches half way to its neighbours. An outermost band reaches as far
    outwards as inwards. A band of the grid is as wide as the pitch.

    Attributes:
        offsets: offsets of the grid's bands, pixels, in the order of increasing wavelength.
        band_offsets: offsets of the camera's bands, pixels, in the same direction.
    """

    offsets: tuple[float, ...]
    band_offsets: tuple[float, ...]

    @staticmethod
    def from_bands(
        band_offsets: Sequence[float], pitch: float = 1.0, margin: float = 0.0
    ) -> SpectralGrid:
        """Return the grid from the first to the last band of a camera.

        The outermost bands lie on the grid. So the pitch of the grid is the value nearest to
        `pitch` that divides the distance of these bands.

        Args:
            band_offsets: offsets of the camera's bands, pixels, by increasing wavelength.
            pitch: approximate distance of neighbouring bands of the grid, pixels.
            margin: pixels by which light reaches beyond the outermost bands, on both sides.

        >>> SpectralGrid.from_bands([0.0, 3.2, 5.0], 1.0, 1.0).offsets
        (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        """
        first, last = band_offsets[0], band_offsets[-1]
        n_gaps = max(1, round(abs(last - first) / pitch))
        signed_pitch = (last - first) / n_gaps
        n_extra = round(margin / pitch)
        indices = range(-n_extra, n_gaps + n_extra + 1)
        return SpectralGrid(
            tuple(first + signed_pitch * index for index in indices), tuple(band_offsets)
        )

    @property
    def pitch(self) -> float:
        """Distance of two bands of the grid, pixels."""
        return abs(self.offsets[-1] - self.offsets[0]) / (len(self.offsets) - 1)

    def coarser(self, max_bands: int) -> SpectralGrid:
        """Return a grid of the same range with at most `max_bands` bands; itself if it has them."""
        if len(self.offsets) <= max_bands:
            return self
        margin = abs(self.offsets[0] - self.band_offsets[0])
        span = abs(self.band_offsets[-1] - self.band_offsets[0])
        pitch = (span + 2 * margin) / (max_bands - 1)
        grid = SpectralGrid.from_bands(self.band_offsets, pitch, margin)
        # Pitch and margin are rounded to whole numbers of bands. So a grid may have too many bands.
        while len(grid.offsets) > max_bands:
            pitch *= 1.02
            grid = SpectralGrid.from_bands(self.band_offsets, pitch, margin)
        return grid

    @cached_property
    def edges(self) -> np.ndarray:
        """Offsets of the edges between the camera's bands, and of both ends, `(C + 1,)`."""
        return _compute_band_edges(np.asarray(self.band_offsets))

    @cached_property
    def reading(self) -> np.ndarray:
        """Matrix that reads the bands of the camera from a cube on the grid, `(C, G)`.

        The cumulative light up to an offset is a cubic spline through its values at the edges of
        the grid's bands. A band of the camera gets the difference of the spline at its two edges.
        So no light is lost between bands, and a camera with the bands of the grid gets the cube
        unchanged.
        """
        from scipy.interpolate import CubicSpline

        # The spline needs increasing offsets. Row n of `cumulative_light` is the light up to edge
        # n, with one column for each band of the grid.
        sign = np.sign(self.offsets[-1] - self.offsets[0])
        edges = sign * _compute_band_edges(np.asarray(self.offsets))
        cumulative_light = np.vstack(
            [np.zeros(len(self.offsets)), np.tril(np.ones([len(self.offsets)] * 2))]
        )
        band_edges = np.clip(sign * self.edges, edges[0], edges[-1])
        return np.diff(CubicSpline(edges, cumulative_light, bc_type="natural")(band_edges), axis=0)

    @cached_property
    def spreading(self) -> np.ndarray:
        """Matrix that spreads the light of the camera's bands over the grid, `(G, C)`.

        The density of light is linear between the middles of bands, and zero beyond the ends of the
        outermost bands.
        """
        sign = np.sign(self.offsets[-1] - self.offsets[0])
        offsets, band_offsets = (
            sign * np.asarray(self.offsets),
            sign * np.asarray(self.band_offsets),
        )
        edges = sign * self.edges
        unit_densities = np.diag(1 / np.diff(edges))
        densities = [np.interp(offsets, band_offsets, values) for values in unit_densities]
        is_inside = (offsets >= edges[0]) & (offsets <= edges[-1])
        return self.pitch * is_inside[:, None] * np.stack(densities, 1)

    def wavelengths(self, band_wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return the wavelengths of the grid, nm, linear between those of the camera's bands.

        Beyond the outermost bands the line through the last two bands is continued.
        """
        sign = np.sign(self.offsets[-1] - self.offsets[0])
        offsets, band_offsets = (
            sign * np.asarray(self.offsets),
            sign * np.asarray(self.band_offsets),
        )
        wavelengths = np.interp(offsets, band_offsets, band_wavelengths)
        for end, neighbour in ((0, 1), (-1, -2)):
            rise = band_wavelengths[end] - band_wavelengths[neighbour]
            slope = rise / (band_offsets[end] - band_offsets[neighbour])
            line = band_wavelengths[end] + slope * (offsets - band_offsets[end])
            is_outside = offsets < band_offsets[0] if end == 0 else offsets > band_offsets[-1]
            wavelengths = np.where(is_outside, line, wavelengths)
        return tuple(wavelengths.tolist())

    def read(self, x: Tensor) -> Tensor:
        """Read the camera's bands from a cube on the grid: `(B, G, H, W)` → `(B, C, H, W)`."""
        return _apply_matrix(self.reading, x)

    def spread(self, x: Tensor) -> Tensor:
        """Spread a cube at the camera's bands over the grid: `(B, C, H, W)` → `(B, G, H, W)`."""
        return _apply_matrix(self.spreading, x)

    def camera(self, system: System) -> System:
        """Return the camera with the bands of the grid in place of its own.

        Bands one pixel apart are interpolated linearly; bands farther apart are triangles.
        """
        camera = system.base_camera
        assert isinstance(camera, SDCassi)
        width = self.pitch if self.pitch > _MAX_UNIT_PITCH else 1.0
        bands = len(self.offsets)
        return system.wrap_like_self(
            camera.replace(bands=bands, offsets=self.offsets, band_width=width)
        )


class BroadbandCamera(SystemWrapper):
    """A camera in broadband light: it measures the light between its bands as well.

    A cube at the bands is spread over a grid, and measured by the camera of the grid.

    Args:
        system: the camera, see `has_grid`.
        grid: the spectral grid on which the light is measured.
    """

    def __init__(self, system: System, grid: SpectralGrid) -> None:
        super().__init__(grid.camera(system))
        self.grid = grid
        self.conjugate, self.part_axis = system.conjugate, system.part_axis

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (len(self.grid.band_offsets), *self.system.cube_shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        return self.system(self.grid.spread(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        return _apply_matrix(self.grid.spreading.T, self.system.adjoint(y))


@runtime_checkable
class _HasGrid(Protocol):
    """A method that computes cubes on a grid."""

    grid: SpectralGrid


def measuring_camera(system: System, reconstructor: object) -> System:
    """Return the camera that measures a method's cubes: in broadband light if it has a grid."""
    return (
        BroadbandCamera(system, reconstructor.grid)
        if isinstance(reconstructor, _HasGrid)
        else system
    )


def with_wide_bands(camera: SDCassi) -> SDCassi:
    """Return the camera with bands as wide as their mean distance, limited to 1 to 100 pixels."""
    offsets = camera.offsets
    span = abs(offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1)
    return camera.replace(band_width=min(max(span, 1.0), 100.0))


def has_grid(system: System) -> bool:
    """Tell whether cubes of a camera are computed on a spectral grid: in broadband light.

    Some cameras have no grid in broadband light either. Bands one pixel apart are a grid already. A
    `band_width` is the user's choice. A mask per band is known only at the bands.
    """
    camera = system.base_camera
    if not isinstance(camera, SDCassi) or type(camera) is not SDCassi:
        return False
    if not system.is_broadband or camera.bands < 2 or camera.band_width > 1:
        return False
    gaps = np.diff(camera.offsets)
    is_monotonic = bool(np.all(gaps > 0) or np.all(gaps < 0))
    return is_monotonic and camera.mask.shape[-3] == 1 and not bool(np.all(np.abs(gaps) == 1))


def _compute_band_edges(positions: np.ndarray) -> np.ndarray:
    """Return the edges of bands: half way to neighbours, and as far beyond the outermost."""
    middles = (positions[1:] + positions[:-1]) / 2
    return np.concatenate(
        ([2 * positions[0] - middles[0]], middles, [2 * positions[-1] - middles[-1]])
    )


def _apply_matrix(matrix: np.ndarray, x: Tensor) -> Tensor:
    return torch.einsum("cg,bghw->bchw", torch.from_numpy(matrix).to(x), x)
