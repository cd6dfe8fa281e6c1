"""What every metric asks of its two cubes."""

from __future__ import annotations

import torch
from torch import Tensor


def check_pair(x: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return both cubes as ``(B, C, H, W)``, in their own dtype.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, any floating dtype.
        truth: reference, the shape and device of ``x``.

    Raises:
        TypeError: one is not a floating-point tensor.
        ValueError: shapes or devices differ, a cube is empty, a value is NaN or infinite.
    """
    for name, cube in (("x", x), ("truth", truth)):
        if not isinstance(cube, Tensor):
            raise TypeError(f"expected {name} to be a tensor, got {type(cube).__name__}")
        if not cube.is_floating_point():
            raise TypeError(
                f"expected {name} to be floating point with values in [0, 1], got {cube.dtype}; "
                "divide by the largest level first"
            )
    if x.ndim not in (3, 4) or x.numel() == 0:
        raise ValueError(
            f"expected cubes (B, C, H, W) or (C, H, W) with at least one value, "
            f"got x of shape {tuple(x.shape)}"
        )
    if x.shape != truth.shape:
        raise ValueError(
            f"expected truth of the shape of x, {tuple(x.shape)}, got {tuple(truth.shape)}"
        )
    if x.device != truth.device:
        raise ValueError(f"expected truth on the device of x, {x.device}, got {truth.device}")
    for name, cube in (("x", x), ("truth", truth)):
        if not torch.isfinite(cube).all():
            raise ValueError(f"expected finite values, got NaN or infinity in {name}")
    return (x, truth) if x.ndim == 4 else (x[None], truth[None])


def like_input(values: Tensor, x: Tensor) -> Tensor:
    """Return ``(B,)`` for a batch, a 0-d tensor for a single cube ``x``."""
    return values if x.ndim == 4 else values[0]
