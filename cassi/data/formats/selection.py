"""Choose the array of a file that is the cube, mask or measurement, and order its axes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cassi.checks import did_you_mean
from cassi.data.formats import Source


@dataclass(frozen=True)
class Role:
    """A role in which an array is read, such as cube or mask.

    Attributes:
        name: The noun used in messages.
        ndims: Allowed numbers of axes.
        axes: Letters of the axes of an array with three axes. If a file does not state the order, H
            comes before W, and the first letter may be at any position.
        keys: Names of such arrays in published files, in lower case, preferred names first.
    """

    name: str
    ndims: tuple[int, ...]
    axes: str
    keys: tuple[str, ...]


_CUBE_KEYS = (
    "cube hypercube img_expand img hsi truth gt orig recon pred result reflectance ref radiance "
    "rad x data"
)
_MASK_KEYS = "mask mask3d mask_3d mask3d_shift mask_3d_shift phi code aperture data"
_MEASUREMENT_KEYS = "measurement meas_real meas snapshot meas_noise y data"
ROLES = {
    "cube": Role("cube", (3,), "CHW", tuple(_CUBE_KEYS.split())),
    "mask": Role("mask", (2, 3, 4), "CHW", tuple(_MASK_KEYS.split())),
    "measurement": Role("measurement", (2, 3), "KHW", tuple(_MEASUREMENT_KEYS.split())),
    "guide": Role("guide", (2, 3), "CHW", ("guide", "rgb", "pan")),
}
# Arrays of several roles, and other arrays, have these names. So the names do not tell the role.
_AMBIGUOUS_KEYS = {"x", "y", "data", "ref", "result", "code"}
WAVELENGTH_NAMES = (
    *("wavelengths_nm", "wavelengths", "wavelength", "wavelengths_um", "bands_nm"),
    *("wl", "wls", "wvl", "lambda", "lambdas", "bands"),
)
# A message names at most so many arrays, and gives the number of the others.
_MAX_LISTED = 8


def choose_array(
    source: Source, role: Role, key: str | None, axes: str | None, bands: int | None
) -> tuple[str, tuple[int, ...], str]:
    """Choose the array to read.

    Args:
        source: the open file.
        role: what the array is read as.
        key: the user's choice of the array, if any.
        axes: the user's order of the axes of the array, if any.
        bands: the number of bands, if known.

    Returns:
        The key of the array; its shape without the axis of a batch of one; a letter for each axis.

    Raises:
        ValueError: no array or several fit, the array is empty, or its axes are not clear.
    """
    key = _find_key(role, source.shapes, source.other_items, key)
    shape = tuple(map(int, source.shapes[key]))
    if min(shape, default=1) < 1:
        raise ValueError(f"the array {key!r} of shape {shape} is empty")
    stated_axes, batch_axis = source.axes.get(key, ""), _find_batch_axis(role, shape)
    if batch_axis is not None:
        shape, stated_axes = shape[:batch_axis] + shape[batch_axis + 1 :], ""
    return key, shape, _find_axes(role, shape, axes, stated_axes, bands)


def _find_key(
    role: Role,
    shapes: Mapping[str, tuple[int, ...]],
    other_items: Mapping[str, str],
    key: str | None,
) -> str:
    """Return the key of the array to read.

    The user's `key` is taken; else the array with a usual name of the role; else the only array
    whose axes fit. The key is "" in formats whose arrays have no names.
    """
    arrays_text = _describe_arrays(shapes)
    if key is not None:
        key = key.strip("/")
        if key in shapes and key:
            return key
        if key in other_items:
            raise ValueError(
                f"{key!r} is {other_items[key]}, not an array of numbers; it holds {arrays_text}"
            )
        if set(shapes) == {""}:
            raise ValueError(f"key {key!r} given, but it holds one array without a name: drop key=")
        raise ValueError(f"no array {key!r}; it holds {arrays_text}{did_you_mean(key, shapes)}")
    if set(shapes) == {""}:
        return ""

    for usual_name in role.keys:
        matching_keys = [
            name
            for name in shapes
            if _remove_groups(name) == usual_name and _count_axes(role, shapes[name]) in role.ndims
        ]
        if len(matching_keys) == 1:
            return matching_keys[0]
        if matching_keys:
            raise ValueError(
                f"{len(matching_keys)} arrays could be the {role.name}: {arrays_text}; pass key="
            )
    # An array with a name of another role is not a candidate: the `mask` of a file is no
    # measurement, although its shape would fit.
    other_roles = [other_role for other_role in ROLES.values() if other_role is not role]
    candidates = [
        name
        for name, shape in shapes.items()
        if not any(_has_role_name(other_role, name, shape) for other_role in other_roles)
        and _remove_groups(name) not in WAVELENGTH_NAMES
        and _count_axes(role, shape) in role.ndims
        and sum(n > 1 for n in shape) >= min(role.ndims)
    ]
    if len(candidates) == 1:
        return candidates[0]
    if not shapes and other_items:
        listed_items = list(other_items.items())[:_MAX_LISTED]
        items_text = ", ".join(f"{name!r} is {kind}" for name, kind in listed_items)
        arrays_text = f"{arrays_text}, {items_text}"
    count_text = "more than one array" if candidates else "no array"
    raise ValueError(f"{count_text} there could be the {role.name}: {arrays_text}; pass key=")


def _find_batch_axis(role: Role, shape: tuple[int, ...]) -> int | None:
    """Return the axis of a batch of one; None if there is no such axis.

    An array may have one axis more than the role allows. Then the first or the last axis is that of
    the batch, if its length is 1.
    """
    if len(shape) == max(role.ndims) + 1:
        if shape[0] == 1:
            return 0
        if shape[-1] == 1:
            return len(shape) - 1
    return None


def _find_axes(
    role: Role, shape: tuple[int, ...], axes: str | None, stated_axes: str, bands: int | None
) -> str:
    """Return one letter for each axis of an array, for example "HWC".

    The user's ``axes`` are taken first, then the ``stated_axes`` of the file if they fit. Otherwise
    the only axis of length ``bands`` is taken for the bands, else the only shortest axis.
    """
    ndim = len(shape)
    if ndim not in role.ndims:
        allowed_counts = " or ".join(map(str, role.ndims))
        raise ValueError(f"a {role.name} has {allowed_counts} axes, this array has shape {shape}")
    band_letter = role.axes[0]
    expected_letters = {2: "HW", 3: role.axes, 4: "KCHW"}[ndim]
    if axes is not None:
        letters = axes.upper()
        # A mask with three axes may have shots instead of bands. A measurement never has bands.
        if role.name == "mask" and ndim == 3:
            expected_letters = expected_letters if "C" in letters else "KHW"
        elif role.name == "measurement":
            letters = letters.replace("C", "K")
        if sorted(letters) != sorted(expected_letters):
            raise ValueError(
                f"axes={axes!r} for shape {shape}; expected an order of {expected_letters!r}"
            )
        return letters
    stated_axes = (
        stated_axes.upper().replace("C", band_letter) if ndim == 3 else stated_axes.upper()
    )
    if sorted(stated_axes) == sorted(expected_letters):
        return stated_axes
    if ndim != 3:
        return expected_letters
    # In nearly all files a cube has fewer bands than rows or columns. So without other information
    # the shortest axis is taken for the bands.
    band_axes = [i for i, length in enumerate(shape) if length == bands]
    if len(band_axes) != 1:
        band_axes = [i for i, length in enumerate(shape) if length == min(shape)]
    if len(band_axes) != 1:
        example = f"HW{band_letter}"
        hint = f"pass axes= such as {example!r}"
        raise ValueError(f"cannot tell which axis of {shape} is {band_letter}: {hint}")
    return "HW"[: band_axes[0]] + band_letter + "HW"[band_axes[0] :]


def find_wavelengths(source: Source, bands: int) -> tuple[str, str]:
    """Return key and unit of the array with one wavelength per band; ("", "") if there is none."""
    for usual_name in WAVELENGTH_NAMES:
        for key, shape in source.shapes.items():
            if _remove_groups(key) == usual_name and math.prod(shape) == bands == max(
                shape, default=1
            ):
                # Arrays named "bands" are nanometres or count 1, 2, 3, …; never micrometres.
                unit_of_name = "nm" if usual_name == "bands" else usual_name.rpartition("_")[2]
                return key, source.units.get(key) or unit_of_name
    return "", ""


def _has_role_name(role: Role, key: str, shape: tuple[int, ...]) -> bool:
    """Tell whether an array has a clear name of a role, and a number of axes that fits."""
    return (
        _remove_groups(key) in {*role.keys} - _AMBIGUOUS_KEYS
        and _count_axes(role, shape) in role.ndims
    )


def _remove_groups(key: str) -> str:
    return key.rsplit("/", 1)[-1].lower()


def _count_axes(role: Role, shape: tuple[int, ...]) -> int:
    """Return the number of axes, without the axis of a batch of one."""
    return len(shape) if _find_batch_axis(role, shape) is None else len(shape) - 1


def _describe_arrays(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if not shapes:
        return "no array of numbers"
    listed_shapes = list(shapes.items())[:_MAX_LISTED]
    texts = [f"{name} {tuple(map(int, shape))}".strip() for name, shape in listed_shapes]
    ellipsis = [f"and {len(shapes) - _MAX_LISTED} more"] if len(shapes) > _MAX_LISTED else []
    return ", ".join(texts + ellipsis)
