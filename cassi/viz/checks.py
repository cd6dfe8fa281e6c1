"""Check of the arguments of all figures (cubes, wavelengths, points), and their common scales."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = np.ndarray | torch.Tensor
Wavelengths: TypeAlias = Sequence[float] | np.ndarray | torch.Tensor | None


def as_array(value: object, name: str) -> np.ndarray:
    """Return a tensor or array of real numbers as float32 or float64, if possible without a copy.

    `name` names the array in messages.

    Raises:
        TypeError: the values are no real numbers.
        ValueError: a value is NaN or infinite.
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
    # One NaN or infinity makes the sum NaN or infinite. The sum needs no second array of the same
    # size, which `isfinite` would. The second sum, of float32, cannot overflow.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(array.sum()) or np.isfinite(array.sum(dtype=np.float64))
    if not is_finite:
        raise ValueError(
            f"expected finite numbers in {name}, got NaN or infinity: "
            "check the reconstruction or replace them (numpy.nan_to_num)"
        )
    return array


def as_cube(cube: Array, name: str = "cube", shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a cube (C, H, W) as a float array, after a check of its values and shape.

    Raises:
        TypeError: the values are no real numbers.
        ValueError: the cube is not (C, H, W), not of the expected shape, or not finite.
    """
    cube_shape = tuple(np.shape(cube))
    if len(cube_shape) != 3 or 0 in cube_shape:
        advice = "take one scene of the batch, cube[0]" if len(cube_shape) == 4 else "reshape it"
        raise ValueError(f"expected a {name} (C, H, W), got shape {cube_shape}: {advice}")
    if shape is not None and cube_shape != shape:
        raise ValueError(
            f"expected a {name} of the scene's shape {shape}, got {cube_shape}: "
            "crop or resample one of them"
        )
    return as_array(cube, name)


def as_truth(truth: Array | None, cube: np.ndarray) -> np.ndarray | None:
    """Return the truth as a float array of the estimate's shape; see `as_cube`. None stays None."""
    return None if truth is None else as_cube(truth, "truth", cube.shape)


def as_wavelengths(wavelengths: Wavelengths, bands: int) -> np.ndarray | None:
    """Return the wavelengths (nm) of a cube's bands as float64 (C,); None stays None.

    Raises:
        TypeError: the values are no real numbers.
        ValueError: the wavelengths are not C increasing values in nm.
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
    # No optical wavelength is below 10 nm. Such numbers are micrometres, a common mistake.
    if values[0] < 10:
        raise ValueError(
            f"expected wavelengths in nm, got {values[0]:g} to {values[-1]:g}: "
            "multiply micrometres by 1000"
        )
    return values


def as_points(
    points: Sequence[Sequence[float]], height: int, width: int
) -> list[tuple[float, float]]:
    """Return points as (row, column) pairs, pixels from 0: ints for whole pixels, else floats.

    Raises:
        ValueError: there is no point, or a point is no pair of numbers inside the picture.
    """
    pairs: list[tuple[float, float]] = []
    for point in points:
        pair = tuple(point)
        if len(pair) != 2 or not all(
            isinstance(number, int | float | np.number) for number in pair
        ):
            raise ValueError(f"expected points (row, column), got {point}: give two numbers")
        row, column = pair
        if not (0 <= row <= height - 1 and 0 <= column <= width - 1):
            raise ValueError(
                f"expected points (row, column) inside {height}×{width} pixels, "
                f"got ({row}, {column}): count from 0, row first"
            )
        is_whole = row == int(row) and column == int(column)
        pairs.append((int(row), int(column)) if is_whole else (float(row), float(column)))
    if not pairs:
        raise ValueError("expected at least one point (row, column), got none: leave it out or add")
    return pairs


def shrink(cube: np.ndarray, block: int) -> np.ndarray:
    """Return means of a cube (C, H, W) over square blocks, without rows and columns left over."""
    if block == 1:
        return cube
    bands, height, width = cube.shape
    block_h, block_w = min(block, height), min(block, width)
    rows, columns = height // block_h, width // block_w
    blocks = cube[:, : rows * block_h, : columns * block_w]
    return blocks.reshape(bands, rows, block_h, columns, block_w).mean(axis=(2, 4))


def white_level(*pictures: np.ndarray) -> float:
    """Return the value shown as full brightness: the 99.5th percentile, or 1 for black pictures."""
    values = np.concatenate([picture.ravel() for picture in pictures])
    level = quantile(values, 0.995)
    # Fewer than 0.5 % of the pixels may be lit, as in a picture of a few stars.
    if level <= 0:
        level = float(values.max())
    return level if level > 0 else 1.0


def quantile(values: np.ndarray, share: float) -> float:
    """Return the value below which a share of the values lies, linear between two values."""
    # `numpy.quantile` imports `numpy.ma`, which takes as long as some of the pictures.
    values = values.ravel()
    place = share * (values.size - 1)
    below = int(place)
    above = min(below + 1, values.size - 1)
    parts = np.partition(values, (below, above))
    low, high = float(parts[below]), float(parts[above])
    return low + (place - below) * (high - low)
