"""Read and write Zarr stores, which are folders of chunks.

Cubes are written uncompressed and without the package zarr, so that they can be written in parts.
Stores of other programs are read by the package.
"""

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
    axis_letters,
    unpack,
)
from cassi.data.formats.parts import Stack

# A chunk has one band and as many whole rows as fit into this size. Larger chunks make fewer files;
# with smaller chunks less is read for a part of the cube.
_CHUNK_BYTES = 1 << 22

_MAX_METADATA_BYTES = 1 << 24
_METADATA_FILES = ("zarr.json", ".zarray", ".zattrs")
# Codecs of versions 2 and 3 that only turn bytes into numbers. Others are refused: a pickle, for
# example, can run a program.
_ALLOWED_CODECS = {
    *("BytesCodec", "TransposeCodec", "Crc32cCodec", "GzipCodec", "ZstdCodec", "BloscCodec"),
    *("zlib", "gzip", "zstd", "blosc", "shuffle", "crc32"),
}


def create_zarr(
    path: Path,
    shape: tuple[int, int, int],
    wavelengths: Sequence[float] | None,
    fwhm: Sequence[float] | None = None,
) -> Stack:
    """Create a store (Zarr 3) for a cube `(C, H, W)` with its final size, without the values.

    xarray reads it as a Dataset: `cube(wavelength, y, x)`, the coordinate `wavelength` (nm), and
    the widths of the bands `fwhm` (nm).

    Raises:
        OSError: the disk has no room for it.
    """
    bands, height, width = shape
    rows = max(1, min(height, _CHUNK_BYTES // (4 * width)))
    _write_json(path, {"node_type": "group", "attributes": {"Conventions": CONVENTIONS}})
    for name, values, attributes in (
        ("wavelength", wavelengths, WAVELENGTH),
        ("fwhm", fwhm, FWHM),
    ):
        if values is not None:
            _write_array_metadata(path / name, (bands,), (bands,), "float64", attributes)
            values_file = path / name / "c" / "0"
            values_file.parent.mkdir()
            values_file.write_bytes(np.asarray(values, "<f8").tobytes())
    _write_array_metadata(
        path / "cube", shape, (1, rows, width), "float32", {"long_name": "hyperspectral cube"}
    )
    stack = Stack(path, shape, rows=rows)
    for band, chunk in itertools.product(range(bands), range(-(-height // rows))):
        file = stack.file(band, chunk)
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            # The blocks of the disk are reserved now, so that a full disk ends the command at once
            # and not after hours of reconstruction.
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


def open_plain_store(path: Path) -> tuple[Stack, tuple[object, str] | None] | None:
    """Open the cube of a store that `create_zarr` made.

    Returns:
        The cube, and its wavelengths with their unit (None if they are not stated). The result is
        None for a store that `create_zarr` did not make.

    Raises:
        ValueError: the file of the wavelengths has a wrong length.
    """
    metadata = _read_json(path / "cube")
    try:
        (bands, height, width), chunk = metadata["shape"], metadata["chunk_grid"]["configuration"]
        rows = chunk["chunk_shape"][1]
        expected = _make_plain_metadata((bands, height, width), (1, rows, width), "float32")
        if any(metadata[name] != expected[name] for name in expected) or not 1 <= rows <= height:
            return None
        stack = Stack(path, (int(bands), int(height), int(width)), rows=int(rows))
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    axis_metadata = _read_json(path / "wavelength")
    if axis_metadata.get("codecs") != _UNCOMPRESSED_CODECS:
        return stack, None
    values_file = path / "wavelength" / "c" / "0"
    content = read_regular(values_file, _MAX_METADATA_BYTES)
    if len(content) != 8 * bands:
        raise ValueError(
            f"{values_file}: expected {8 * bands} bytes, one wavelength a band, got {len(content)}"
        )
    units = axis_metadata.get("attributes", {}).get("units", "")
    return stack, (np.frombuffer(content, "<f8"), str(units))


@contextmanager
def read_zarr(path: Path) -> Iterator[Source]:
    """Open a store of Zarr 2 or 3 and yield its arrays; the name of an array is its path."""
    if (plain_store := open_plain_store(path)) is not None:
        stack, wavelengths = plain_store
        axes = {"cube": "CHW"}
        yield Source(
            {"cube": stack.shape}, lambda _: stack.read(), axes=axes, wavelengths=wavelengths
        )
        return
    if importlib.util.find_spec("zarr") is None:
        raise ValueError(
            "the package zarr is needed to read this store: pip install 'cassi[xarray]'"
        )
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {
            name: node for name, node in _open_nodes(path).items() if isinstance(node, zarr.Array)
        }
        for array in arrays.values():
            _check_codecs(array)
        axes = {name: _read_axes(array) for name, array in arrays.items()}

        def read(name: str) -> np.ndarray:
            array = arrays[name]
            files = [file for file in (path / name).rglob("*") if file.is_file()]
            n_missing = array.nchunks - sum(file.name not in _METADATA_FILES for file in files)
            # zarr returns its fill value for a chunk without a file.
            if n_missing > 0:
                raise ValueError(
                    f"{n_missing} of its {array.nchunks} chunks are not there; copy the store "
                    "again, or write it with write_empty_chunks=True"
                )
            return unpack(np.asarray(array[...]), _read_attributes(array), axes[name])

        yield Source(
            {name: tuple(map(int, array.shape)) for name, array in arrays.items()},
            read,
            axes=axes,
            units={name: str(array.attrs.get("units", "")) for name, array in arrays.items()},
        )


def _open_nodes(path: Path) -> dict[str, Any]:
    """Return the arrays and groups of a store by name."""
    import zarr

    try:
        node: Any = zarr.open(path, mode="r")
    except zarr.errors.NodeNotFoundError:
        # The folder may hold arrays without a group above them.
        folders = [child for child in sorted(path.iterdir()) if child.is_dir()]
        if not folders:
            raise
        return {child.name: zarr.open(child, mode="r") for child in folders}
    return {"": node} if isinstance(node, zarr.Array) else dict(node.members(max_depth=2))


def _read_axes(array: Any) -> str:
    """Return the letters of the axes of an array, "" if its dimensions have no names."""
    names = getattr(array.metadata, "dimension_names", None)
    # In version 2 xarray writes the names as an attribute.
    names = names or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return axis_letters([str(name) for name in names])


def _read_attributes(array: Any) -> Mapping[str, object]:
    """Return the attributes of an array, with `_FillValue` as a number."""
    attributes = dict(array.attrs)
    # In version 2 xarray marks missing values by the fill value of the array. The default fill
    # value is 0, so 0 marks nothing.
    fill_of_version_2 = (array.fill_value or None) if "_ARRAY_DIMENSIONS" in attributes else None
    fill = attributes.get("_FillValue", fill_of_version_2)
    # xarray writes a floating fill value as base64 of its bytes.
    if isinstance(fill, str):
        fill = struct.unpack("<d", base64.b64decode(fill))[0]
    return attributes | {"_FillValue": fill}


def _check_codecs(array: Any) -> None:
    """Raise ValueError if an array has no numbers, or has shards or codecs that are not allowed."""
    if array.dtype.kind not in "biufc":
        raise ValueError(f"expected numbers, got data of type {array.dtype}")
    if array.shards is not None:
        raise ValueError("expected chunks without shards; write it again without")
    for codec in (*array.filters, array.serializer, *array.compressors):
        name = getattr(codec, "codec_id", type(codec).__name__)
        if codec is not None and name not in _ALLOWED_CODECS:
            raise ValueError(f"its chunks are encoded by {name}; expected gzip, zstd or blosc")


def _read_json(folder: Path) -> dict[str, Any]:
    """Return the metadata of an array or group; empty if they cannot be read."""
    try:
        content = json.loads(read_regular(folder / "zarr.json", _MAX_METADATA_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


_UNCOMPRESSED_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]


def _make_plain_metadata(
    shape: Sequence[int], chunk: Sequence[int], data_type: str
) -> dict[str, object]:
    """Return the metadata (Zarr 3) of an array whose chunks are not compressed."""
    return {
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": _UNCOMPRESSED_CODECS,
        "dimension_names": list(DIMENSIONS[: len(shape)]),
    }


def _write_array_metadata(
    folder: Path,
    shape: Sequence[int],
    chunk: Sequence[int],
    data_type: str,
    attributes: Mapping[str, str],
) -> None:
    _write_json(
        folder,
        _make_plain_metadata(shape, chunk, data_type)
        | {"attributes": attributes, "fill_value": 0.0},
    )


def _write_json(folder: Path, content: Mapping[str, object]) -> None:
    text = json.dumps({"zarr_format": 3, **content}, indent=1)
    folder.mkdir()
    (folder / "zarr.json").write_text(text + "\n", encoding="utf-8")
