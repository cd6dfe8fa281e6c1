"""numpy's files: one array (npy), or several with names (npz)."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from cassi.data.formats import Source, as_text, check_plain, check_size


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
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
        shape, dtype = _read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled; save numbers")
        check_size(math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell())
    yield Source({"": shape}, lambda _: np.load(path, allow_pickle=False))


@contextmanager
def read_npz(path: Path) -> Iterator[Source]:
    """Several named numpy arrays in a zip archive."""
    shapes, others, axes = {}, {}, {}
    with zipfile.ZipFile(path) as archive:

        def read(name: str) -> np.ndarray:
            with archive.open(f"{name}.npy") as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        for name in (n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")):
            with archive.open(f"{name}.npy") as member:
                shape, dtype = _read_header(member)
            if dtype.kind in "biufc":
                shapes[name] = shape
            else:
                others[name] = "Python objects" if dtype.hasobject else f"of type {dtype}"
        if "cube" in shapes and others.get("axes", "").startswith("of type"):
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
