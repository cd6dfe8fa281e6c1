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
from pathlib import Path
from typing import Any

import numpy as np

from cassi.checks import read_regular
from cassi.data.formats import Source
from cassi.data.formats.labelled import (
    CONVENTIONS,
    DIMENSIONS,
    FWHM,
    WAVELENGTH,
    letters,
    unpack,
)
from cassi.data.formats.parts import Stack

_CHUNK = 1 << 22
"""Bytes of a chunk, about: one band, as many whole rows as that takes."""
_LARGEST_METADATA = 1 << 24
_METADATA = ("zarr.json", ".zarray", ".zattrs")
# What makes numbers of bytes, in versions 2 and 3; others are unknown, or run programs as pickles.
_CODECS = {
    *("BytesCodec", "TransposeCodec", "Crc32cCodec", "GzipCodec", "ZstdCodec", "BloscCodec"),
    *("zlib", "gzip", "zstd", "blosc", "shuffle", "crc32"),
}


def create_zarr(
    path: Path,
    shape: tuple[int, int, int],
    wavelengths: Sequence[float] | None,
    fwhm: Sequence[float] | None = None,
) -> Stack:
    """Make a store (Zarr 3) for a cube `(C, H, W)`, as large as it will be, without its values.

    It is the Dataset of xarray: `cube(wavelength, y, x)`, its coordinate, and the widths of its
    bands (nm). OSError where the disk has no room for it.
    """
    bands, height, width = shape
    rows = max(1, min(height, _CHUNK // (4 * width)))
    _write_json(path, {"node_type": "group", "attributes": {"Conventions": CONVENTIONS}})
    for name, values, about in (
        ("wavelength", wavelengths, WAVELENGTH),
        ("fwhm", fwhm, FWHM),
    ):
        if values is not None:
            _describe(path / name, (bands,), (bands,), "float64", about)
            single = path / name / "c" / "0"
            single.parent.mkdir()
            single.write_bytes(np.asarray(values, "<f8").tobytes())
    _describe(
        path / "cube", shape, (1, rows, width), "float32", {"long_name": "hyperspectral cube"}
    )
    stack = Stack(path, shape, rows=rows)
    for band, chunk in itertools.product(range(bands), range(-(-height // rows))):
        file = stack.file(band, chunk)
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            # A full disk is better noticed now than after hours.
            os.posix_fallocate(stream.fileno(), 0, rows * width * 4)
    return stack


def write_zarr(
    path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write a cube and its wavelengths (nm), uncompressed; see `create_zarr`."""
    bands, height, width = cube.shape
    stack = create_zarr(path, (bands, height, width), wavelengths, fwhm)
    stack.write(cube, slice(None), slice(None))


def open_own(path: Path) -> tuple[Stack, tuple[object, str] | None] | None:
    """Open the cube of a store that `create_zarr` made; None where it is another's.

    Returns:
        The cube; its wavelengths and their unit, if stated.
    """
    about = _read_json(path / "cube")
    try:
        (bands, height, width), chunk = about["shape"], about["chunk_grid"]["configuration"]
        rows = chunk["chunk_shape"][1]
        plain = _array((bands, height, width), (1, rows, width), "float32")
        if any(about[name] != plain[name] for name in plain) or not 1 <= rows <= height:
            return None
        stack = Stack(path, (int(bands), int(height), int(width)), rows=int(rows))
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    listed = _read_json(path / "wavelength")
    if listed.get("codecs") != _BYTES:
        return stack, None
    stored = path / "wavelength" / "c" / "0"
    content = read_regular(stored, _LARGEST_METADATA)
    if len(content) != 8 * bands:
        raise ValueError(
            f"{stored}: expected {8 * bands} bytes, one wavelength a band, got {len(content)}"
        )
    units = listed.get("attributes", {}).get("units", "")
    return stack, (np.frombuffer(content, "<f8"), str(units))


@contextmanager
def read_zarr(path: Path) -> Iterator[Source]:
    """A store of Zarr 2 or 3; arrays inside groups are named by their path."""
    if (own := open_own(path)) is not None:
        stack, wavelengths = own
        axes = {"cube": "CHW"}
        yield Source(
            {"cube": stack.shape}, lambda _: stack.read(), axes=axes, wavelengths=wavelengths
        )
        return
    if importlib.util.find_spec("zarr") is None:
        raise ValueError(
            "it takes the package zarr to read this store: pip install 'cassi[xarray]'"
        )
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {n: node for n, node in _nodes(path).items() if isinstance(node, zarr.Array)}
        for array in arrays.values():
            _check_codecs(array)
        axes = {name: _axes(array) for name, array in arrays.items()}

        def read(name: str) -> np.ndarray:
            array = arrays[name]
            files = [file for file in (path / name).rglob("*") if file.is_file()]
            missing = array.nchunks - sum(file.name not in _METADATA for file in files)
            if missing > 0:  # which zarr takes for its fill value
                raise ValueError(
                    f"{missing} of its {array.nchunks} chunks are not there; copy the store again, "
                    "or write it with write_empty_chunks=True"
                )
            return unpack(np.asarray(array[...]), _attributes(array), axes[name])

        yield Source(
            {name: tuple(map(int, array.shape)) for name, array in arrays.items()},
            read,
            axes=axes,
            units={name: str(array.attrs.get("units", "")) for name, array in arrays.items()},
        )


def _nodes(path: Path) -> dict[str, Any]:
    """Return the arrays and groups of a store by name."""
    import zarr

    try:
        node: Any = zarr.open(path, mode="r")
    except zarr.errors.NodeNotFoundError:  # a folder of arrays, without a group above them
        folders = [each for each in sorted(path.iterdir()) if each.is_dir()]
        if not folders:
            raise
        return {each.name: zarr.open(each, mode="r") for each in folders}
    return {"": node} if isinstance(node, zarr.Array) else dict(node.members(max_depth=2))


def _axes(array: Any) -> str:
    stated = getattr(array.metadata, "dimension_names", None)  # in version 2 an attribute
    return letters(list(map(str, stated or array.attrs.get("_ARRAY_DIMENSIONS") or ())))


def _attributes(array: Any) -> Mapping[str, object]:
    """Return the attributes of an array, with the value that stands for none as a number."""
    about = dict(array.attrs)
    of_version_2 = (array.fill_value or None) if "_ARRAY_DIMENSIONS" in about else None
    fill = about.get("_FillValue", of_version_2)
    if isinstance(fill, str):  # as xarray writes that of fractions
        fill = struct.unpack("<d", base64.b64decode(fill))[0]
    return about | {"_FillValue": fill}


def _check_codecs(array: Any) -> None:
    """Refuse an array that is no numbers, or that takes a codec which could run a program."""
    if array.dtype.kind not in "biufc":
        raise ValueError(f"expected numbers, got data of type {array.dtype}")
    if array.shards is not None:
        raise ValueError("expected chunks without shards; write it again without")
    for codec in (*array.filters, array.serializer, *array.compressors):
        name = getattr(codec, "codec_id", type(codec).__name__)
        if codec is not None and name not in _CODECS:
            raise ValueError(f"its chunks are encoded by {name}; expected gzip, zstd or blosc")


def _read_json(folder: Path) -> dict[str, Any]:
    """Return what is said of an array; empty where nothing is, or nothing that is understood."""
    try:
        found = json.loads(read_regular(folder / "zarr.json", _LARGEST_METADATA))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_BYTES = [{"name": "bytes", "configuration": {"endian": "little"}}]


def _array(shape: Sequence[int], chunk: Sequence[int], kind: str) -> dict[str, object]:
    """Return what is said of an array whose chunks are not compressed."""
    return {
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": _BYTES,
        "dimension_names": list(DIMENSIONS[: len(shape)]),
    }


def _describe(
    folder: Path, shape: Sequence[int], chunk: Sequence[int], kind: str, about: Mapping[str, str]
) -> None:
    _write_json(folder, _array(shape, chunk, kind) | {"attributes": about, "fill_value": 0.0})


def _write_json(folder: Path, content: Mapping[str, object]) -> None:
    text = json.dumps({"zarr_format": 3, **content}, indent=1)
    folder.mkdir()
    (folder / "zarr.json").write_text(text + "\n", encoding="utf-8")
