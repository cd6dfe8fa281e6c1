"""Zarr: a folder of chunks. Written plainly, in parts if need be; read by the package zarr."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import math
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.data.formats import (
    Source,
    check_expansion,
    check_folder,
    check_memory,
    check_size,
    may_exhaust,
    write_all,
)
from cassi.data.formats.labelled import (
    CONVENTIONS,
    DIMENSIONS,
    FWHM,
    WAVELENGTH,
    Labelled,
    as_source,
)

if TYPE_CHECKING:
    from zarr import Array

_CHUNK = 1 << 22
"""Bytes of a chunk, about: one band, as many whole rows as that takes."""
_LARGEST_METADATA = 1 << 24
_GZIP = 31  # zlib's word for deflated data in gzip's frame
# Codecs that make numbers of bytes; others are unknown, or run programs as numcodecs' pickle does.
_CODECS = {"bytes", "transpose", "crc32c", "gzip", "zstd", "blosc"}
_FILTERS = {"zlib", "gzip", "zstd", "blosc", "shuffle", "crc32"}
_ALL, _FLOAT = slice(None), np.dtype("<f4")


@dataclass(frozen=True)
class Chunks:
    """A cube `(C, H, W)` in uncompressed chunks of one band and some whole rows.

    Attributes:
        path: the store.
        shape: (C, H, W).
        rows: of a chunk.
        dtype: of the values there.
    """

    path: Path
    shape: tuple[int, int, int]
    rows: int
    dtype: np.dtype = _FLOAT

    def read(self, bands: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`."""
        chosen_bands, chosen = range(self.shape[0])[bands], range(self.shape[1])[rows]
        width = len(range(self.shape[2])[columns])
        part = np.empty((len(chosen_bands), len(chosen), width), np.float32)
        for place, band in enumerate(chosen_bands):
            for chunk, inner, outer in self._pieces(chosen):
                shape = (self.rows, self.shape[2])
                file = self.file(band, chunk)
                if not file.is_file():
                    raise ValueError(
                        f"the store is cut short: no chunk {file.relative_to(self.path)}"
                    )
                check_size(math.prod(shape) * self.dtype.itemsize, file.stat().st_size)
                plane = np.memmap(file, self.dtype, "r", 0, shape)
                part[place, outer] = plane[inner, columns]
                del plane
        return part

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` of rows and columns."""
        width, size = self.shape[2], self.dtype.itemsize
        chosen, (left, right, _) = range(self.shape[1])[rows], columns.indices(width)
        values = part.astype(self.dtype, copy=False)
        for band, plane in enumerate(values):
            for chunk, inner, outer in self._pieces(chosen):
                with self.file(band, chunk).open("r+b", buffering=0) as file:
                    lines = plane[outer]
                    whole = right - left == width
                    for index, line in enumerate([lines] if whole else lines):
                        file.seek(((inner.start + index) * width + left) * size)
                        write_all(file.fileno(), line)
                    os.fsync(file.fileno())

    def file(self, band: int, chunk: int) -> Path:
        """Return the file of a chunk."""
        return self.path / "cube" / "c" / str(band) / str(chunk) / "0"

    def _pieces(self, chosen: range) -> Iterator[tuple[int, slice, slice]]:
        """Yield the chunks that hold rows; which of its rows, and which of those chosen."""
        if not chosen:
            return
        for chunk in range(chosen.start // self.rows, (chosen.stop - 1) // self.rows + 1):
            first = chunk * self.rows
            start, stop = max(first, chosen.start), min(first + self.rows, chosen.stop)
            inner = slice(start - first, stop - first)
            yield chunk, inner, slice(start - chosen.start, stop - chosen.start)


def create_zarr(
    path: Path,
    shape: tuple[int, int, int],
    wavelengths: Sequence[float] | None,
    fwhm: Sequence[float] | None = None,
) -> Chunks:
    """Make a store (Zarr 3) for a cube, as large as it will be, without its values.

    It is the Dataset of xarray: `cube(wavelength, y, x)` and its coordinate in nm.

    Args:
        path: nothing is there yet.
        shape: (C, H, W).
        wavelengths: one per band in nm.
        fwhm: of the bands, nm.

    Raises:
        OSError: the disk has no room for it, ….
    """
    bands, height, width = shape
    rows = max(1, min(height, _CHUNK // (4 * width)))
    path.mkdir()
    _write_json(path, {"node_type": "group", "attributes": {"Conventions": CONVENTIONS}})
    named = {"wavelength": (wavelengths, WAVELENGTH), "fwhm": (fwhm, FWHM)}
    for name, (values, about) in named.items():
        if values is not None:
            _describe(path / name, (bands,), (bands,), "float64", DIMENSIONS[:1], about)
            single = path / name / "c" / "0"
            single.parent.mkdir()
            single.write_bytes(np.asarray(values, "<f8").tobytes())
    about = {"long_name": "hyperspectral cube"}
    _describe(path / "cube", shape, (1, rows, width), "float32", DIMENSIONS, about)
    chunks = Chunks(path, shape, rows)
    for band, chunk in itertools.product(range(bands), range(-(-height // rows))):
        file = chunks.file(band, chunk)
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            # A full disk is better noticed now than after hours.
            os.posix_fallocate(stream.fileno(), 0, rows * width * 4)
    return chunks


def write_zarr(
    path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write a cube and its wavelengths (nm), uncompressed; see `create_zarr`."""
    bands, height, width = cube.shape
    create_zarr(path, (bands, height, width), wavelengths, fwhm).write(cube, _ALL, _ALL)


def open_chunks(path: Path) -> tuple[Chunks, tuple[object, str] | None] | None:
    """Open the cube of a store that `create_zarr` made; None where it is another's.

    Returns:
        The cube; its wavelengths and their unit, if stated.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or has a link in it.
    """
    check_folder(path)
    about = _read_json(path / "cube")
    if about is None:
        return None
    try:
        shape = tuple(map(int, about["shape"]))
        chunk = tuple(map(int, about["chunk_grid"]["configuration"]["chunk_shape"]))
        plain = {
            "zarr_format": 3,
            "data_type": "float32",
            "dimension_names": list(DIMENSIONS),
            "codecs": _BYTES,
            "chunk_key_encoding": _KEYS,
        }
        known = {name: about.get(name) for name in plain} == plain
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not known or len(shape) != 3 or len(chunk) != 3 or min(*shape, *chunk) < 1:
        return None
    if chunk[0] != 1 or chunk[2] != shape[2] or chunk[1] > shape[1]:
        return None
    stored = path / "wavelength" / "c" / "0"
    wavelengths = None
    listed = _read_json(path / "wavelength")
    if listed is not None and listed.get("codecs") == _BYTES and stored.is_file():
        check_size(stored.stat().st_size, 8 * shape[0])
        units = listed.get("attributes", {}).get("units", "")
        wavelengths = (np.frombuffer(stored.read_bytes(), "<f8"), str(units))
    bands, height, width = shape
    return Chunks(path, (bands, height, width), chunk[1]), wavelengths


@contextmanager
def read_zarr(path: Path) -> Iterator[Source]:
    """A store of Zarr 2 or 3; arrays inside groups are named by their path."""
    opened = open_chunks(path)
    if opened is not None:
        chunks, wavelengths = opened
        claimed = math.prod(chunks.shape) * chunks.dtype.itemsize
        check_size(claimed, sum(size for _, size in _files(path / "cube" / "c")))
        yield Source(
            {"cube": chunks.shape},
            lambda _: chunks.read(),
            axes={"cube": "CHW"},
            wavelengths=wavelengths,
        )
        return
    if importlib.util.find_spec("zarr") is None:
        raise ValueError(
            "it takes the package zarr to read this store: pip install 'cassi[xarray]'"
        )
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = dict(_nodes(path))
        if not nodes:
            raise ValueError("it holds no zarr.json, .zarray or .zgroup; expected a Zarr store")
        arrays = {}
        for name, about in nodes.items():
            _check_codecs(about)
            array = zarr.open_array(path / name, mode="r")
            stated: Any = array.attrs.get("_ARRAY_DIMENSIONS")  # of Zarr 2
            dimensions = getattr(array.metadata, "dimension_names", None) or stated or ()
            attributes = dict(array.attrs)
            fill = attributes.get("_FillValue", (array.fill_value or None) if stated else None)
            if isinstance(fill, str):  # as xarray writes that of fractions
                fill = struct.unpack("<d", base64.b64decode(fill))[0]
            attributes["_FillValue"] = fill
            arrays[name] = Labelled(
                tuple(map(int, array.shape)),
                array.dtype.kind,
                tuple(map(str, dimensions)),
                attributes,
                _reading(array, path / name),
            )
        yield as_source(arrays)


def _reading(array: Array, folder: Path) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        stored, written = 0, 0
        for file, size in _files(folder):
            if file.name not in ("zarr.json", ".zarray", ".zattrs"):
                stored, written = stored + size, written + 1
                _check_chunk(file, size, chunk)
        if written < array.nchunks:
            raise ValueError(
                f"{array.nchunks - written} of its {array.nchunks} chunks are not there; copy the "
                "store again, or write it with write_empty_chunks=True"
            )
        check_memory(array.size * array.dtype.itemsize)
        check_size(array.size * array.dtype.itemsize, stored, compressed=True)
        check_size(chunk, stored, compressed=True)
        return np.asarray(array[...])

    return read


def _check_chunk(file: Path, size: int, claimed: int) -> None:
    """Refuse a chunk that says that it expands, or does expand, beyond what an array has of it."""
    with file.open("rb") as stream:
        head = stream.read(32)
        if head[:4] == b"\x28\xb5\x2f\xfd" and len(head) > 14:  # a frame of zstd
            told = _zstd_size(head)
        elif head[:2] == b"\x1f\x8b":
            told = None
            if may_exhaust(size):
                check_expansion(head + stream.read(), claimed, _GZIP)
        elif head[:1] in (b"\x01", b"\x02") and len(head) >= 16:  # a header of blosc
            told = int.from_bytes(head[4:8], "little")
        else:
            told = None
        if told is not None and told > claimed + 64:
            raise ValueError(f"{file.name}: a chunk claims {told} bytes, expected {claimed}")


def _zstd_size(head: bytes) -> int | None:
    """Return what a frame of Zstandard says of its content's size (RFC 8878, 3.1.1.1)."""
    flags = head[4]
    single, kind = flags >> 5 & 1, flags >> 6
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    length = (1 if single else 0, 2, 4, 8)[kind]
    if length == 0:
        return None
    return int.from_bytes(head[at : at + length], "little") + (256 if length == 2 else 0)


def _check_codecs(about: Mapping[str, Any]) -> None:
    if about.get("zarr_format") == 3:
        listed = [codec.get("name") for codec in about.get("codecs", [])]
        known = _CODECS
        kind = about.get("data_type")
        if not isinstance(kind, str):
            raise ValueError(f"expected numbers, got data of type {kind!r}")
    else:
        filters = [*(about.get("filters") or ()), about.get("compressor")]
        listed = [codec.get("id") for codec in filters if codec is not None]
        known = _FILTERS
        kind = about.get("dtype")
        if not isinstance(kind, str) or "O" in kind:
            raise ValueError(f"expected numbers, got data of type {kind!r}")
    for name in listed:
        if name not in known:
            raise ValueError(f"its chunks are encoded by {name!r}; expected {', '.join(known)}")


def _nodes(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the arrays of a store: their paths in it, and what is said of them."""
    for folder in (path, *(p for p in path.glob("*/") if p.is_dir()), *path.glob("*/*/")):
        name = folder.relative_to(path).as_posix()
        about = _read_json(folder) or _read_json(folder, ".zarray")
        if about is not None and ("shape" in about):
            yield ("" if name == "." else name), about


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for file in folder.rglob("*"):
        if file.is_file():
            yield file, file.stat().st_size


def _read_json(folder: Path, name: str = "zarr.json") -> dict[str, Any] | None:
    file = folder / name
    if not file.is_file():
        return None
    if file.stat().st_size > _LARGEST_METADATA:
        raise ValueError(f"{name} is too long for the metadata of an array")
    try:
        found = json.loads(file.read_bytes())
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    return found if isinstance(found, dict) else None


_BYTES = [{"name": "bytes", "configuration": {"endian": "little"}}]
_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def _describe(
    folder: Path,
    shape: Sequence[int],
    chunk: Sequence[int],
    kind: str,
    names: Sequence[str],
    about: Mapping[str, str],
) -> None:
    folder.mkdir()
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    array = {
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": grid,
        "chunk_key_encoding": _KEYS,
        "fill_value": 0.0,
        "codecs": _BYTES,
        "attributes": dict(about),
        "dimension_names": list(names),
    }
    _write_json(folder, array)


def _write_json(folder: Path, content: Mapping[str, object]) -> None:
    text = json.dumps({"zarr_format": 3, **content}, indent=1)
    (folder / "zarr.json").write_text(text + "\n", encoding="utf-8")
