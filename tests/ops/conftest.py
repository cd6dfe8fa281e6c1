"""The oracle of the operators: the camera as a dense matrix, filled element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]


def full_mask(mask: Array, batch: int, bands: int) -> Array:  # (B, K, C, H, W)
    """Write out a mask of any accepted shape for every sample, shot and band."""
    if mask.ndim == 2:
        mask = mask[None]
    while mask.ndim < 5:
        mask = mask[None]
    _, shots, _, height, width = mask.shape
    return np.broadcast_to(mask, (batch, shots, bands, height, width))


def camera_matrix(mask: Array, step: int) -> Array:  # (K·H·W', C·H·W)
    """Fill A of one sample from y[k, h, w + o(c)] += m[k, c, h, w] x[c, h, w]."""
    shots, bands, height, width = mask.shape
    wide = width + (bands - 1) * abs(step)
    matrix = np.zeros((shots, height, wide, bands, height, width))
    for k, c, h, w in np.ndindex(mask.shape):
        start = c * step if step >= 0 else (bands - 1 - c) * abs(step)
        matrix[k, h, w + start, c, h, w] += mask[k, c, h, w]
    return matrix.reshape(shots * height * wide, bands * height * width)


@pytest.fixture(scope="session")
def camera_matrices() -> Callable[[Array, int, int, int], list[Array]]:
    """`(mask, batch, bands, step)` → one dense matrix per sample."""

    def build(mask: Array, batch: int, bands: int, step: int) -> list[Array]:
        return [camera_matrix(sample, step) for sample in full_mask(mask, batch, bands)]

    return build


@pytest.fixture(scope="session")
def full_masks() -> Callable[[Array, int, int], Array]:
    """`full_mask`, for tests that loop themselves."""
    return full_mask
