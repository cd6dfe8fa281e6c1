"""Read one array of a file or a folder of images: choose it, order its axes, scale its integers.

This runs in the sandboxed reader, so it imports numpy and the libraries of formats, but no torch.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import (
    Reader,
    Source,
    as_numbers,
    blank,
    envi,
    find_missing,
    hdf5,
    hyperspy,
    mat,
    name_errors,
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
FOLDER_SUFFIXES = (".zarr",)
"""Suffixes of formats that are folders."""
# Bits of sensors whose frames are often stored in 16-bit files that do not state the bits.
_SENSOR_BITS = (8, 10, 12, 14)
# A file may list any number of wavelengths, but the answer of the sandboxed reader is one line of
# limited length.
_MAX_WAVELENGTHS = 1 << 16
# float32 has its full precision from 1.2e-38 on. If the largest value is 1e-31, values down to a
# ten-millionth of it still have full precision.
_MIN_LARGEST_VALUE = 1e-31


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
        path: an existing file with a suffix of `READERS`, or a folder of images.
        role: a key of `ROLES`.
        key: name of the array; None chooses it by `role`.
        axes: order of the axes; None takes it from the file or the shape.
        bands: number of bands expected, a hint for the order of the axes.
        counts: take integers as they are.
        pages: names of the images of a folder to read; None for all.

    Returns:
        The array, its axes in the order of "KCHW", and a description in values of JSON: `key`,
        `axes` and `shape` in the file, `wavelengths` (values and unit, or None), `remarks`,
        `missing` (a message, or ""), `counts` and `full_scale` (see `cassi.data.io.LoadedArray`).

    Raises:
        ValueError: the file is damaged, or it has no array or several arrays that fit.
    """
    is_image_folder = path.is_dir() and path.suffix.lower() not in FOLDER_SUFFIXES
    read_error = f"cannot read {path} as {'images' if is_image_folder else path.suffix.lower()}"
    with ExitStack() as stack:
        with name_errors(read_error):
            source = stack.enter_context(_choose_reader(path, role, pages)(path))
        with name_errors(str(path)):
            key, shape, order = choose_array(source, ROLES[role], key, axes, bands)
        with name_errors(read_error):
            array, wavelengths = source.read(key), None
            if "C" in order:
                wavelengths = _read_wavelengths(source, shape[order.index("C")])
        with name_errors(str(path)):
            is_unscaled = array.dtype.kind in "iu" and source.scale is None
            # In an image 0 is darkness, even if the file declares it as its no-data value.
            zeros = [value for value in source.missing if source.image and value == 0]
            is_missing = find_missing(array.reshape(shape), set(source.missing) - set(zeros))
            remarks = ["0 taken for darkness, not for its no-data value"] if zeros else []
            array, remark, full_scale = scale_integers(array.reshape(shape), source, role, counts)
            array = blank(array, is_missing)
            check_float32(array)
    target_order = "".join(letter for letter in "KCHW" if letter in order)
    description = {
        "key": key,
        "axes": order,
        "shape": shape,
        "wavelengths": wavelengths,
        "remarks": [remark, *remarks] if remark else remarks,
        "missing": _describe_missing(source, int(is_missing.sum())),
        "counts": is_unscaled,
        "full_scale": full_scale,
    }
    return array.transpose([order.index(letter) for letter in target_order]), description


def _choose_reader(path: Path, role: str, pages: list[str] | None) -> Reader:
    """Return the reader of a file or a folder; only the picture of a guide may have colours."""
    suffix = path.suffix.lower()
    if path.is_dir() and suffix not in FOLDER_SUFFIXES:
        return partial(planes.read_planes, pages=pages)
    if (role, suffix) == ("guide", ".png"):
        return partial(png.read_png, colours=True)
    return READERS[suffix]


def _describe_missing(source: Source, count: int) -> str:
    """Return a message on missing values, "" if there are none."""
    listed_values = ", ".join(f"{value:g}" for value in source.missing if value)
    return f"{count} values are its data ignore value {listed_values}" if count else ""


def _read_wavelengths(source: Source, bands: int) -> tuple[list[float], str] | None:
    """Return the wavelengths of an array or of the header, and their unit; None if there are none.

    The caller compares their number with the number of bands. A list that is longer than
    `_MAX_WAVELENGTHS` is cut to one more than this limit.
    """
    values: object
    key, unit = find_wavelengths(source, bands)
    if key:
        values = source.read(key)
    elif source.wavelengths is not None:
        values, unit = source.wavelengths
    else:
        return None
    return as_numbers(values)[: _MAX_WAVELENGTHS + 1].tolist(), str(unit)[:64]


def scale_integers(
    array: np.ndarray, source: Source, role_name: str, counts: bool = False
) -> tuple[np.ndarray, str, float | None]:
    """Scale integer grey levels of a file to [0, 1]; a mask of zeros and ones is never scaled.

    If `counts` is true, integers are taken as they are, even if the file states a scale.

    Returns:
        The array; a remark on the scaling of integers ("" for other numbers); the value that the
        largest possible integer has now (None if it is unknown).

    Raises:
        ValueError: the numbers are complex or of another type, or the scale is not positive.
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
    maximum = np.iinfo(dtype).max
    if not source.image or (role_name == "mask" and array.max() <= 1 and array.min() >= 0):
        return array, f"{dtype} taken as it is", float(maximum)
    remark = f"{dtype} divided by {maximum}"
    # A 12-bit camera that writes 16-bit files never exceeds 4095, so 65535 is not its full scale.
    # The remark is a question, because the values may also come from a dark scene.
    largest_level = int(array.max())
    sensor_bits = next((bits for bits in _SENSOR_BITS if largest_level < 1 << bits), None)
    if role_name == "measurement" and maximum == 65535 and sensor_bits is not None:
        remark += (
            f", none above {largest_level}: of a camera of {sensor_bits} bits? "
            f"then set bits={sensor_bits}"
        )
    return array / np.float32(maximum), remark, 1.0


def check_float32(array: np.ndarray) -> None:
    """Raise ValueError if numbers are too large or too small for the precision of float32."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return
    largest = max(
        (float(np.max(np.abs(part), where=np.isfinite(part), initial=0)) for part in array),
        default=0.0,
    )
    if largest > float(np.finfo(np.float32).max) or 0 < largest < _MIN_LARGEST_VALUE:
        raise ValueError(
            f"its largest value {largest:.2g} is beyond float32, which computes from "
            f"{_MIN_LARGEST_VALUE:.0e} to 3e+38; save it in another unit, such as divided by "
            f"{largest:.0e}"
        )
