"""What may describe a camera: classes by name, and the values that each takes.

`system`, `noise` and a mask to draw may come from a stranger's file. So they build a few classes
and no others, of values alone: numbers, texts, and lists of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cassi.checks import did_you_mean, is_number

_PLACES = ("bands", "step", "axis", "offsets")
_SINGLE = (*_PLACES, "detector")
_SOLVED = (*_SINGLE, "tolerance", "iterations")
_DRAWN = ("density", "shots", "per_band", "seed")
_MAP = ("rotation", "magnification", "smile", "keystone", "polynomial", "displacement")

Classes = Mapping[str, Sequence[str]]

SYSTEMS: Classes = {
    "cassi.systems.SDCassi": (*_SINGLE, "band_width"),
    "cassi.systems.DDCassi": (*_PLACES, "width"),
    "cassi.systems.BlurredCassi": (*_SOLVED, "point_spread", "line_spread", "detector_spread"),
    "cassi.systems.MosaicCassi": (*_SINGLE, "pattern", "response"),
    "cassi.systems.PsfCassi": (*_SOLVED, "kernels", "line_spread", "detector_spread"),
    "cassi.systems.TiltedCassi": (*_SOLVED, "across"),
    "cassi.systems.WarpedCassi": (*_SOLVED, *_MAP),
}
CURVES: Classes = {
    "cassi.systems.Linear": ("step", "absolute"),
    "cassi.systems.Polynomial": ("coefficients", "reference", "absolute"),
    "cassi.systems.Curve": ("points", "file", "absolute"),
    "cassi.systems.Prism": (
        *("glass", "apex", "focal_length", "pitch", "reference", "incidence", "flip", "absolute"),
    ),
}
MASKS: Classes = {
    "cassi.systems.RandomMask": (*_DRAWN, "kind", "feature"),
    "cassi.systems.BlueNoiseMask": _DRAWN,
    "cassi.systems.ColourMask": ("filters", "width", "shots", "seed"),
    "cassi.systems.HoleMask": ("columns", "rows", "stagger"),
    "cassi.systems.OpenMask": (),
    "cassi.systems.Complementary": ("of",),
}
KERNELS: Classes = {"cassi.systems.TurningPsf": ("length", "blades", "width")}
NOISES: Classes = {
    "cassi.data.sensor.Sensor": (
        *("exposure", "qe", "shot", "full_well", "saturate", "read", "dark", "prnu"),
        *("hot", "hot_level", "gain", "offset", "bits", "raw", "seed"),
    ),
    "cassi.data.simulation.WhiteNoise": ("snr_db", "sigma"),
}
KINDS = {"system": SYSTEMS, "mask": MASKS, "noise": NOISES}
"""The classes of each value that describes a camera, with the names of what they take."""
_INNER = {"offsets": CURVES, "of": MASKS, "kernels": KERNELS}
"""Values inside that may be an object too."""
LARGEST = {
    "bands": 2**16,
    "shots": 2**12,
    "iterations": 10**6,
    "filters": 2**12,
    "pattern": 2**12,
    **dict.fromkeys(("offsets", "detector", "width", "across"), 2**20),
    **dict.fromkeys(("point_spread", "line_spread", "detector_spread"), 100),
}
"""No number of these may be beyond, in either direction: each decides how much memory is taken."""
_LONGEST = 4096  # characters of a text


def check_described(kind: str, node: Any, name: str | None = None) -> None:
    """Check a node that describes a part of a camera.

    Args:
        kind: of `KINDS`.
        node: a dict with `_target_`.
        name: of the node, for messages; `kind` if not given.
    """
    _check(KINDS[kind], node, name or kind)


def find_target(node: Any, name: str) -> Any:
    """Return the `_target_` of a node; ValueError where it has none."""
    if isinstance(node, dict) and "_target_" in node:
        return node["_target_"]
    hint = ""
    if isinstance(node, dict) and node and "." not in name:
        hint = f"; choose what it is, {name}=NAME, beside {name}.{str(next(iter(node)))[:80]}"
    raise ValueError(f"{name}: expected a node with _target_, got {str(node)[:80]}{hint}")


def _check(classes: Classes, node: Any, name: str) -> None:
    target = find_target(node, name)
    if not isinstance(target, str) or target not in classes:
        raise ValueError(
            f"config: _target_ {str(target)[:80]!r} is not allowed as {name}; there is "
            f"{', '.join(classes)}"
        )
    known = classes[target]
    for key, value in node.items():
        if key == "_target_":
            continue
        full = f"{name}.{str(key)[:80]}"
        if key not in known:
            hint = did_you_mean(str(key)[:80], known) or f"; there is {', '.join(known)}"
            raise ValueError(f"no config value {full!r} of {target}{hint}")
        if isinstance(value, dict) and key in _INNER and "_target_" in value:
            _check(_INNER[key], value, full)
        elif not isinstance(value, dict) or key not in _INNER:  # which curve, is asked for later
            check_plain(value, full)
        _check_size(full, value, LARGEST.get(key))


def check_plain(value: Any, name: str) -> None:
    """Raise ValueError unless a value is a number, a text, true, false, null, or a list of them."""
    for item in _leaves(value):
        if item is not None and not isinstance(item, bool | int | float | str):
            raise ValueError(
                f"{name}: expected numbers and texts, alone or in lists, got {str(item)[:80]}"
            )
        if isinstance(item, str) and len(item) > _LONGEST:
            raise ValueError(f"{name}: expected at most {_LONGEST} characters, got {len(item)}")


def _check_size(name: str, value: Any, most: float | None) -> None:
    for item in _leaves(value):
        if most is not None and is_number(item) and abs(item) > most:
            raise ValueError(f"{name}: expected at most {most:g}, got {item:g}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
