"""Cubes that lie band after band in a file or a store, read and written in parts."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.data import door
from cassi.data.formats import tiff
from cassi.data.formats.parts import Stack
from cassi.data.formats.zarr import create_zarr, open_own
from cassi.data.wavelengths import checked_wavelengths, to_nanometres

STACK_SUFFIXES = (".tif", ".tiff", ".npy", ".zarr")
"""Formats whose files hold a cube so, uncompressed."""


def create_stack(
    path: Path, shape: tuple[int, int, int], wavelengths: Sequence[float] | None
) -> Stack:
    """Make the file of a cube, as long as it will be, without its values.

    Args:
        path: suffix as in ``STACK_SUFFIXES``; nothing is there yet.
        shape: (C, H, W).
        wavelengths: One per band in nm, increasing.
    """
    nm = None if wavelengths is None else checked_wavelengths(wavelengths, shape[0])
    dtype, suffix = np.dtype("<f4"), path.suffix.lower()
    if suffix == ".zarr":
        return create_zarr(path, shape, nm)
    if suffix in (".tif", ".tiff"):
        offset = tiff.reserve(path, shape, nm)
    elif suffix == ".npy":
        if nm is not None:
            raise ValueError("a .npy file cannot hold wavelengths: write .tif")
        offset = int(np.lib.format.open_memmap(path, "w+", dtype, shape).offset)
    else:
        known = " ".join(STACK_SUFFIXES)
        raise ValueError(f"cannot write {path.name} in parts; use one of {known}")
    with path.open("r+b") as file:
        # A full disk is better noticed now than after hours.
        os.posix_fallocate(file.fileno(), offset, math.prod(shape) * dtype.itemsize)
    return Stack(path, shape, dtype, offset)


def open_stack(path: Path) -> tuple[Stack, tuple[float, ...] | None] | None:
    """Open the cube of a file, to read it in parts.

    Returns:
        The cube and its wavelengths in nm, if stated; None where the file holds it in another
        way: compressed, in another order of axes or another format, or as integers.
    """
    suffix, stated = path.suffix.lower(), None
    if suffix == ".npy":
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        found = mapped.ndim == 3 and mapped.dtype.kind == "f" and mapped.flags.c_contiguous
        if not found or mapped.shape[0] != min(mapped.shape):  # the bands come first
            return None
        cube = Stack(path, mapped.shape, mapped.dtype, mapped.offset)
    elif suffix == ".zarr":
        own = open_own(path)
        if own is None:
            return None
        cube, stated = own
    elif suffix in (".tif", ".tiff"):
        _, about = door.read("stack", path)
        if about is None:
            return None
        bands, height, width = about["shape"]
        dtype, stated = np.dtype(about["dtype"]), about["wavelengths"]
        cube = Stack(path, (bands, height, width), dtype, about["offset"])
    else:
        return None
    nm = None if stated is None else checked_wavelengths(to_nanometres(*stated), cube.shape[0])
    return cube, nm
