"""Arrays whose dimensions have names, as the CF conventions and xarray have them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
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
_LARGEST_COORDINATE = 1 << 16
_LETTERS = {
    **dict.fromkeys((*WAVELENGTH_NAMES, "band", "channel", "c", "spectral", "spectrum"), "C"),
    **dict.fromkeys(("time", "t", "frame", "frames"), "C"),  # of a video, whose bands they are
    **dict.fromkeys(("y", "row", "rows", "line", "lines", "lat", "latitude", "height", "h"), "H"),
    **dict.fromkeys(("x", "column", "columns", "col", "sample", "samples"), "W"),
    **dict.fromkeys(("lon", "longitude", "width", "w"), "W"),
    **dict.fromkeys(("shot", "shots", "k"), "K"),
}


@dataclass(frozen=True)
class Labelled:
    """One array of a file.

    Attributes:
        shape: of it.
        kind: of its dtype, as NumPy has it.
        dimensions: their names; empty where the file has none.
        attributes: of it.
        read: its values as they are stored.
    """

    shape: tuple[int, ...]
    kind: str
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    read: Callable[[], np.ndarray]


def as_source(arrays: Mapping[str, Labelled]) -> Source:
    """Return what readers make of the arrays of a file, by name.

    The wavelengths are those of the coordinate that is called so, in the unit that it states;
    values are unpacked as `scale_factor`, `add_offset` and `_FillValue` say.
    """
    shapes, axes, others = {}, {}, {}
    wavelengths = None
    for name, array in arrays.items():
        leaf = name.rsplit("/", 1)[-1].lower()
        if array.kind not in "biufc" or 0 in array.shape:
            others[name] = "empty" if array.kind in "biufc" else f"of type {array.kind!r}"
        elif len(array.shape) == 1 and leaf in WAVELENGTH_NAMES:
            if wavelengths is None and array.shape[0] <= _LARGEST_COORDINATE:
                wavelengths = (array.read(), as_text(array.attributes.get("units", "")))
        elif len(array.shape) > 1:
            shapes[name] = array.shape
            axes[name] = letters(array.dimensions)
    return Source(shapes, lambda name: unpack(arrays[name]), others, axes, wavelengths)


def letters(dimensions: Sequence[str]) -> str:
    """Return one letter for each dimension, such as "CHW"; "" where one is not known.

    >>> letters(("wavelength", "y", "x")), letters(("y", "x", "time")), letters(("run", "y", "x"))
    ('CHW', 'HWC', '')
    """
    found = [_LETTERS.get(name.lower(), "") for name in dimensions]
    return "".join(found) if all(found) and len(set(found)) == len(found) else ""


def unpack(array: Labelled) -> np.ndarray:
    """Return the values that an array stands for; missing ones are NaN."""
    values, about = array.read(), array.attributes
    scale, offset = (_number(about.get(name)) for name in ("scale_factor", "add_offset"))
    missing = [_number(about.get(name)) for name in ("_FillValue", "missing_value")]
    gone = np.zeros(values.shape, bool)
    for value in missing:
        gone |= False if value is None else values == value
    if scale is not None or offset is not None:
        values = values * (1.0 if scale is None else scale) + (0.0 if offset is None else offset)
    return np.where(gone, np.nan, values) if gone.any() else values


def _number(value: Any) -> float | None:
    found = np.asarray(value) if value is not None else np.empty(0)
    return float(found.reshape(-1)[0]) if found.size == 1 and found.dtype.kind in "iuf" else None
