"""Cubes that lie band after band in a file or a store, read and written in parts."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cassi.data import door
from cassi.data.formats import tiff
from cassi.data.formats.parts import Planes
from cassi.data.formats.zarr import create_zarr, open_chunks
from cassi.data.wavelengths import checked_wavelengths, to_nanometres

STACK_SUFFIXES = (".tif", ".tiff", ".npy", ".zarr")
"""Formats whose files hold a cube so, uncompressed."""


class Stack(Protocol):
    """A cube `(C, H, W)` on the disk, of which only the part that is asked for is in memory."""

    @property
    def path(self) -> Path:
        """The file or store."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    def read(self, bands: slice = ..., rows: slice = ..., columns: slice = ...) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`."""

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` of rows and columns."""


def create_stack(
    path: Path, shape: tuple[int, int, int], wavelengths: Sequence[float] | None
) -> Stack:
    """Make the file of a cube, as long as it will be, without its values.

    Args:
        path: suffix as in ``STACK_SUFFIXES``; nothing is there yet.
        shape: (C, H, W).
        wavelengths: One per band in nm, increasing.

    Raises:
        OSError: the disk has no room for it, ….
        ValueError: another suffix, or wavelengths that do not fit.
    """
    nm = None if wavelengths is None else checked_wavelengths(wavelengths, shape[0])
    dtype, suffix = np.dtype("<f4"), path.suffix.lower()
    if suffix == ".zarr":
        return create_zarr(path, shape, nm)
    if suffix in (".tif", ".tiff"):
        import tifffile

        how: dict[str, Any] = tiff.described(tiff.is_ome(path), nm) | {"returnoffset": True}
        # Not tifffile.memmap, which moves the values to the next page of memory.
        written = tifffile.imwrite(path, shape=shape, dtype=dtype, **how)
        assert written is not None  # what is not compressed lies in one piece
        offset = int(written[0])
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
    return Planes(path, offset, shape, dtype)


def open_stack(path: Path) -> tuple[Stack, tuple[float, ...] | None] | None:
    """Open the cube of a file, to read it in parts.

    Returns:
        The cube and its wavelengths in nm, if stated; None where the file holds it in another
        way: compressed, in another order of axes or another format, or as integers.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        found = mapped.ndim == 3 and mapped.dtype.kind == "f" and mapped.flags.c_contiguous
        if not found or mapped.shape[0] != min(mapped.shape):  # the bands come first
            return None
        return Planes(path, mapped.offset, mapped.shape, mapped.dtype), None
    if suffix == ".zarr":
        chunked = open_chunks(path)
        if chunked is None:
            return None
        cube, stated = chunked
        values = None if stated is None else to_nanometres(*stated)
        return cube, None if values is None else checked_wavelengths(values, cube.shape[0])
    if suffix not in (".tif", ".tiff"):
        return None
    _, about = door.read("stack", path)
    if about is None:
        return None
    bands, height, width = about["shape"]
    nm = about["wavelengths"]
    nm = None if nm is None else checked_wavelengths(to_nanometres(*nm), bands)
    return Planes(path, about["offset"], (bands, height, width), np.dtype(about["dtype"])), nm
