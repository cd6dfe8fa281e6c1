"""Make and open cubes on the disk that are read and written in parts: TIFF, .npy and Zarr."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.data import sandboxed_reader
from cassi.data.formats import tiff
from cassi.data.formats.parts import Stack
from cassi.data.formats.zarr import create_zarr, open_plain_store
from cassi.data.wavelengths import checked_wavelengths, to_nanometres

STACK_SUFFIXES = (".tif", ".tiff", ".npy", ".zarr")
"""Formats in which a cube can be written in parts: uncompressed, band after band."""


def create_stack(
    path: Path, shape: tuple[int, int, int], wavelengths: Sequence[float] | None
) -> Stack:
    """Create the file of a cube with its final size, without the values.

    Args:
        path: path of the new file; its suffix is one of ``STACK_SUFFIXES``.
        shape: (C, H, W).
        wavelengths: nm, one per band, rising; None if they are not known.

    Raises:
        OSError: the disk has no room for the cube.
        ValueError: another suffix, or wavelengths that do not fit the bands or the format.
    """
    nm = None if wavelengths is None else checked_wavelengths(wavelengths, shape[0])
    dtype, suffix = np.dtype("<f4"), path.suffix.lower()
    if suffix == ".zarr":
        return create_zarr(path, shape, nm)
    if suffix in (".tif", ".tiff"):
        offset = tiff.write_header(path, shape, nm)
    elif suffix == ".npy":
        if nm is not None:
            raise ValueError("a .npy file cannot hold wavelengths: write .tif")
        offset = int(np.lib.format.open_memmap(path, "w+", dtype, shape).offset)
    else:
        suffixes = " ".join(STACK_SUFFIXES)
        raise ValueError(f"cannot write {path.name} in parts; use one of {suffixes}")
    with path.open("r+b") as file:
        # The blocks of the disk are reserved now, so that a full disk ends the command at once and
        # not after hours of reconstruction.
        os.posix_fallocate(file.fileno(), offset, math.prod(shape) * dtype.itemsize)
    return Stack(path, shape, dtype, offset)


def open_stack(path: Path) -> tuple[Stack, tuple[float, ...] | None] | None:
    """Open the cube of a file, to read it in parts.

    Returns:
        The cube, and its wavelengths in nm if they are stated. None if the file has another format
        or order of axes, or if its values are compressed or integers.
    """
    suffix, stated_wavelengths = path.suffix.lower(), None
    if suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        is_float_cube = array.ndim == 3 and array.dtype.kind == "f" and array.flags.c_contiguous
        # A .npy file does not state its axes. As in `selection`, the shortest axis is taken for the
        # bands.
        if not is_float_cube or array.shape[0] != min(array.shape):
            return None
        cube = Stack(path, array.shape, array.dtype, array.offset)
    elif suffix == ".zarr":
        store = open_plain_store(path)
        if store is None:
            return None
        cube, stated_wavelengths = store
    elif suffix in (".tif", ".tiff"):
        _, description = sandboxed_reader.read("stack", path)
        if description is None:
            return None
        bands, height, width = description["shape"]
        dtype, stated_wavelengths = np.dtype(description["dtype"]), description["wavelengths"]
        cube = Stack(path, (bands, height, width), dtype, description["offset"])
    else:
        return None
    nm = (
        None
        if stated_wavelengths is None
        else checked_wavelengths(to_nanometres(*stated_wavelengths), cube.shape[0])
    )
    return cube, nm
