"""Which array of a file is meant, and how its axes lie."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cassi.checks import did_you_mean
from cassi.data.formats import Source


@dataclass(frozen=True)
class Role:
    """What an array is read as.

    Attributes:
        name: The noun used in messages.
        ndims: Numbers of axes it may have.
        axes: What three axes mean; the first letter is the one that may lie anywhere.
        keys: Names it is known by in published files, in order of preference, lower case.
    """

    name: str
    ndims: tuple[int, ...]
    axes: str
    keys: tuple[str, ...]


_CUBES = (
    "cube hypercube img_expand img hsi truth gt orig recon pred result reflectance ref radiance "
    "rad x data"
)
_MASKS = "mask mask3d mask_3d mask3d_shift mask_3d_shift phi code aperture data"
_MEASUREMENTS = "measurement meas_real meas snapshot meas_noise y data"
ROLES = {
    "cube": Role("cube", (3,), "CHW", tuple(_CUBES.split())),
    "mask": Role("mask", (2, 3, 4), "CHW", tuple(_MASKS.split())),
    "measurement": Role("measurement", (2, 3), "KHW", tuple(_MEASUREMENTS.split())),
    "guide": Role("guide", (2, 3), "CHW", ("guide", "rgb", "pan")),
}
# Names that say nothing about the role, so a file may use them for anything.
_VAGUE = {"x", "y", "data", "ref", "result", "code"}
WAVELENGTH_NAMES = (
    *("wavelengths_nm", "wavelengths", "wavelength", "wavelengths_um", "bands_nm"),
    *("wl", "wls", "wvl", "lambda", "lambdas", "bands"),
)
_SHOWN = 8


def choose_array(
    source: Source, role: Role, key: str | None, axes: str | None, bands: int | None
) -> tuple[str, tuple[int, ...], str]:
    """Find the array to read, its shape without a spare axis, and a letter for each of its axes.

    What the user chose, `key` and `axes`, counts first; so many `bands` are expected, if known.
    """
    key = _find_key(role, source.shapes, source.others, key)
    shape = tuple(map(int, source.shapes[key]))
    if min(shape, default=1) < 1:
        raise ValueError(f"the array {key!r} of shape {shape} is empty")
    stated, spare = source.axes.get(key, ""), _spare_axis(role, shape)
    if spare is not None:
        shape, stated = shape[:spare] + shape[spare + 1 :], ""
    return key, shape, _find_axes(role, shape, axes, stated, bands)


def _find_key(
    role: Role, shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, str], key: str | None
) -> str:
    """Name of the array to read: the one asked for, else a known name, else the only one possible.

    Shapes are those of all numeric arrays by name, "" where they have none.
    """
    there = _describe(shapes)
    if key is not None:
        key = key.strip("/")
        if key in shapes and key:
            return key
        if key in others:
            raise ValueError(f"{key!r} is {others[key]}, not an array of numbers; it holds {there}")
        if set(shapes) == {""}:
            raise ValueError(f"key {key!r} given, but it holds one array without a name: drop key=")
        raise ValueError(f"no array {key!r}; it holds {there}{did_you_mean(key, shapes)}")
    if set(shapes) == {""}:
        return ""

    for known in role.keys:
        named = [k for k in shapes if _leaf(k) == known and _ndim(role, shapes[k]) in role.ndims]
        if len(named) == 1:
            return named[0]
        if named:
            raise ValueError(f"{len(named)} arrays could be the {role.name}: {there}; pass key=")
    # A file that holds only a mask is not a measurement.
    others_roles = [other for other in ROLES.values() if other is not role]
    fitting = [
        k
        for k, shape in shapes.items()
        if not any(_is_named(other, k, shape) for other in others_roles)
        and _leaf(k) not in WAVELENGTH_NAMES
        and _ndim(role, shape) in role.ndims
        and sum(n > 1 for n in shape) >= min(role.ndims)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not shapes and others:
        listed = ", ".join(f"{name!r} is {what}" for name, what in list(others.items())[:_SHOWN])
        there = f"{there}, {listed}"
    found = "more than one array" if fitting else "no array"
    raise ValueError(f"{found} there could be the {role.name}: {there}; pass key=")


def _spare_axis(role: Role, shape: tuple[int, ...]) -> int | None:
    """The first or last axis, if of length 1 and one too many: a batch of one."""
    if len(shape) == max(role.ndims) + 1:
        return 0 if shape[0] == 1 else len(shape) - 1 if shape[-1] == 1 else None
    return None


def _find_axes(
    role: Role, shape: tuple[int, ...], axes: str | None, stated: str, bands: int | None
) -> str:
    """One letter for each axis of an array, for example "HWC".

    The user's choice ``axes`` wins; what the file has ``stated`` is ignored where it does not fit;
    then the axis as long as the number of ``bands`` decides, if there is exactly one.
    """
    ndim = len(shape)
    if ndim not in role.ndims:
        allowed = " or ".join(map(str, role.ndims))
        raise ValueError(f"a {role.name} has {allowed} axes, this array has shape {shape}")
    band = role.axes[0]
    full = {2: "HW", 3: role.axes, 4: "KCHW"}[ndim]
    if axes is not None:
        letters = axes.upper()
        # The three axes of a mask may also be shots; those of a measurement are never bands.
        if role.name == "mask" and ndim == 3:
            full = full if "C" in letters else "KHW"
        elif role.name == "measurement":
            letters = letters.replace("C", "K")
        if sorted(letters) != sorted(full):
            raise ValueError(f"axes={axes!r} for shape {shape}; expected an order of {full!r}")
        return letters
    stated = stated.upper().replace("C", band) if ndim == 3 else stated.upper()
    if sorted(stated) == sorted(full):
        return stated
    if ndim != 3:
        return full
    hits = [i for i, n in enumerate(shape) if n == bands]
    if len(hits) != 1:
        hits = [i for i, n in enumerate(shape) if n == min(shape)]
    if len(hits) != 1:
        example = f"HW{band}"
        hint = f"pass axes= such as {example!r}"
        raise ValueError(f"cannot tell which axis of {shape} is {band}: {hint}")
    return "HW"[: hits[0]] + band + "HW"[hits[0] :]


def find_wavelengths(source: Source, bands: int) -> tuple[str, str]:
    """Name and unit of the array that lists one wavelength a band, ("", "") if there is none."""
    for known in WAVELENGTH_NAMES:
        for key, shape in source.shapes.items():
            if _leaf(key) == known and math.prod(shape) == bands == max(shape, default=1):
                # Arrays named "bands" are nanometres or count 1, 2, 3, …; never micrometres.
                by_name = "nm" if known == "bands" else known.rpartition("_")[2]
                return key, source.units.get(key) or by_name
    return "", ""


def _is_named(role: Role, key: str, shape: tuple[int, ...]) -> bool:
    """Whether an array has a name and a number of axes of that role."""
    return _leaf(key) in {*role.keys} - _VAGUE and _ndim(role, shape) in role.ndims


def _leaf(key: str) -> str:
    return key.rsplit("/", 1)[-1].lower()


def _ndim(role: Role, shape: tuple[int, ...]) -> int:
    return len(shape) - (_spare_axis(role, shape) is not None)


def _describe(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if not shapes:
        return "no array of numbers"
    shown = [f"{k} {tuple(map(int, s))}".strip() for k, s in list(shapes.items())[:_SHOWN]]
    more = [f"and {len(shapes) - _SHOWN} more"] if len(shapes) > _SHOWN else []
    return ", ".join(shown + more)
