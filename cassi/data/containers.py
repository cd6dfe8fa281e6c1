"""Formats that hold named arrays: MATLAB, HDF5, npy and npz."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from cassi.data.formats import Reader, Source, Writer, as_text, check_size

__all__ = ["READERS", "WRITERS"]

_SIGNATURE_HDF5 = b"\x89HDF\r\n\x1a\n"
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MATLAB_NUMBERS = {"double", "single", "logical", *_INTEGERS}


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

    shapes, others = {}, {}
    for name, shape, kind in whosmat(path, appendmat=False):
        if kind in _MATLAB_NUMBERS:
            check_size(8 * math.prod(shape), path.stat().st_size, compressed=True)
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
            stored = item.id.get_storage_size()
            check_size(item.nbytes, stored, compressed=item.chunks is not None)
            array = np.asarray(item[()])
            return array.T if name in turned else array

        yield Source(shapes, read, others, axes, wavelengths)


# numpy --------------------------------------------------------------------------------------------


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = header(file)
    return shape, dtype


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
    shapes, others = {}, {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue
            with archive.open(info) as member:
                shape, dtype = _npy_header(member)
            if dtype.kind in "biufc":
                claimed = math.prod(shape) * dtype.itemsize
                check_size(claimed, info.file_size)
                check_size(claimed, info.compress_size, compressed=True)
                shapes[name] = shape
            else:
                others[name] = "Python objects" if dtype.hasobject else f"of type {dtype}"
    with np.load(path, allow_pickle=False) as arrays:
        axes = {}
        if "cube" in shapes and others.get("axes", "").startswith("of type"):
            axes["cube"] = as_text(arrays["axes"])
        yield Source(shapes, arrays.__getitem__, others, axes)


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
