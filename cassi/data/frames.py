"""Corrections of a raw frame before it is a measurement."""

from __future__ import annotations

from torch import Tensor


def edge_level(measurement: Tensor, step: int, axis: int = -1) -> float:
    """Estimate a sensor's dark level from the edges of one snapshot.

    The outermost |step| columns on either side are reached by a single band, so what they show of
    the scene is faint beside the middle, where C bands add up. Their median is the level. It is too
    high where the scene is bright up to its left and right border; a dark frame is better.

    Args:
        measurement: `(B, K, H, W')`.
        step: dispersion, pixels per band.
        axis: of the dispersion, -1 or -2.

    Returns:
        The level in the unit of the measurement.
    """
    length = measurement.shape[axis]
    count = min(max(1, abs(step)), length)
    left = measurement.narrow(axis, 0, count).flatten()
    right = measurement.narrow(axis, length - count, count).flatten()
    return left.new_tensor([left.median().item(), right.median().item()]).mean().item()
