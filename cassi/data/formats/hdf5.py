"""Read HDF5 files, also of netCDF 4 and MATLAB 7.3; write HDF5 and netCDF 4."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.labelled import (
    CONVENTIONS,
    DIMENSIONS,
    FWHM,
    WAVELENGTH,
    axis_letters,
    unpack,
)

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file."""
# Accepted filters by their number in HDF5. Other filters are refused, because on damaged data they
# may read beyond the stored bytes.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
# The netCDF libraries give this name to a dimension without a coordinate.
_NO_COORDINATE = "This is a netCDF dimension but not a netCDF variable."


def list_items(file: Any) -> dict[str, Any]:
    """Return the groups and data sets of a file by path."""
    items: dict[str, Any] = {}
    # h5py visits neither soft nor external links, so no other file is opened.
    file.visititems(items.__setitem__)
    return items


@contextmanager
def read_hdf5(path: Path, *, matlab: bool = False) -> Iterator[Source]:
    """Open an HDF5 file and yield its arrays; the name of an array is its path in the file.

    MATLAB writes its column-major arrays in the order of the memory, so HDF5 lists their axes in
    reverse. The axes are reversed back if MATLAB wrote the file (`matlab`), or if the data set has
    the attribute `MATLAB_class`.
    """
    import h5py

    shapes, other_items, axes, units = {}, {}, {}, {}
    wavelengths, reversed_names = None, set()
    with h5py.File(path, "r") as file:
        items = list_items(file)
        for name, item in items.items():
            # MATLAB keeps the contents of cells and structs in the group "#refs#".
            if not isinstance(item, h5py.Dataset) or name.startswith("#"):
                continue
            kind = as_text(item.attrs.get("MATLAB_class", ""))
            if matlab or kind:
                reversed_names.add(name)
            if reason := _find_skip_reason(item, kind):
                other_items[name] = reason
                continue
            shapes[name] = item.shape[::-1] if name in reversed_names else item.shape
            axes[name] = as_text(item.attrs.get("axes", "")) or _find_axes(item)
            units[name] = as_text(item.attrs.get("units", ""))
            if np.size(values := item.attrs.get("wavelengths")) > 1:
                wavelengths = (values, "")

        def read(name: str) -> np.ndarray:
            array = unpack(read_item(items[name]), items[name].attrs, axes[name])
            return array.T if name in reversed_names else array

        yield Source(shapes, read, other_items, axes, units, wavelengths)


def _find_skip_reason(item: Any, kind: str) -> str:
    """Return why a data set cannot be read as an array of numbers; "" if it can.

    `kind` is its class in MATLAB, "" if MATLAB did not write it.
    """
    if kind in {"char", "cell", "struct", "function_handle"}:
        return f"a {kind} array"
    if item.dtype.names and set(item.dtype.names) == {"real", "imag"}:
        return "an array of complex numbers"
    if as_text(item.attrs.get("NAME")).startswith(_NO_COORDINATE):
        return "a dimension"
    if item.dtype.kind not in "biufc":
        return f"of type {item.dtype}"
    if "MATLAB_empty" in item.attrs or not item.size:
        return "empty"
    return "kept in other files" if is_elsewhere(item) else ""


def is_elsewhere(item: Any) -> bool:
    """Tell whether the values of a data set lie in other files, which HDF5 would open."""
    return bool(item.is_virtual or item.external)


def _find_axes(item: Any) -> str:
    """Return the letters of the axes from the names of their dimension scales; "" without names."""
    names = [scales[0].name.rsplit("/", 1)[-1] for scales in item.dims if len(scales)]
    return axis_letters(names) if len(names) == item.ndim else ""


def read_item(item: Any) -> np.ndarray:
    """Read a data set; ValueError if its filter is refused, or parts were never written."""
    properties = item.id.get_create_plist()
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if code not in _FILTERS:
            filter_name = name.decode("latin1") or str(code)
            known_filters = ", ".join(_FILTERS.values())
            raise ValueError(
                f"{item.name} is stored by the filter {filter_name}, expected {known_filters}; "
                "write it again with h5repack -f GZIP=4 IN OUT"
            )
    # HDF5 returns its fill value for parts that were never written, for example because the disk
    # was full.
    if item.chunks is not None:
        chunk_counts = (
            -(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True)
        )
        n_missing = (n_expected := math.prod(chunk_counts)) - item.id.get_num_chunks()
        if n_missing > 0:
            raise ValueError(
                f"{item.name}: {n_missing} of its {n_expected} chunks were never written"
            )
    elif item.id.get_storage_size() < item.nbytes:
        raise ValueError(f"{item.name}: its values were never written")
    return np.asarray(item[()])


def write_hdf5(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write the data sets `cube` (C, H, W) and `wavelengths` (nm), compressed."""
    import h5py

    with h5py.File(path, "w") as file:
        item = file.create_dataset("cube", data=cube, compression="gzip")
        write_attributes(item, {"axes": "CHW"})
        if wavelengths is not None:
            write_attributes(file.create_dataset("wavelengths", data=wavelengths), {"units": "nm"})


def write_netcdf(
    path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write netCDF 4: `cube(wavelength, y, x)`, compressed, its wavelengths and widths (nm)."""
    import h5py

    with h5py.File(path, "w", track_order=True) as file:
        write_attributes(file, {"Conventions": CONVENTIONS})
        data_set = file.create_dataset("cube", data=cube, compression="gzip")
        write_attributes(data_set, {"long_name": "hyperspectral cube"})
        for number, (name, size) in enumerate(zip(DIMENSIONS, cube.shape, strict=True)):
            if name == "wavelength" and wavelengths is not None:
                dimension = file.create_dataset(name, data=wavelengths)
                dimension.make_scale(name)
                write_attributes(dimension, WAVELENGTH)
            else:
                dimension = file.create_dataset(name, shape=(size,), dtype=">f4")
                dimension.make_scale(f"{_NO_COORDINATE}{size:>10}")
            dimension.attrs["_Netcdf4Dimid"] = np.int32(number)
            data_set.dims[number].attach_scale(dimension)
        if fwhm is not None:
            width = file.create_dataset("fwhm", data=fwhm)
            width.dims[0].attach_scale(file["wavelength"])
            write_attributes(width, FWHM)


def write_attributes(item: Any, attributes: Mapping[str, object]) -> None:
    """Write attributes of a data set, group or file, texts as bytes of a fixed length."""
    for name, value in attributes.items():
        item.attrs[name] = np.bytes_(value) if isinstance(value, str) else value
