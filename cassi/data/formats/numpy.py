"""numpy's files: one array (npy), or several with names (npz)."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from cassi.data.formats import LONGEST_TEXT, Source, as_text, check_plain, check_size

# numpy refuses headers of more than this many bytes too, but after reading them.
_LARGEST_HEADER = 10_000
_NUMPY_ZIP = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    start = file.tell()
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    check_size(length, _LARGEST_HEADER)
    file.seek(start)
    np.lib.format.read_magic(file)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = header(file)
    return shape, dtype


def read_array(path: Path) -> np.ndarray:
    """Read an array that numpy saved.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no such file, is a link, is cut short, or holds Python objects.
    """
    try:
        check_plain(path)
        with read_npy(path) as source:
            return source.read("")
    except OSError:
        raise
    except Exception as error:  # its header is Python text, which fails in many ways
        raise ValueError(f"cannot read {path} as .npy: {error}") from None


@contextmanager
def read_npy(path: Path) -> Iterator[Source]:
    """One numpy array."""
    with path.open("rb") as file:
        shape, dtype = _npy_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled; save numbers")
        check_size(math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell())
    yield Source({"": shape}, lambda _: np.load(path, allow_pickle=False))


@contextmanager
def read_npz(path: Path) -> Iterator[Source]:
    """Several named numpy arrays in a zip archive."""
    shapes, others, members, lengths = {}, {}, {}, {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue
            if info.compress_type not in _NUMPY_ZIP:
                raise ValueError(f"{name!r} is compressed in a way that numpy does not know")
            with archive.open(info) as member:
                shape, dtype = _npy_header(member)
            if dtype.kind in "biufcSU":
                claimed = math.prod(shape) * dtype.itemsize
                check_size(claimed, info.file_size)
                # What the archive says of itself may be wrong too.
                stored = min(info.compress_size, path.stat().st_size)
                check_size(claimed, stored, compressed=True)
                members[name], lengths[name] = info, claimed
            if dtype.kind in "biufc":
                shapes[name] = shape
            else:
                others[name] = "Python objects" if dtype.hasobject else f"of type {dtype}"

        def read(name: str) -> np.ndarray:
            with archive.open(members[name]) as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        axes = {}
        if "cube" in shapes and lengths.get("axes", LONGEST_TEXT + 1) <= LONGEST_TEXT:
            axes["cube"] = as_text(read("axes"))
        yield Source(shapes, read, others, axes)


def write_npz(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube`, its `axes` and `wavelengths` (nm), compressed."""
    content = {"cube": cube, "axes": np.asarray("CHW")}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **content)


def write_npy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write the cube alone; ValueError where there are wavelengths."""
    if wavelengths is not None:
        raise ValueError("a .npy file cannot hold wavelengths: write .npz or .tif")
    with path.open("wb") as file:
        np.save(file, cube, allow_pickle=False)
