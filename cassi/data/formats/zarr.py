"""Zarr: a folder of chunks. Written plainly, in parts if need be; read by the package zarr."""

import base64
import importlib.util
import itertools
import json
import os
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, check_folder
from cassi.data.formats.labelled import (
    CONVENTIONS,
    DIMENSIONS,
    FWHM,
    WAVELENGTH,
    Labelled,
    as_source,
)
from cassi.data.formats.parts import Chunks

_CHUNK = 1 << 22
"""Bytes of a chunk, about: one band, as many whole rows as that takes."""
_LARGEST_METADATA = 1 << 24
_METADATA = ("zarr.json", ".zarray", ".zattrs")
# Codecs that make numbers of bytes; others are unknown, or run programs as numcodecs' pickle does.
_CODECS = {"bytes", "transpose", "crc32c", "gzip", "zstd", "blosc"}
_FILTERS = {"zlib", "gzip", "zstd", "blosc", "shuffle", "crc32"}


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
    _write_json(path, {"node_type": "group", "attributes": {"Conventions": CONVENTIONS}})
    named = {"wavelength": (wavelengths, WAVELENGTH), "fwhm": (fwhm, FWHM)}
    for name, (values, about) in named.items():
        if values is not None:
            array = _describe((bands,), (bands,), "float64", DIMENSIONS[:1])
            _write_json(path / name, array | {"attributes": about, "fill_value": 0.0})
            single = path / name / "c" / "0"
            single.parent.mkdir()
            single.write_bytes(np.asarray(values, "<f8").tobytes())
    array = _describe(shape, (1, rows, width), "float32", DIMENSIONS)
    about = {"long_name": "hyperspectral cube"}
    _write_json(path / "cube", array | {"attributes": about, "fill_value": 0.0})
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
    chunks = create_zarr(path, (bands, height, width), wavelengths, fwhm)
    chunks.write(cube, slice(None), slice(None))


def open_chunks(path: Path) -> tuple[Chunks, tuple[object, str] | None] | None:
    """Open the cube of a store that `create_zarr` made; None where it is another's.

    Returns:
        The cube; its wavelengths and their unit, if stated.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or has a link in it.
    """
    check_folder(path)
    about = _read_json(path / "cube") or {}
    try:
        (bands, height, width), chunk = about["shape"], about["chunk_grid"]["configuration"]
        rows = chunk["chunk_shape"][1]
        plain = _describe((bands, height, width), (1, rows, width), "float32", DIMENSIONS)
        known = {name: about.get(name) for name in plain} == plain and 1 <= rows <= height
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    if not known or not all(isinstance(n, int) and n > 0 for n in (bands, height, width, rows)):
        return None
    if 8 * bands > _LARGEST_METADATA:
        return None
    stored = path / "wavelength" / "c" / "0"
    wavelengths = None
    listed = _read_json(path / "wavelength")
    if listed is not None and listed.get("codecs") == _BYTES and stored.is_file():
        if (size := stored.stat().st_size) != 8 * bands:
            raise ValueError(
                f"{stored}: expected {8 * bands} bytes, one wavelength a band, got {size}"
            )
        units = listed.get("attributes", {}).get("units", "")
        wavelengths = (np.frombuffer(stored.read_bytes(), "<f8"), str(units))
    return Chunks(path, (bands, height, width), rows), wavelengths


@contextmanager
def read_zarr(path: Path) -> Iterator[Source]:
    """A store of Zarr 2 or 3; arrays inside groups are named by their path."""
    opened = open_chunks(path)
    if opened is not None:
        chunks, wavelengths = opened
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
                partial(_read, array, path / name),
            )
        yield as_source(arrays)


def _read(array: Any, folder: Path) -> np.ndarray:
    """Read an array; ValueError where chunks are not there, which zarr takes for its fill value."""
    names = [file.name for file in folder.rglob("*") if file.is_file()]
    missing = array.nchunks - sum(name not in _METADATA for name in names)
    if missing > 0:
        raise ValueError(
            f"{missing} of its {array.nchunks} chunks are not there; copy the store again, or "
            "write it with write_empty_chunks=True"
        )
    return np.asarray(array[...])


def _check_codecs(about: Mapping[str, Any]) -> None:
    """Refuse an array that is no numbers, or that takes a codec which could run a program."""
    if about.get("zarr_format") == 3:
        kind, listed = about.get("data_type"), about.get("codecs", [])
        known, label = _CODECS, "name"
    else:
        kind, listed = about.get("dtype"), [*(about.get("filters") or ()), about.get("compressor")]
        known, label = _FILTERS, "id"
    if not isinstance(kind, str) or "O" in kind:
        raise ValueError(f"expected numbers, got data of type {kind!r}")
    for name in (codec.get(label) for codec in listed if codec is not None):
        if name not in known:
            raise ValueError(f"its chunks are encoded by {name!r}; expected {', '.join(known)}")


def _nodes(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the arrays of a store: their paths in it, and what is said of them."""
    for folder in (path, *(p for p in path.glob("*/") if p.is_dir()), *path.glob("*/*/")):
        name = folder.relative_to(path).as_posix()
        about = _read_json(folder) or _read_json(folder, ".zarray")
        if about is not None and ("shape" in about):
            yield ("" if name == "." else name), about


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
    shape: Sequence[int], chunk: Sequence[int], kind: str, names: Sequence[str]
) -> dict[str, object]:
    """Return what is said of an array whose chunks are not compressed."""
    return {
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": _KEYS,
        "codecs": _BYTES,
        "dimension_names": list(names),
    }


def _write_json(folder: Path, content: Mapping[str, object]) -> None:
    text = json.dumps({"zarr_format": 3, **content}, indent=1)
    folder.mkdir()
    (folder / "zarr.json").write_text(text + "\n", encoding="utf-8")
