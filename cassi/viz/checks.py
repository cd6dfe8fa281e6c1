"""What the functions of this package accept: cubes, wavelengths and pixel positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Array: TypeAlias = np.ndarray | torch.Tensor
Wavelengths: TypeAlias = Sequence[float] | np.ndarray | torch.Tensor | None


def as_array(value: Any, name: str) -> np.ndarray:
    """Gives a tensor or array as a float NumPy array, without a copy where it already is one.

    Args:
        value: tensor on any device, or array, of real numbers.
        name: what to call it in errors.

    Returns:
        The same values, float32 or float64.

    Raises:
        TypeError: if the values are complex or no numbers.
        ValueError: if a value is NaN or infinite.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:  # the one float type that NumPy lacks
            value = value.float()
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"expected {name} of real numbers, got dtype {array.dtype}: convert it")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    # One NaN or infinity makes the whole sum so; unlike isfinite this needs no second array.
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.sum(array, dtype=np.float64)
    if not np.isfinite(total):
        raise ValueError(
            f"expected finite numbers in {name}, got NaN or infinity: "
            "check the reconstruction or replace them (numpy.nan_to_num)"
        )
    return array


def as_cube(cube: Array, name: str = "cube") -> np.ndarray:
    """Checks a cube.

    Args:
        cube: (C, H, W), finite.
        name: what to call it in errors.

    Returns:
        The cube as a float array (C, H, W).

    Raises:
        TypeError: if the values are complex or no numbers.
        ValueError: if it has another number of axes, no element, or a NaN.
    """
    shape = tuple(np.shape(cube))
    if len(shape) != 3 or 0 in shape:
        advice = "take one scene of the batch, cube[0]" if len(shape) == 4 else "reshape it"
        raise ValueError(f"expected a {name} (C, H, W), got shape {shape}: {advice}")
    return as_array(cube, name)


def as_truth(truth: Array | None, cube: np.ndarray) -> np.ndarray | None:
    """Checks the true cube against the estimate; None stays None.

    Raises:
        TypeError: if the values are complex or no numbers.
        ValueError: if the two shapes differ, or it holds a NaN.
    """
    if truth is None:
        return None
    array = as_cube(truth, "truth")
    if array.shape != cube.shape:
        raise ValueError(
            f"expected a truth of the cube's shape {cube.shape}, got {array.shape}: "
            "crop or resample one of them"
        )
    return array


def as_wavelengths(wavelengths: Wavelengths, bands: int) -> np.ndarray | None:
    """Checks the wavelengths of a cube's bands; None stays None.

    Args:
        wavelengths: C numbers, nm, increasing.
        bands: C.

    Returns:
        float64 (C,), or None.

    Raises:
        ValueError: if their number is not C, one is not positive, or they do not increase.
    """
    if wavelengths is None:
        return None
    values = as_array(wavelengths, "wavelengths").astype(np.float64)
    if values.shape != (bands,):
        raise ValueError(
            f"expected {bands} wavelengths, one a band, got shape {values.shape}: "
            "give one number (nm) a band, or None"
        )
    if values[0] <= 0 or np.any(np.diff(values) <= 0):
        raise ValueError(
            f"expected positive wavelengths (nm) that increase, got {values.tolist()}: "
            "sort the bands of the cube with them"
        )
    return values


def as_points(
    points: Sequence[Sequence[float]], height: int, width: int
) -> list[tuple[float, float]]:
    """Checks positions in a picture.

    Args:
        points: (row, column) pairs, pixels from 0, whole or not.
        height: H.
        width: W.

    Returns:
        The same positions; those of pixels as whole numbers.

    Raises:
        ValueError: if there is none, one is no pair of numbers, or lies outside.
    """
    checked: list[tuple[float, float]] = []
    for point in points:
        pair = tuple(point)
        if len(pair) != 2 or not all(isinstance(place, int | float | np.number) for place in pair):
            raise ValueError(f"expected points (row, column), got {point}: give two numbers")
        row, column = pair
        if not (0 <= row <= height - 1 and 0 <= column <= width - 1):
            raise ValueError(
                f"expected points (row, column) inside {height}×{width} pixels, "
                f"got ({row}, {column}): count from 0, row first"
            )
        whole = row == int(row) and column == int(column)
        checked.append((int(row), int(column)) if whole else (float(row), float(column)))
    if not checked:
        raise ValueError("expected at least one point (row, column), got none: leave it out or add")
    return checked
