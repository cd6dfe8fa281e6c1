"""Names of dimensions and attributes, as the CF conventions and xarray have them."""

from collections.abc import Mapping, Sequence

import numpy as np

from cassi.data.formats import as_numbers, blank, find_missing
from cassi.data.formats.selection import WAVELENGTH_NAMES

DIMENSIONS = ("wavelength", "y", "x")
"""Of a cube that is written."""
CONVENTIONS = "CF-1.11"
WAVELENGTH = {
    "units": "nm",
    "standard_name": "radiation_wavelength",
    "long_name": "central wavelength of the band",
}
"""Attributes of the coordinate."""
FWHM = {"units": "nm", "long_name": "full width at half maximum of the band"}
_STATED = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value"),
    *("valid_min", "valid_max", "valid_range"),
)
_LETTERS = {
    **dict.fromkeys((*WAVELENGTH_NAMES, "band", "channel", "c", "spectral", "spectrum"), "C"),
    **dict.fromkeys(("time", "t", "frame", "frames"), "C"),  # of a video, whose bands they are
    **dict.fromkeys(("y", "row", "rows", "line", "lines", "lat", "latitude", "height", "h"), "H"),
    **dict.fromkeys(("x", "column", "columns", "col", "sample", "samples"), "W"),
    **dict.fromkeys(("lon", "longitude", "width", "w"), "W"),
    **dict.fromkeys(("shot", "shots", "k"), "K"),
}


def letters(dimensions: Sequence[str]) -> str:
    """Return one letter for each dimension, such as "CHW"; "" where one is not known.

    >>> letters(("wavelength", "y", "x")), letters(("y", "x", "time")), letters(("run", "y", "x"))
    ('CHW', 'HWC', '')
    """
    found = [_LETTERS.get(name.lower(), "") for name in dimensions]
    return "".join(found) if all(found) and len(set(found)) == len(found) else ""


def unpack(values: np.ndarray, about: Mapping[str, object], axes: str = "") -> np.ndarray:
    """Return the values that stored ones stand for, by the attributes of an array.

    Those that stand for none are NaN. The scale may be one number, or one for each of its bands.
    """
    stated = {name: as_numbers(about[name]) for name in _STATED if about.get(name) is not None}
    missing = [value for name in ("_FillValue", "missing_value") for value in stated.get(name, [])]
    valid = [*stated.get("valid_min", [-np.inf])[:1], *stated.get("valid_max", [np.inf])[:1]]
    gone = find_missing(values, missing, tuple(stated.get("valid_range", valid)))
    for name, apply in (("scale_factor", np.multiply), ("add_offset", np.add)):
        if name in stated:
            values = apply(values, _along_bands(name, stated[name], values.shape, axes))
    return blank(values, gone)


def _along_bands(
    name: str, stated: np.ndarray, shape: tuple[int, ...], axes: str
) -> float | np.ndarray:
    """Return a number for all values, or numbers in a shape that meets the axis of the bands."""
    if stated.size == 1:
        return float(stated[0])
    fitting = [axis for axis, size in enumerate(shape) if size == stated.size]
    banded = [axis for axis in fitting if axes[axis : axis + 1] == "C"] or fitting
    if len(banded) != 1:
        raise ValueError(
            f"{name}: expected one number, or one per band, got {stated.size} for shape {shape}"
        )
    return stated.reshape([-1 if axis == banded[0] else 1 for axis in range(len(shape))])
