"""Choose the points whose spectra a figure shows; average and correlate spectra of regions."""

import numpy as np
import torch

from cassi.data.wavelengths import spectra_at
from cassi.viz.checks import Array, as_cube, quantile

# Cells along the shorter side. A cell of an image of 256×256 then has 6×6 pixels, a little more
# than the 5×5 pixels that a spectrum is averaged over.
_CELLS_ALONG_SIDE = 40
# Spectral distance that counts as much as one image diagonal. With 0, points of equal spectra could
# all be in one corner. A large value spreads the points whatever their spectra.
_SPREAD = 0.15
_MIN_CELLS_BETWEEN_POINTS = 5
_REGION_RADIUS = 2  # a region has 5×5 pixels
# Okabe and Ito's palette for all kinds of colour vision, without its yellow and black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def choose_points(cube: Array, count: int = 4) -> list[tuple[int, int]]:
    """Choose pixels that are bright, locally flat and of different spectra.

    The image is cut into cells. A cell is a candidate if its mean is at least 10 % of the 95th
    percentile of all cells, and if its relative deviation and those of its neighbours are below
    the median. Each next point is the candidate furthest from its nearest chosen point (farthest
    point sampling, Gonzalez 1985). The distance of a candidate with spectrum s from a chosen point
    with spectrum t is

        (‖s/‖s‖ − t/‖t‖‖ + 0.15 · (distance in the image / diagonal)) · √(brightness of s),

    where the brightness is relative to the 95th percentile, and at most 1. For the first point, the
    mean of all s/‖s‖ takes the place of t/‖t‖, and the image distance is 0. Points lie at least 5
    cells apart if there is room.

    Nothing is random: the same cube gives the same points.

    Args:
        cube: (C, H, W), any scale.
        count: number of points, 1 to H·W.

    Returns:
        `count` different (row, column) pairs, the centres of their cells.

    Raises:
        TypeError: the cube is not of real numbers.
        ValueError: the cube is not (C, H, W) or holds a NaN, or the count does not fit.
    """
    array = as_cube(cube)
    _, height, width = array.shape
    if not 1 <= count <= height * width:
        raise ValueError(f"expected 1 to {height * width} points, got {count}: change the count")
    size = max(1, min(height, width) // _CELLS_ALONG_SIDE)
    while size > 1 and (height // size) * (width // size) < count:
        size -= 1
    mean, deviation = _average_cells(array, size)
    rows, columns = mean.shape[1:]
    spectra = mean.reshape(len(mean), -1).T
    level = np.clip(spectra, 0.0, None).mean(axis=1)
    roughness = deviation / np.maximum(level.reshape(rows, columns), 1e-12)
    # A cell gets the largest roughness of itself and its neighbours. This keeps points away from
    # edges just outside their cell.
    padded = np.pad(roughness, 1, mode="edge")
    neighbourhoods = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    roughness = neighbourhoods.max(axis=(2, 3)).ravel()
    candidates = _find_candidates(level, roughness, rows, columns, count)

    norms = np.linalg.norm(spectra[candidates], axis=1, keepdims=True)
    unit_spectra = spectra[candidates] / np.maximum(norms, 1e-12)
    cells = np.stack(np.unravel_index(candidates, (rows, columns)), axis=1)
    bright_level = quantile(level, 0.95)
    weight = (
        np.sqrt(np.minimum(level[candidates], bright_level) / bright_level)
        if bright_level > 0
        else 1.0
    )
    points = _sample_farthest(unit_spectra, cells, np.hypot(rows, columns), weight, count)
    return [
        (int(row) * size + size // 2, int(col) * size + size // 2) for row, col in cells[points]
    ]


def _sample_farthest(
    unit_spectra: np.ndarray,
    cells: np.ndarray,
    diagonal: float,
    weight: np.ndarray | float,
    count: int,
) -> list[int]:
    """Choose candidates of spectra (N, C) and cells (N, 2) as `choose_points` says."""
    positions = _SPREAD * cells / diagonal
    points = [
        int(np.argmax(weight * np.linalg.norm(unit_spectra - unit_spectra.mean(axis=0), axis=1)))
    ]
    nearest = np.full(len(cells), np.inf)
    while len(points) < count:
        last = points[-1]
        distance = np.linalg.norm(unit_spectra - unit_spectra[last], axis=1)
        distance += np.linalg.norm(positions - positions[last], axis=1)
        nearest = np.minimum(nearest, weight * distance)
        cells_apart = np.abs(cells - cells[last]).max(axis=1)
        # The markers of near points would overlap. A near candidate gets the distance 0, so it is
        # taken only if no other is left. A chosen point gets -1, so it is never taken again.
        nearest[cells_apart < _MIN_CELLS_BETWEEN_POINTS] = 0.0
        nearest[points] = -1.0
        points.append(int(np.argmax(nearest)))
    return points


def region_spectrum(cube: np.ndarray, row: float, column: float) -> np.ndarray:
    """Return the mean spectrum (C,) of a cube over the 5×5 pixels around a point.

    The region is cut at the border. For a point between pixels, the means around the four nearest
    pixels are interpolated linearly.
    """
    top, left = int(row), int(column)
    if (row, column) != (top, left):
        corners = [[region_spectrum(cube, top + r, left + c) for c in (0, 1)] for r in (0, 1)]
        means = torch.from_numpy(np.moveaxis(np.array(corners), -1, 0))
        return spectra_at(means, [(row - top, column - left)])[0].numpy()
    rows = slice(max(0, top - _REGION_RADIUS), top + _REGION_RADIUS + 1)
    columns = slice(max(0, left - _REGION_RADIUS), left + _REGION_RADIUS + 1)
    return cube[:, rows, columns].mean(axis=(1, 2), dtype=np.float64)


def correlation(estimate: np.ndarray, truth: np.ndarray) -> float | None:
    """Compute r = Σ(e−ē)(t−t̄) / (‖e−ē‖ ‖t−t̄‖) of two spectra (C,); None if one is flat."""
    e, t = estimate - estimate.mean(), truth - truth.mean()
    norm = float(np.linalg.norm(e) * np.linalg.norm(t))
    # A flat spectrum minus its mean has only rounding errors.
    spectra_norm = float(np.linalg.norm(estimate) * np.linalg.norm(truth))
    return float(e @ t) / norm if norm > 1e-12 * spectra_norm else None


def _average_cells(cube: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each cell's mean spectrum, (C, h, w), and deviation in space, (h, w)."""
    bands, height, width = cube.shape
    rows, columns = height // size, width // size
    tiles = cube[:, : rows * size, : columns * size].reshape(bands, rows, size, columns * size)
    mean = tiles.mean(axis=2).reshape(bands, rows, columns, size).mean(axis=3)
    squares = np.zeros((rows, columns * size))
    for tile, level in zip(tiles, mean, strict=True):
        # In float64 the square of any float32 is finite.
        difference = np.subtract(tile, np.repeat(level, size, axis=1)[:, None], dtype=np.float64)
        difference *= difference
        squares += difference.sum(axis=1)
    variance = squares.reshape(rows, columns, size).mean(axis=2) / (bands * size)
    return mean.astype(np.float64), np.sqrt(variance)


def _find_candidates(
    level: np.ndarray, roughness: np.ndarray, rows: int, columns: int, count: int
) -> np.ndarray:
    """Return the cells that may become points.

    The rules apply in turn. A rule that would leave fewer than `count` cells is skipped.
    """
    keep = np.ones(level.size, bool)
    row, column = np.divmod(np.arange(level.size), columns)
    # A marker at the very edge would be cut.
    margin = max(1, min(rows, columns) // 20)
    has_margin = (row >= margin) & (row < rows - margin)
    has_margin &= (column >= margin) & (column < columns - margin)
    is_bright = level >= 0.1 * quantile(level, 0.95)
    for rule in (has_margin, is_bright):
        if np.count_nonzero(keep & rule) >= count:
            keep &= rule
    is_flat = keep & (roughness <= quantile(roughness[keep], 0.5))
    return np.flatnonzero(is_flat if np.count_nonzero(is_flat) >= count else keep)
