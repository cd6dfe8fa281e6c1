"""Spectra of small regions, and how well two of them agree."""

from __future__ import annotations

import numpy as np

_HALF = 2  # a region is 5×5 pixels
# Okabe and Ito's palette for all kinds of colour vision, without its yellow and black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def region_spectrum(cube: np.ndarray, row: int, column: int) -> np.ndarray:
    """Averages a cube (C, H, W) over the 5×5 pixels around a point, cut at the border.

    Args:
        cube: (C, H, W).
        row: of the point, from 0.
        column: of the point, from 0.

    Returns:
        float64 (C,).
    """
    rows = slice(max(0, row - _HALF), row + _HALF + 1)
    columns = slice(max(0, column - _HALF), column + _HALF + 1)
    return cube[:, rows, columns].mean(axis=(1, 2), dtype=np.float64)


def correlation(estimate: np.ndarray, truth: np.ndarray) -> float | None:
    """Computes r = Σ(e−ē)(t−t̄) / (‖e−ē‖ ‖t−t̄‖) over the bands of two spectra.

    Args:
        estimate: e, (C,).
        truth: t, (C,).

    Returns:
        r in [−1, 1]; None where one of them is flat.
    """
    e, t = estimate - estimate.mean(), truth - truth.mean()
    norm = float(np.linalg.norm(e) * np.linalg.norm(t))
    return float(e @ t) / norm if norm > 1e-12 else None
