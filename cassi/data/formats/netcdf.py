"""NetCDF: version 4, which are HDF5 files with named dimensions, and the classic format."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import SIGNATURE, list_items, read_item
from cassi.data.formats.labelled import (
    CONVENTIONS,
    DIMENSIONS,
    FWHM,
    WAVELENGTH,
    Labelled,
    as_source,
)

# What the libraries call a dimension without a coordinate.
_BARE = "This is a netCDF dimension but not a netCDF variable."


@contextmanager
def read_netcdf(path: Path) -> Iterator[Source]:
    """NetCDF files; variables inside groups are named by their path."""
    with path.open("rb") as file:
        head = file.read(8)
    if head[:3] == b"CDF":
        yield from _read_classic(path)
        return
    if head != SIGNATURE:
        raise ValueError("it is no netCDF file")
    import h5py

    arrays = {}
    with h5py.File(path, "r") as file:
        for name, item in list_items(file).items():
            if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
                continue
            if not as_text(item.attrs.get("NAME")).startswith(_BARE):
                about, read = item.attrs, partial(read_item, item)
                arrays[name] = Labelled(item.shape, item.dtype.kind, _names(item), about, read)
        yield as_source(arrays)


def _read_classic(path: Path) -> Iterator[Source]:
    from scipy.io import netcdf_file

    # Mapped: many variables may claim the same bytes, and only the one that is asked for is copied.
    with path.open("rb") as stream, netcdf_file(stream, "r", mmap=True) as file:
        arrays = {}
        for name, item in file.variables.items():
            names, read = tuple(map(str, item.dimensions)), item.data.copy
            about = item._attributes
            arrays[name] = Labelled(item.data.shape, item.data.dtype.kind, names, about, read)
        try:
            yield as_source(arrays)
        finally:
            arrays.clear()  # the map is closed once nothing refers to it
            item = read = None


def _names(item: Any) -> tuple[str, ...]:
    """Return the names of the dimensions; those of our own files stand in one attribute too."""
    stated = as_text(item.attrs.get("dimensions")).split()
    if len(stated) == item.ndim:
        return tuple(stated)
    if item.is_scale:
        return (item.name.rsplit("/", 1)[-1],)
    if any(len(scales) == 0 for scales in item.dims):
        return ()
    return tuple(scales[0].name.rsplit("/", 1)[-1] for scales in item.dims)


def write_netcdf(
    path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write `cube(wavelength, y, x)`, compressed, with its coordinate (nm), as netCDF 4."""
    import h5py

    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["Conventions"] = np.bytes_(CONVENTIONS)
        coordinates = {"wavelength": wavelengths}
        for number, (name, size) in enumerate(zip(DIMENSIONS, cube.shape, strict=True)):
            values = coordinates.get(name)
            if values is None:
                scale = file.create_dataset(name, shape=(size,), dtype=">f4")
                scale.make_scale(f"{_BARE}{size:>10}")
            else:
                scale = file.create_dataset(name, data=np.asarray(values, np.float64))
                scale.make_scale(name)
                _describe(scale, WAVELENGTH)
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
        item = file.create_dataset("cube", data=cube, compression="gzip")
        _describe(item, {"long_name": "hyperspectral cube", "dimensions": " ".join(DIMENSIONS)})
        for axis, name in enumerate(DIMENSIONS):
            item.dims[axis].attach_scale(file[name])
        if fwhm is not None:
            width = file.create_dataset("fwhm", data=np.asarray(fwhm, np.float64))
            width.dims[0].attach_scale(file["wavelength"])
            _describe(width, FWHM)


def _describe(item: Any, about: dict[str, str]) -> None:
    for name, text in about.items():
        item.attrs[name] = np.bytes_(text)
