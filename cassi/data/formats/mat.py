"""MATLAB files: up to v7 through scipy, v7.3 (HDF5 files) through h5py."""

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import LONGEST_TEXT, Source, as_text, check_size
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MATLAB_NUMBERS = {"double", "single", "logical", *_INTEGERS}
_MATRIX, _COMPRESSED = 14, 15
_OPAQUE = 17
_NEVER_READ = {1, 2, 3, 5, 16}  # cell, struct, object, sparse, function
_CHAR, _COMPLEX = 4, 0x0800  # a class of arrays, and a flag
# Of what numbers are written as; scipy looks others up in a table that ends before them.
_NUMBERS, _TEXTS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}, {16, 17, 18}
# Flags, axes and name of an array come first; MATLAB's names have at most 63 letters.
_HEAD = 4096


@contextmanager
def read_mat(path: Path) -> Iterator[Source]:
    """MATLAB files: up to v7 through scipy, v7.3 (an HDF5 file) through h5py."""
    with path.open("rb") as file:
        head = file.read(520)
    matlab73 = b"MATLAB 7.3" in head[:116] or head[512:] == SIGNATURE
    if matlab73 or head.startswith(SIGNATURE):
        with read_hdf5(path, matlab=matlab73) as source:
            yield source
        return

    from scipy.io import loadmat, whosmat

    complex_names = check_mat(path)
    shapes, others, letters = {}, {}, 0
    for name, shape, kind in whosmat(path, appendmat=False):
        if name in complex_names:
            others[name] = "an array of complex numbers"
        elif kind in _MATLAB_NUMBERS:
            shapes[name] = tuple(shape)
        else:
            others[name] = f"a {kind} array"
            letters = math.prod(shape) if name == "axes" else letters

    def read(name: str) -> np.ndarray:
        return np.asarray(loadmat(path, appendmat=False, variable_names=[name])[name])

    axes = {}
    if "cube" in shapes and others.get("axes") == "a char array" and letters <= LONGEST_TEXT:
        axes["cube"] = as_text(read("axes"))
    yield Source(shapes, read, others, axes)


def write_mat(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` (H, W, C), its `axes` and `wavelengths` (nm), compressed, as version 5."""
    from scipy.io import savemat

    content: dict[str, Any] = {"cube": cube.transpose(1, 2, 0), "axes": "HWC"}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    savemat(str(path), content, appendmat=False, do_compression=True)


def check_mat(path: Path) -> set[str]:
    """Refuse a file whose arrays claim more than it can hold.

    Sizes stand in it three times: in the tag of an element, in the axes of its array, and in the
    tag of the numbers. They are compared with each other and with the file.

    Returns:
        The names of complex arrays, whose second half is not looked at: not to be read.

    Raises:
        ValueError: They do not fit; or it is a file of another version.
    """
    size, complex_names = path.stat().st_size, set()
    with path.open("rb") as file:
        head = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
        if order is None or 0 in head[:4]:
            raise ValueError("no MATLAB file of version 5 to 7.3; save it again with -v7")
        while len(tag := file.read(8)) == 8:
            kind, stored = struct.unpack(f"{order}II", tag)
            start = file.tell()
            check_size(start + stored, size)
            if kind == _COMPRESSED:
                try:
                    found = zlib.decompressobj().decompress(file.read(min(stored, _HEAD)), _HEAD)
                except zlib.error as error:
                    raise ValueError(f"damaged compressed data: {error}") from None
            else:
                found = tag + file.read(min(stored, _HEAD))
            if len(found) < 8:
                raise ValueError("the file is cut short in the head of an array")
            kind, claimed = struct.unpack(f"{order}II", found[:8])
            if kind == _MATRIX:
                check_size(claimed, stored, compressed=True)
                name = _check_matrix(found[8:], order, claimed)
                if name is not None:
                    complex_names.add(name)
            file.seek(start + stored)
    return complex_names


def _check_matrix(head: bytes, order: str, claimed: int) -> str | None:
    # Returns the name of a complex array.
    if claimed == 0:
        return None  # an empty array needs no more
    found, at = _element(head, 0, order)
    flags = struct.unpack(f"{order}I", found[:4])[0] if len(found) >= 4 else 0
    kind = flags & 0xFF
    if kind == _OPAQUE:
        return None  # it has no axes
    axes, at = _element(head, at, order)
    name, at = _element(head, at, order)
    if len(axes) % 4 or not 8 <= len(axes) <= 4 * 32:
        raise ValueError(f"expected 2 to 32 axes of an array, got {len(axes) // 4}")
    shape = struct.unpack(f"{order}{len(axes) // 4}i", axes)
    if min(shape) < 0:
        raise ValueError(f"expected sizes of at least 0, got {shape}")
    if kind in _NEVER_READ:
        return None
    # Real and imaginary part, of eight bytes an element at most.
    elements = math.prod(shape)
    if claimed > 16 * elements + at + 16:
        raise ValueError(f"it claims {claimed} bytes of data for an array of {shape}")
    if elements:
        if len(tag := head[at : at + 8]) < 8:
            raise ValueError("the file is cut short in the head of an array")
        written, size = struct.unpack(f"{order}II", tag)
        if not written >> 16 and size > 8 * elements:  # else these are the numbers themselves
            raise ValueError(f"it claims {size} bytes of numbers for an array of {shape}")
        written &= 0xFFFF if written >> 16 else 0xFFFFFFFF
        if written not in (_NUMBERS | _TEXTS if kind == _CHAR else _NUMBERS):
            raise ValueError(f"expected numbers in an array, got data of type {written}")
    return name.decode("latin1") if flags & _COMPLEX else None


def _element(head: bytes, at: int, order: str) -> tuple[bytes, int]:
    """Content of a data element, and where the next one begins."""
    if at + 8 > len(head):
        raise ValueError("the file is cut short in the head of an array")
    kind, size = struct.unpack(f"{order}II", head[at : at + 8])
    if kind >> 16:  # a small one: size, type and content in eight bytes
        return head[at + 4 : at + 4 + min(kind >> 16, 4)], at + 8
    check_size(at + 8 + size, len(head))
    return head[at + 8 : at + 8 + size], at + 8 + -(-size // 8) * 8
