"""Pixels whose spectra are worth showing, and those spectra."""

import numpy as np
import torch

from cassi.data.wavelengths import spectra_at
from cassi.viz.checks import Array, as_cube

_CELLS = 40  # cells along the shorter side: 6 pixels of 256, a little more than the 5×5 patch
_SPREAD = 0.15  # spectral distance worth one image diagonal: separates points of equal spectrum
_APART = 5  # cells between points
_HALF = 2  # a region is 5×5 pixels
# Okabe and Ito's palette for all kinds of colour vision, without its yellow and black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def choose_points(cube: Array, count: int = 4) -> list[tuple[int, int]]:
    """Chooses pixels that are bright, locally flat and of different spectra.

    The image is cut into cells. Those whose mean is at least 10 % of the bright cells' and whose
    relative deviation, with their neighbours', is below the median are candidates. The first point
    is the candidate furthest from the mean spectrum; each next one is the candidate furthest from
    its nearest chosen point (farthest point sampling, Gonzalez 1985), the distance to spectrum t
    from a candidate's s being

        (‖s/‖s‖ − t/‖t‖‖ + 0.15 · (distance in the image / diagonal)) · √(brightness of s),

    with the bright cells' brightness, the 95th percentile and above, as 1. Points lie at least 5
    cells apart where there is room.

    Nothing is random: the same cube gives the same points.

    Args:
        cube: (C, H, W), any scale.
        count: number of points, 1 to H·W.

    Returns:
        ``count`` different (row, column) pairs, the centres of their cells.

    Raises:
        TypeError: if the cube is not of real numbers.
        ValueError: if the cube is not (C, H, W) or holds a NaN, or the count does not fit.
    """
    array = as_cube(cube)
    _, height, width = array.shape
    if not 1 <= count <= height * width:
        raise ValueError(f"expected 1 to {height * width} points, got {count}: change the count")
    size = max(1, min(height, width) // _CELLS)
    while size > 1 and (height // size) * (width // size) < count:
        size -= 1
    mean, deviation = _cells(array, size)
    rows, columns = mean.shape[1:]
    spectra = mean.reshape(len(mean), -1).T
    level = np.clip(spectra, 0.0, None).mean(axis=1)
    rough = deviation / np.maximum(level.reshape(rows, columns), 1e-12)
    padded = np.pad(rough, 1, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    rough = around.max(axis=(2, 3)).ravel()  # keeps points away from edges next to their cell
    candidates = _candidates(level, rough, rows, columns, count)

    norms = np.linalg.norm(spectra[candidates], axis=1, keepdims=True)
    shapes = spectra[candidates] / np.maximum(norms, 1e-12)
    cells = np.stack(np.unravel_index(candidates, (rows, columns)), axis=1)
    bright = np.percentile(level, 95)
    weight = np.sqrt(np.minimum(level[candidates], bright) / bright) if bright > 0 else 1.0
    chosen = _sample_farthest(shapes, cells, np.hypot(rows, columns), weight, count)
    return [
        (int(row) * size + size // 2, int(col) * size + size // 2) for row, col in cells[chosen]
    ]


def _sample_farthest(
    shapes: np.ndarray, cells: np.ndarray, diagonal: float, weight: np.ndarray | float, count: int
) -> list[int]:
    """Chooses candidates of spectra (N, C) and cells (N, 2) as ``choose_points`` says."""
    places = _SPREAD * cells / diagonal
    chosen = [int(np.argmax(weight * np.linalg.norm(shapes - shapes.mean(axis=0), axis=1)))]
    nearest = np.full(len(cells), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        distance = np.linalg.norm(shapes - shapes[last], axis=1)
        distance += np.linalg.norm(places - places[last], axis=1)
        nearest = np.minimum(nearest, weight * distance)
        apart = np.abs(cells - cells[last]).max(axis=1)
        nearest[apart < _APART] = 0.0  # markers would overlap: only if nothing else is left
        nearest[chosen] = -1.0
        chosen.append(int(np.argmax(nearest)))
    return chosen


def region_spectrum(cube: np.ndarray, row: float, column: float) -> np.ndarray:
    """Averages a cube (C, H, W) over the 5×5 pixels around a point, cut at the border.

    Between pixels it is interpolated linearly from the means around the four next to the point.
    """
    top, left = int(row), int(column)
    if (row, column) != (top, left):
        near = [[region_spectrum(cube, top + r, left + c) for c in (0, 1)] for r in (0, 1)]
        means = torch.from_numpy(np.moveaxis(np.array(near), -1, 0))
        return spectra_at(means, [(row - top, column - left)])[0].numpy()
    rows = slice(max(0, top - _HALF), top + _HALF + 1)
    columns = slice(max(0, left - _HALF), left + _HALF + 1)
    return cube[:, rows, columns].mean(axis=(1, 2), dtype=np.float64)


def correlation(estimate: np.ndarray, truth: np.ndarray) -> float | None:
    """Computes r = Σ(e−ē)(t−t̄) / (‖e−ē‖ ‖t−t̄‖) of two spectra (C,); None where one is flat."""
    e, t = estimate - estimate.mean(), truth - truth.mean()
    norm = float(np.linalg.norm(e) * np.linalg.norm(t))
    whole = float(np.linalg.norm(estimate) * np.linalg.norm(truth))
    return float(e @ t) / norm if norm > 1e-12 * whole else None


def _cells(cube: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives each cell's mean spectrum, (C, h, w), and deviation in space, (h, w)."""
    bands, height, width = cube.shape
    rows, columns = height // size, width // size
    mean = np.empty((bands, rows, columns))
    variance = np.zeros((rows, columns))
    for band in range(bands):
        tiles = cube[band, : rows * size, : columns * size].reshape(rows, size, columns, size)
        mean[band] = tiles.mean(axis=(1, 3))
        variance += tiles.var(axis=(1, 3), dtype=np.float64)
    return mean, np.sqrt(variance / bands)


def _candidates(
    level: np.ndarray, rough: np.ndarray, rows: int, columns: int, count: int
) -> np.ndarray:
    """Filters the cells; each rule is dropped where it would leave too few."""
    keep = np.ones(level.size, bool)
    row, column = np.divmod(np.arange(level.size), columns)
    margin = max(1, min(rows, columns) // 20)  # a marker at the very edge would be cut
    inside = (row >= margin) & (row < rows - margin)
    inside &= (column >= margin) & (column < columns - margin)
    bright = level >= 0.1 * np.percentile(level, 95)
    for rule in (inside, bright):
        if np.count_nonzero(keep & rule) >= count:
            keep &= rule
    flat = keep & (rough <= np.median(rough[keep]))
    return np.flatnonzero(flat if np.count_nonzero(flat) >= count else keep)
