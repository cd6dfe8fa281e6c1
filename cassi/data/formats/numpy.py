"""Read and write the files of numpy: one array (.npy), or several arrays with names (.npz)."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from cassi.checks import read_regular
from cassi.data.formats import Source, as_text


def read_array(path: Path) -> np.ndarray:
    """Read an array that this package saved, in this process instead of the sandboxed reader."""
    content = read_regular(path, path.lstat().st_size, follow=False)
    try:
        return np.array(np.load(BytesIO(content), allow_pickle=False))
    except Exception as error:  # its header is Python text, which fails in many ways
        raise ValueError(f"cannot read {path} as .npy: {error}") from None


@contextmanager
def read_npy(path: Path) -> Iterator[Source]:
    """Open a .npy file and yield its array, which has no name."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "Python objects" in str(error):
            error = ValueError("it holds Python objects, which are never unpickled; save numbers")
        raise error from None
    yield Source({"": array.shape}, lambda _: np.array(array))


@contextmanager
def read_npz(path: Path) -> Iterator[Source]:
    """Open a .npz file, a zip archive, and yield its arrays by name."""
    shapes, other_items, axes = {}, {}, {}
    with zipfile.ZipFile(path) as archive:

        def read(name: str) -> np.ndarray:
            with archive.open(f"{name}.npy") as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        for name in (
            file_name.removesuffix(".npy")
            for file_name in archive.namelist()
            if file_name.endswith(".npy")
        ):
            with archive.open(f"{name}.npy") as member:
                shape, dtype = _read_header(member)
            if dtype.kind in "biufc":
                shapes[name] = shape
            else:
                other_items[name] = "Python objects" if dtype.hasobject else f"of type {dtype}"
        if "cube" in shapes and other_items.get("axes", "").startswith("of type"):
            axes["cube"] = as_text(read("axes"))
        yield Source(shapes, read, other_items, axes)


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and type of an array without reading its values."""
    if np.lib.format.read_magic(member) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    return shape, dtype


def write_npz(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube`, its `axes` and `wavelengths` (nm), compressed."""
    content = {"cube": cube, "axes": np.asarray("CHW")}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **content)


def write_npy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write the cube alone; ValueError if there are wavelengths."""
    if wavelengths is not None:
        raise ValueError("a .npy file cannot hold wavelengths: write .npz or .tif")
    with path.open("wb") as file:
        np.save(file, cube, allow_pickle=False)
