"""Read names of dimensions, scale, offset and missing values as the CF conventions define them."""

from collections.abc import Mapping, Sequence

import numpy as np

from cassi.data.formats import as_numbers, blank, find_missing
from cassi.data.formats.selection import WAVELENGTH_NAMES

DIMENSIONS = ("wavelength", "y", "x")
"""Dimensions of a cube that is written."""
CONVENTIONS = "CF-1.11"
WAVELENGTH = {
    "units": "nm",
    "standard_name": "radiation_wavelength",
    "long_name": "central wavelength of the band",
}
"""Attributes of the coordinate `wavelength`."""
FWHM = {"units": "nm", "long_name": "full width at half maximum of the band"}
# Attributes that say how a stored number is converted to a value, or that it is missing (CF
# conventions, sections 8.1 and 2.5.1).
_CF_ATTRIBUTES = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value"),
    *("valid_min", "valid_max", "valid_range"),
)
_LETTER_BY_DIMENSION = {
    **dict.fromkeys((*WAVELENGTH_NAMES, "band", "channel", "c", "spectral", "spectrum"), "C"),
    # The pages of a video count as bands, because a cube has no other axis for them.
    **dict.fromkeys(("time", "t", "frame", "frames"), "C"),
    **dict.fromkeys(("y", "row", "rows", "line", "lines", "lat", "latitude", "height", "h"), "H"),
    **dict.fromkeys(("x", "column", "columns", "col", "sample", "samples"), "W"),
    **dict.fromkeys(("lon", "longitude", "width", "w"), "W"),
    **dict.fromkeys(("shot", "shots", "k"), "K"),
}


def axis_letters(dimensions: Sequence[str]) -> str:
    """Return one letter for each dimension, such as "CHW"; "" if one is unknown or comes twice.

    >>> axis_letters(("wavelength", "y", "x")), axis_letters(("run", "y", "x"))
    ('CHW', '')
    """
    letters = [_LETTER_BY_DIMENSION.get(name.lower(), "") for name in dimensions]
    is_known = all(letters) and len(set(letters)) == len(letters)
    return "".join(letters) if is_known else ""


def unpack(values: np.ndarray, attributes: Mapping[str, object], axes: str = "") -> np.ndarray:
    """Return scale_factor · stored + add_offset; NaN for a value that is missing or out of range.

    An attribute is one number, or one per band.

    Args:
        values: the stored array.
        attributes: attributes of the array by their CF names.
        axes: letters of the axes of the array, such as "CHW"; "" if they are unknown.

    Raises:
        ValueError: the length of an attribute does not fit the array.
    """
    numbers = {
        name: as_numbers(attributes[name])
        for name in _CF_ATTRIBUTES
        if attributes.get(name) is not None
    }
    missing_values = [*numbers.get("_FillValue", []), *numbers.get("missing_value", [])]
    valid = [*numbers.get("valid_min", [-np.inf])[:1], *numbers.get("valid_max", [np.inf])[:1]]
    # The values of these attributes are stored numbers, so they are compared before the scaling.
    is_missing = find_missing(values, missing_values, tuple(numbers.get("valid_range", valid)))
    for name, apply in (("scale_factor", np.multiply), ("add_offset", np.add)):
        if name in numbers:
            values = apply(values, _broadcast_over_bands(name, numbers[name], values.shape, axes))
    return blank(values, is_missing)


def _broadcast_over_bands(
    name: str, numbers: np.ndarray, shape: tuple[int, ...], axes: str
) -> float | np.ndarray:
    """Return one number, or a number per band in a shape that broadcasts over the array."""
    if numbers.size == 1:
        return float(numbers[0])
    # The bands are the axis C, or without letters the only axis of that length.
    fitting_axes = [axis for axis, size in enumerate(shape) if size == numbers.size]
    band_axes = [axis for axis in fitting_axes if axes[axis : axis + 1] == "C"] or fitting_axes
    if len(band_axes) != 1:
        raise ValueError(
            f"{name}: expected one number, or one per band, got {numbers.size} for shape {shape}"
        )
    return numbers.reshape([-1 if axis == band_axes[0] else 1 for axis in range(len(shape))])
