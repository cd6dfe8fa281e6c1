"""Formats that hold named arrays: MATLAB, HDF5, npy and npz."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from cassi.data.formats import (
    Reader,
    Source,
    Writer,
    as_text,
    check_expansion,
    check_size,
    may_exhaust,
)
from cassi.data.matlab import check_mat

__all__ = ["READERS", "WRITERS", "read_npy"]

_SIGNATURE_HDF5 = b"\x89HDF\r\n\x1a\n"
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MATLAB_NUMBERS = {"double", "single", "logical", *_INTEGERS}
# numpy refuses headers of more than this many bytes too, but after reading them.
_LARGEST_HEADER = 10_000
_DEEPEST = 32
_NUMPY_ZIP = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


# .mat ---------------------------------------------------------------------------------------------


@contextmanager
def _read_mat(path: Path) -> Iterator[Source]:
    """MATLAB files: up to v7 through scipy, v7.3 (an HDF5 file) through h5py."""
    with path.open("rb") as file:
        head = file.read(520)
    matlab73 = b"MATLAB 7.3" in head[:116] or head[512:] == _SIGNATURE_HDF5
    if matlab73 or head.startswith(_SIGNATURE_HDF5):
        with _read_hdf5(path, matlab=matlab73) as source:
            yield source
        return

    from scipy.io import loadmat, whosmat

    complex_names = check_mat(path)
    shapes, others = {}, {}
    for name, shape, kind in whosmat(path, appendmat=False):
        if name in complex_names:
            others[name] = "an array of complex numbers"
        elif kind in _MATLAB_NUMBERS:
            shapes[name] = tuple(shape)
        else:
            others[name] = f"a {kind} array"

    def read(name: str) -> np.ndarray:
        return np.asarray(loadmat(path, appendmat=False, variable_names=[name])[name])

    axes = {}
    if "cube" in shapes and others.get("axes") == "a char array":
        axes["cube"] = as_text(read("axes"))
    yield Source(shapes, read, others, axes)


# HDF5 ---------------------------------------------------------------------------------------------


@contextmanager
def _read_hdf5(path: Path, *, matlab: bool = False) -> Iterator[Source]:
    """HDF5 files; data sets inside groups are named by their path.

    MATLAB writes its column-major arrays as they lie in memory, so HDF5 sees the axes reversed;
    they are turned back where the file or the data set says that MATLAB wrote it.
    """
    import h5py

    shapes, others, axes = {}, {}, {}
    wavelengths, turned = None, set()

    def attribute(item: Any, name: str) -> Any:
        # Text of variable length lies in a heap; in a damaged one HDF5 2.0 was seen to loop.
        if name not in item.attrs or item.attrs.get_id(name).dtype.kind == "O":
            return ""
        return item.attrs[name]

    with h5py.File(path, "r") as file:

        def visit(name: str, item: Any) -> None:
            nonlocal wavelengths
            if name.count("/") > _DEEPEST:  # each is opened by its whole path
                raise ValueError(f"groups lie in groups more than {_DEEPEST} deep")
            if not isinstance(item, h5py.Dataset) or name.startswith("#"):
                return
            kind = as_text(attribute(item, "MATLAB_class"))
            if matlab or kind:
                turned.add(name)
            if kind in {"char", "cell", "struct", "function_handle"}:
                others[name] = f"a {kind} array"
            elif item.dtype.names and set(item.dtype.names) == {"real", "imag"}:
                others[name] = "an array of complex numbers"
            elif item.dtype.kind not in "biufc" or "MATLAB_empty" in item.attrs or not item.size:
                others[name] = "empty" if item.dtype.kind in "biufc" else f"of type {item.dtype}"
            elif item.is_virtual or item.external:
                others[name] = "kept in other files"
            else:
                shapes[name] = item.shape[::-1] if name in turned else item.shape
                axes[name] = as_text(attribute(item, "axes"))
                if np.size(values := attribute(item, "wavelengths")) > 1:
                    wavelengths = (values, "")

        file.visititems(visit)

        def read(name: str) -> np.ndarray:
            item = file[name]
            _check_hdf5(item)
            array = np.asarray(item[()])
            return array.T if name in turned else array

        yield Source(shapes, read, others, axes, wavelengths)


def _check_hdf5(item: Any) -> None:
    """Refuse a data set, or a chunk of one, that claims more than the file holds for it."""
    stored = item.id.get_storage_size()
    check_size(item.nbytes, stored, compressed=item.chunks is not None)
    if item.chunks is None:
        return
    size = math.prod(item.chunks) * item.dtype.itemsize
    check_size(size, stored, compressed=True)
    if item.compression == "gzip":
        parts: list[Any] = []
        item.id.chunk_iter(parts.append)
        for part in parts:
            # The check sum of a chunk is behind its deflated bytes.
            check_size(part.size, size + size // 100 + 64)
            if may_exhaust(part.size):
                check_expansion(item.id.read_direct_chunk(part.chunk_offset)[1], size)


# numpy --------------------------------------------------------------------------------------------


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


def read_npy(path: Path) -> np.ndarray:
    """Read an array that numpy saved.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no such file, is cut short, or holds Python objects.
    """
    try:
        with _read_npy(path) as source:
            return source.read("")
    except OSError:
        raise
    except Exception as error:  # its header is Python text, which fails in many ways
        raise ValueError(f"cannot read {path} as .npy: {error}") from None


@contextmanager
def _read_npy(path: Path) -> Iterator[Source]:
    """One numpy array."""
    with path.open("rb") as file:
        shape, dtype = _npy_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled; save numbers")
        check_size(math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell())
    yield Source({"": shape}, lambda _: np.load(path, allow_pickle=False))


@contextmanager
def _read_npz(path: Path) -> Iterator[Source]:
    """Several named numpy arrays in a zip archive."""
    shapes, others, members = {}, {}, {}
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
                members[name] = info
            if dtype.kind in "biufc":
                shapes[name] = shape
            else:
                others[name] = "Python objects" if dtype.hasobject else f"of type {dtype}"

        def read(name: str) -> np.ndarray:
            with archive.open(members[name]) as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        axes = {}
        if "cube" in shapes and "axes" in members:
            axes["cube"] = as_text(read("axes"))
        yield Source(shapes, read, others, axes)


# Writers ------------------------------------------------------------------------------------------


def _write_mat(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    from scipy.io import savemat

    content: dict[str, Any] = {"cube": cube.transpose(1, 2, 0), "axes": "HWC"}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    savemat(str(path), content, appendmat=False, do_compression=True)


def _write_npz(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    content = {"cube": cube, "axes": np.asarray("CHW")}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **content)


def _write_npy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    if wavelengths is not None:
        raise ValueError("a .npy file cannot hold wavelengths: write .npz or .tif")
    with path.open("wb") as file:
        np.save(file, cube, allow_pickle=False)


def _write_hdf5(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        item = file.create_dataset("cube", data=cube, compression="gzip")
        item.attrs["axes"] = np.bytes_("CHW")
        if wavelengths is not None:
            file.create_dataset("wavelengths", data=np.asarray(wavelengths))
            file["wavelengths"].attrs["units"] = np.bytes_("nm")


READERS: dict[str, Reader] = {
    ".mat": _read_mat,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}
WRITERS: dict[str, Writer] = {
    ".mat": _write_mat,
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
}
