"""HDF5 files: plain ones, netCDF 4, and MATLAB 7.3."""

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
    letters,
    unpack,
)

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How such a file begins."""
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""What data may be stored by, by HDF5's number; others read behind what is stored."""
# What the libraries of netCDF call a dimension without a coordinate.
_BARE = "This is a netCDF dimension but not a netCDF variable."


def list_items(file: Any) -> dict[str, Any]:
    """Return the groups and data sets of a file by path; no link is followed to another file."""
    items: dict[str, Any] = {}
    file.visititems(items.__setitem__)
    return items


@contextmanager
def read_hdf5(path: Path, *, matlab: bool = False) -> Iterator[Source]:
    """Data sets inside groups are named by their path.

    MATLAB writes its column-major arrays as they lie in memory, so HDF5 sees the axes reversed;
    they are turned back where the file or the data set says that MATLAB wrote it.
    """
    import h5py

    shapes, others, axes, units = {}, {}, {}, {}
    wavelengths, turned = None, set()
    with h5py.File(path, "r") as file:
        items = list_items(file)
        for name, item in items.items():
            if not isinstance(item, h5py.Dataset) or name.startswith("#"):
                continue
            kind = as_text(item.attrs.get("MATLAB_class", ""))
            if matlab or kind:
                turned.add(name)
            if reason := _why_unread(item, kind):
                others[name] = reason
                continue
            shapes[name] = item.shape[::-1] if name in turned else item.shape
            axes[name] = as_text(item.attrs.get("axes", "")) or _dimensions(item)
            units[name] = as_text(item.attrs.get("units", ""))
            if np.size(values := item.attrs.get("wavelengths")) > 1:
                wavelengths = (values, "")

        def read(name: str) -> np.ndarray:
            array = unpack(read_item(items[name]), items[name].attrs, axes[name])
            return array.T if name in turned else array

        yield Source(shapes, read, others, axes, units, wavelengths)


def _why_unread(item: Any, kind: str) -> str:
    """Say what a data set is that is no array of numbers, by its class of MATLAB, if any."""
    if kind in {"char", "cell", "struct", "function_handle"}:
        return f"a {kind} array"
    if item.dtype.names and set(item.dtype.names) == {"real", "imag"}:
        return "an array of complex numbers"
    if as_text(item.attrs.get("NAME")).startswith(_BARE):
        return "a dimension"
    if item.dtype.kind not in "biufc":
        return f"of type {item.dtype}"
    if "MATLAB_empty" in item.attrs or not item.size:
        return "empty"
    return "kept in other files" if is_elsewhere(item) else ""


def is_elsewhere(item: Any) -> bool:
    """Tell whether the values of a data set lie in other files, which HDF5 would open."""
    return bool(item.is_virtual or item.external)


def _dimensions(item: Any) -> str:
    names = [scales[0].name.rsplit("/", 1)[-1] for scales in item.dims if len(scales)]
    return letters(names) if len(names) == item.ndim else ""


def read_item(item: Any) -> np.ndarray:
    """Read a data set; ValueError where parts of it were never written, or by a strange filter."""
    made = item.id.get_create_plist()
    for number in range(made.get_nfilters()):
        code, _, _, name = made.get_filter(number)
        if code not in _FILTERS:
            stated, known = name.decode("latin1") or str(code), ", ".join(_FILTERS.values())
            raise ValueError(
                f"{item.name} is stored by the filter {stated}, expected {known}; write it again "
                "with h5repack -f GZIP=4 IN OUT"
            )
    if item.chunks is not None:
        counts = (-(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True))
        missing = (expected := math.prod(counts)) - item.id.get_num_chunks()
        if missing > 0:
            raise ValueError(f"{item.name}: {missing} of its {expected} chunks were never written")
    elif item.id.get_storage_size() < item.nbytes:
        raise ValueError(f"{item.name}: its values were never written")
    return np.asarray(item[()])


def write_hdf5(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` and `wavelengths` (nm), compressed."""
    import h5py

    with h5py.File(path, "w") as file:
        item = file.create_dataset("cube", data=cube, compression="gzip")
        describe(item, {"axes": "CHW"})
        if wavelengths is not None:
            describe(file.create_dataset("wavelengths", data=wavelengths), {"units": "nm"})


def write_netcdf(
    path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write `cube(wavelength, y, x)`, compressed, with its coordinate (nm), as netCDF 4."""
    import h5py

    with h5py.File(path, "w", track_order=True) as file:
        describe(file, {"Conventions": CONVENTIONS})
        item = file.create_dataset("cube", data=cube, compression="gzip")
        describe(item, {"long_name": "hyperspectral cube"})
        for number, (name, size) in enumerate(zip(DIMENSIONS, cube.shape, strict=True)):
            if name == "wavelength" and wavelengths is not None:
                scale = file.create_dataset(name, data=wavelengths)
                scale.make_scale(name)
                describe(scale, WAVELENGTH)
            else:
                scale = file.create_dataset(name, shape=(size,), dtype=">f4")
                scale.make_scale(f"{_BARE}{size:>10}")
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
            item.dims[number].attach_scale(scale)
        if fwhm is not None:
            width = file.create_dataset("fwhm", data=fwhm)
            width.dims[0].attach_scale(file["wavelength"])
            describe(width, FWHM)


def describe(item: Any, about: Mapping[str, object]) -> None:
    """Write attributes, texts as bytes of a fixed length."""
    for name, value in about.items():
        item.attrs[name] = np.bytes_(value) if isinstance(value, str) else value
