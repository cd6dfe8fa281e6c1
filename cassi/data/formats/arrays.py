"""One array of a file, found and brought into order; needs numpy and the libraries of formats."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import (
    Reader,
    Source,
    as_numbers,
    blaming,
    blank,
    envi,
    find_missing,
    hdf5,
    hyperspy,
    mat,
    netcdf,
    numpy,
    planes,
    png,
    tiff,
    zarr,
)
from cassi.data.formats.selection import ROLES, choose_array, find_wavelengths

READERS: dict[str, Reader] = {
    **dict.fromkeys((".tif", ".tiff"), tiff.read_tiff),
    **dict.fromkeys((".hdr", *filter(None, envi.DATA_SUFFIXES)), envi.read_envi),
    ".mat": mat.read_mat,
    ".npz": numpy.read_npz,
    ".npy": numpy.read_npy,
    **dict.fromkeys((".h5", ".hdf5"), hdf5.read_hdf5),
    ".nc": netcdf.read_netcdf,
    ".zarr": zarr.read_zarr,
    ".hspy": hyperspy.read_hyperspy,
    ".png": png.read_png,
}
FOLDERS = (".zarr",)
"""Formats that are folders."""
_CONVERTERS = (8, 10, 12, 14)
"""Bits of the sensors whose frames lie in files of 16."""
_MOST_WAVELENGTHS = 1 << 16
_LEAST = 1e-31
"""Of the largest value: a ten-millionth of it has all its digits in float32."""


def read_array(
    path: Path,
    role: str,
    key: str | None = None,
    axes: str | None = None,
    bands: int | None = None,
    counts: bool = False,
    pages: list[str] | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Read one array of a file or folder.

    Args:
        path: it is there, and has a suffix of `READERS` or is a folder of images.
        role: of `ROLES`.
        key: name of the array; None finds it.
        axes: order of its axes; None finds it.
        bands: number of bands expected, a hint for the order of the axes.
        counts: take integers as they are.
        pages: names of the images of a folder that are read; None for all.

    Returns:
        The array, its axes in the order of "KCHW"; and what it is, in values of JSON: `key`,
        `axes` and `shape` in the file, `wavelengths` (values and unit, or None), `remarks`,
        `counts` and `full_scale` as in `cassi.data.io.Loaded`.
    """
    images = path.is_dir() and path.suffix.lower() not in FOLDERS
    what = f"cannot read {path} as {'images' if images else path.suffix.lower()}"
    with ExitStack() as stack:
        with blaming(what):
            reader = partial(planes.read_planes, pages=pages) if images else _reader(path, role)
            source = stack.enter_context(reader(path))
        with blaming(str(path)):
            key, shape, order = choose_array(source, ROLES[role], key, axes, bands)
        with blaming(what):
            array = source.read(key)
            listed = _listed_wavelengths(source, shape[order.index("C")]) if "C" in order else None
        with blaming(str(path)):
            unscaled = array.dtype.kind in "iu" and source.scale is None
            dark = [value for value in source.missing if source.image and value == 0]
            gone = find_missing(array.reshape(shape), set(source.missing) - set(dark))
            remarks = ["0 taken for darkness, not for its no-data value"] if dark else []
            array, remark, full = scale_integers(array.reshape(shape), source, role, counts)
            array = blank(array, gone)
            check_float32(array)
    target = "".join(letter for letter in "KCHW" if letter in order)
    about = {
        "key": key,
        "axes": order,
        "shape": shape,
        "wavelengths": listed,
        "remarks": [remark, *remarks] if remark else remarks,
        "missing": _count_missing(source, int(gone.sum())),
        "counts": unscaled,
        "full_scale": full,
    }
    return array.transpose([order.index(letter) for letter in target]), about


def _reader(path: Path, role: str) -> Reader:
    """Return what reads a file; the picture of a guide may have colours."""
    suffix = path.suffix.lower()
    if (role, suffix) == ("guide", ".png"):
        return partial(png.read_png, colours=True)
    return READERS[suffix]


def _count_missing(source: Source, number: int) -> str:
    stated = ", ".join(f"{value:g}" for value in source.missing if value)
    return f"{number} values are its data ignore value {stated}" if number else ""


def _listed_wavelengths(source: Source, bands: int) -> tuple[list[float], str] | None:
    name, unit = find_wavelengths(source, bands)
    stated = (source.read(name), unit) if name else source.wavelengths
    if stated is None:
        return None
    return as_numbers(stated[0])[: _MOST_WAVELENGTHS + 1].tolist(), str(stated[1])[:64]


def scale_integers(
    array: np.ndarray, source: Source, role_name: str, counts: bool = False
) -> tuple[np.ndarray, str, float | None]:
    """Bring integer grey levels of a file to [0, 1]; a mask of zeros and ones is never scaled.

    Where they are `counts`, integers are taken as they are, whatever the file says of them.

    Returns:
        The array; a remark on what was done to integers ("" if there were none); what the largest
        integer that there can be has become (None where that is unknown).
    """
    kind, dtype = array.dtype.kind, array.dtype
    if kind == "c":
        raise ValueError(f"complex numbers ({dtype}); save their real part or their magnitude")
    if kind not in "biuf":
        raise ValueError(f"expected numbers, the array is of type {dtype}")
    if counts and kind in "iu":
        return array, f"{dtype} taken as counts", float(np.iinfo(dtype).max)
    if source.scale is not None and not counts:
        divisor, reason = source.scale
        if not (np.isfinite(divisor) and divisor > 0):
            raise ValueError(f"expected a positive {reason}, got {divisor}")
        remark = f"{dtype} divided by {reason} {divisor:g}"
        return array / np.float32(divisor), remark, 1.0 if reason == "full_scale" else None
    if kind not in "iu":
        return array, "", None
    top = np.iinfo(dtype).max
    if not source.image or (role_name == "mask" and array.max() <= 1 and array.min() >= 0):
        return array, f"{dtype} taken as it is", float(top)
    remark = f"{dtype} divided by {top}"
    largest = int(array.max())
    fewer = next((bits for bits in _CONVERTERS if largest < 1 << bits), None)
    if role_name == "measurement" and top == 65535 and fewer is not None:
        remark += f", none above {largest}: of a camera of {fewer} bits? then set bits={fewer}"
    return array / np.float32(top), remark, 1.0


def check_float32(array: np.ndarray) -> None:
    """Raise ValueError where numbers are too large or small for the digits of float32."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return
    largest = max(
        (float(np.max(np.abs(part), where=np.isfinite(part), initial=0)) for part in array),
        default=0.0,
    )
    if largest > float(np.finfo(np.float32).max) or 0 < largest < _LEAST:
        raise ValueError(
            f"its largest value {largest:.2g} is beyond float32, which computes from {_LEAST:.0e} "
            f"to 3e+38; save it in another unit, such as divided by {largest:.0e}"
        )
