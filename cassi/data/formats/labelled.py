"""Arrays whose dimensions have names, as the CF conventions and xarray have them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cassi.data.formats import Source, as_numbers, as_text, blank, find_missing
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
PACKING = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value"),
    *("valid_min", "valid_max", "valid_range"),
)
"""Attributes that say what stored values stand for."""
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
    attributes: Mapping[str, object]
    read: Callable[[], np.ndarray]


def as_source(arrays: Mapping[str, Labelled]) -> Source:
    """Return what readers make of the arrays of a file, by name.

    The wavelengths are those of the coordinate that is called so, in the unit that it states;
    values are unpacked as the attributes `PACKING` say.
    """
    shapes, axes, others = {}, {}, {}
    wavelengths = None
    for name, array in arrays.items():
        leaf = name.rsplit("/", 1)[-1].lower()
        if array.kind not in "biufc" or 0 in array.shape:
            others[name] = "empty" if array.kind in "biufc" else f"of type {array.kind!r}"
        elif len(array.shape) == 1 and leaf in WAVELENGTH_NAMES:
            if wavelengths is None:
                wavelengths = (array.read(), as_text(array.attributes.get("units", "")))
        elif len(array.shape) > 1:
            shapes[name] = array.shape
            axes[name] = letters(array.dimensions)
    return Source(
        shapes,
        lambda name: unpack(arrays[name].read(), arrays[name].attributes, axes[name]),
        others,
        axes,
        wavelengths,
    )


def letters(dimensions: Sequence[str]) -> str:
    """Return one letter for each dimension, such as "CHW"; "" where one is not known.

    >>> letters(("wavelength", "y", "x")), letters(("y", "x", "time")), letters(("run", "y", "x"))
    ('CHW', 'HWC', '')
    """
    found = [_LETTERS.get(name.lower(), "") for name in dimensions]
    return "".join(found) if all(found) and len(set(found)) == len(found) else ""


def unpack(values: np.ndarray, about: Mapping[str, object], axes: str = "") -> np.ndarray:
    """Return the values that stored ones stand for, by the attributes `PACKING`; missing are NaN.

    Args:
        values: as they are stored.
        about: attributes of the array.
        axes: one letter for each of its axes, where they are known.

    Raises:
        ValueError: an attribute fits neither the array nor its bands.
    """
    stated = {name: as_numbers(about[name]) for name in PACKING if about.get(name) is not None}
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
