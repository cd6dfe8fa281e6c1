"""MATLAB files: up to v7 through scipy, v7.3 (HDF5 files) through h5py."""

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import LONGEST_TEXT, Source, as_text, check_size
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5

_MATRIX, _COMPRESSED = 14, 15
_OPAQUE = 17
_STRUCT, _CHAR, _COMPLEX = 2, 4, 0x0800  # classes of arrays, and a flag
_OTHERS = {
    1: "a cell array",
    _STRUCT: "a struct array",
    3: "an object",
    _CHAR: "a char array",
    5: "a sparse array, save full(…) of it",
    16: "a function",
    _OPAQUE: "an object or a string",
}
"""What is not read, by the class of the array."""
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

    from scipy.io import loadmat

    shapes, others, letters = {}, {}, 0
    for name, (kind, shape) in check_mat(path).items():
        if kind == "":
            shapes[name] = shape
        else:
            others[name] = kind
            letters = math.prod(shape) if name == "axes" else letters

    def read(name: str) -> np.ndarray:
        return np.asarray(loadmat(path, appendmat=False, variable_names=[name])[name])

    axes = {}
    if "cube" in shapes and others.get("axes") == _OTHERS[_CHAR] and letters <= LONGEST_TEXT:
        axes["cube"] = as_text(read("axes"))
    yield Source(shapes, read, others, axes)


def write_mat(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` (H, W, C), its `axes` and `wavelengths` (nm), compressed, as version 5."""
    from scipy.io import savemat

    content: dict[str, object] = {"cube": cube.transpose(1, 2, 0), "axes": "HWC"}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    savemat(str(path), content, appendmat=False, do_compression=True)


def check_mat(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Refuse a file whose arrays claim more than it can hold.

    Sizes stand in it three times: in the tag of an element, in the axes of its array, and in the
    tag of the numbers. They are compared with each other and with the file.

    Returns:
        What each variable is, in words, "" for numbers that can be read; and its shape. Of complex
        arrays the second half is not looked at: not to be read.

    Raises:
        ValueError: They do not fit; or it is a file of another version.
    """
    size, variables = path.stat().st_size, dict[str, tuple[str, tuple[int, ...]]]()
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
                name, words, shape = _check_matrix(found[8:], order, claimed)
                if name:  # else it belongs to an object
                    variables[name] = words, shape
            file.seek(start + stored)
    return variables


def _check_matrix(head: bytes, order: str, claimed: int) -> tuple[str, str, tuple[int, ...]]:
    """Return the name of an array, what it is in words, "" for real numbers, and its shape."""
    if claimed == 0:
        return "", "empty", ()  # an empty array needs no more
    found, at = _element(head, 0, order)
    flags = struct.unpack(f"{order}I", found[:4])[0] if len(found) >= 4 else 0
    kind = flags & 0xFF
    if kind == _OPAQUE:  # it has no axes
        return _element(head, at, order)[0].decode("latin1"), _OTHERS[kind], ()
    axes, at = _element(head, at, order)
    name, at = _element(head, at, order)
    if len(axes) % 4 or not 8 <= len(axes) <= 4 * 32:
        raise ValueError(f"expected 2 to 32 axes of an array, got {len(axes) // 4}")
    shape = struct.unpack(f"{order}{len(axes) // 4}i", axes)
    if min(shape) < 0:
        raise ValueError(f"expected sizes of at least 0, got {shape}")
    said = name.decode("latin1")
    if kind in _OTHERS and kind != _CHAR:
        return said, _OTHERS[kind] + (_fields(head, at, order) if kind == _STRUCT else ""), shape
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
    words = "an array of complex numbers" if flags & _COMPLEX else _OTHERS.get(kind, "")
    return said, words, shape


def _fields(head: bytes, at: int, order: str) -> str:
    """Name the fields of a struct, where they stand in the head of its array."""
    try:
        length, at = _element(head, at, order)
        names, _ = _element(head, at, order)
        each = struct.unpack(f"{order}i", length)[0]
        fields = [names[i : i + each].split(b"\0")[0] for i in range(0, len(names), max(each, 1))]
    except (ValueError, struct.error):
        return ""
    return f" of {', '.join(name.decode('latin1') for name in fields[:8])}"


def _element(head: bytes, at: int, order: str) -> tuple[bytes, int]:
    """Content of a data element, and where the next one begins."""
    if at + 8 > len(head):
        raise ValueError("the file is cut short in the head of an array")
    kind, size = struct.unpack(f"{order}II", head[at : at + 8])
    if kind >> 16:  # a small one: size, type and content in eight bytes
        return head[at + 4 : at + 4 + min(kind >> 16, 4)], at + 8
    check_size(at + 8 + size, len(head))
    return head[at + 8 : at + 8 + size], at + 8 + -(-size // 8) * 8
