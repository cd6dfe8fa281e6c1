"""Check the nodes that describe a camera: which classes they name, and with which values.

A node is a dict whose `_target_` names the class to build and whose other keys are its arguments.
The nodes of `system`, `noise` and a drawn mask may come from a stranger's file. So they may build
only a few classes, and only from numbers, texts and lists of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cassi.checks import did_you_mean, is_number

_DISPERSION = ("bands", "step", "axis", "offsets")
_SINGLE_DISPERSER = (*_DISPERSION, "detector")
_CONJUGATE_GRADIENTS = (*_SINGLE_DISPERSER, "tolerance", "iterations")
_RANDOM_MASK = ("density", "shots", "per_band", "seed")
_WARP = ("rotation", "magnification", "smile", "keystone", "polynomial", "displacement")

Classes = Mapping[str, Sequence[str]]

# Only classes and arguments in these tables can be named by a file. An argument that would open a
# file or take a callable must not be added without a check of its value.
SYSTEMS: Classes = {
    "cassi.systems.SDCassi": (*_SINGLE_DISPERSER, "band_width"),
    "cassi.systems.DDCassi": (*_DISPERSION, "width"),
    "cassi.systems.BlurredCassi": (
        *_CONJUGATE_GRADIENTS,
        "point_spread",
        "line_spread",
        "detector_spread",
    ),
    "cassi.systems.MosaicCassi": (*_SINGLE_DISPERSER, "pattern", "response"),
    "cassi.systems.PsfCassi": (*_CONJUGATE_GRADIENTS, "kernels", "line_spread", "detector_spread"),
    "cassi.systems.TiltedCassi": (*_CONJUGATE_GRADIENTS, "across"),
    "cassi.systems.WarpedCassi": (*_CONJUGATE_GRADIENTS, *_WARP),
}
CURVES: Classes = {
    "cassi.systems.Linear": ("step", "absolute"),
    "cassi.systems.Polynomial": ("coefficients", "reference", "absolute"),
    "cassi.systems.Curve": ("points", "file", "absolute"),
    "cassi.systems.Prism": (
        "glass",
        "apex",
        "focal_length",
        "pitch",
        "reference",
        "incidence",
        "flip",
        "absolute",
    ),
}
MASKS: Classes = {
    "cassi.systems.RandomMask": (*_RANDOM_MASK, "kind", "feature"),
    "cassi.systems.BlueNoiseMask": _RANDOM_MASK,
    "cassi.systems.ColourMask": ("filters", "width", "shots", "seed"),
    "cassi.systems.HoleMask": ("columns", "rows", "stagger"),
    "cassi.systems.OpenMask": (),
    "cassi.systems.Complementary": ("of",),
}
KERNELS: Classes = {"cassi.systems.TurningPsf": ("length", "blades", "width")}
NOISES: Classes = {
    "cassi.data.sensor.Sensor": (
        "exposure",
        "qe",
        "shot",
        "full_well",
        "saturate",
        "read",
        "dark",
        "prnu",
        "hot",
        "hot_level",
        "gain",
        "offset",
        "bits",
        "raw",
        "seed",
    ),
    "cassi.data.simulation.WhiteNoise": ("snr_db", "sigma"),
}
KINDS = {"system": SYSTEMS, "mask": MASKS, "noise": NOISES}
"""Classes that each part of a camera may be built from, with the names of their arguments."""
# Arguments that may be nodes themselves.
_NESTED_CLASSES = {"offsets": CURVES, "of": MASKS, "kernels": KERNELS}
MAX_NUMBERS = {
    "bands": 2**16,
    "shots": 2**12,
    "iterations": 10**6,
    "filters": 2**12,
    "pattern": 2**12,
    **dict.fromkeys(("offsets", "detector", "width", "across"), 2**20),
    **dict.fromkeys(("point_spread", "line_spread", "detector_spread"), 100),
}
"""Largest absolute values of arguments that decide how much memory is taken."""
# Largest number of characters of a text, far above any path or formula.
_MAX_CHARACTERS = 4096


def check_described(kind: str, node: Any, name: str | None = None) -> None:
    """Check a node that describes a part of a camera.

    Args:
        kind: one of the keys of `KINDS`.
        node: a dict with `_target_`.
        name: name of the node in messages. None takes `kind`.

    Raises:
        ValueError: the class or an argument is not allowed, or a value is of another kind or too
            large.
    """
    _check_node(KINDS[kind], node, name or kind)


def find_target(node: Any, name: str) -> Any:
    """Return the `_target_` of a node.

    Raises:
        ValueError: the node has no `_target_`.
    """
    if isinstance(node, dict) and "_target_" in node:
        return node["_target_"]
    hint = ""
    if isinstance(node, dict) and node and "." not in name:
        hint = f"; choose what it is, {name}=NAME, beside {name}.{str(next(iter(node)))[:80]}"
    raise ValueError(f"{name}: expected a node with _target_, got {str(node)[:80]}{hint}")


def _check_node(classes: Classes, node: Any, name: str) -> None:
    target = find_target(node, name)
    if not isinstance(target, str) or target not in classes:
        raise ValueError(
            f"config: _target_ {str(target)[:80]!r} is not allowed as {name}; there is "
            f"{', '.join(classes)}"
        )
    allowed_keys = classes[target]
    for key, value in node.items():
        if key == "_target_":
            continue
        full_name = f"{name}.{str(key)[:80]}"
        if key not in allowed_keys:
            hint = (
                did_you_mean(str(key)[:80], allowed_keys) or f"; there is {', '.join(allowed_keys)}"
            )
            raise ValueError(f"no config value {full_name!r} of {target}{hint}")
        if isinstance(value, dict) and key in _NESTED_CLASSES and "_target_" in value:
            _check_node(_NESTED_CLASSES[key], value, full_name)
        elif not isinstance(value, dict) or key not in _NESTED_CLASSES:
            # A nested dict without a class passes: `find_offsets` asks for the kind of curve.
            check_plain(value, full_name)
        _check_size(full_name, value, MAX_NUMBERS.get(key))


def check_plain(value: Any, name: str) -> None:
    """Raise ValueError unless a value is a number, text, true, false, null, or a list of these."""
    for item in _iterate_leaves(value):
        if item is not None and not isinstance(item, bool | int | float | str):
            raise ValueError(
                f"{name}: expected numbers and texts, alone or in lists, got {str(item)[:80]}"
            )
        if isinstance(item, str) and len(item) > _MAX_CHARACTERS:
            raise ValueError(
                f"{name}: expected at most {_MAX_CHARACTERS} characters, got {len(item)}"
            )


def _check_size(name: str, value: Any, max_number: float | None) -> None:
    for item in _iterate_leaves(value):
        if max_number is not None and is_number(item) and abs(item) > max_number:
            raise ValueError(f"{name}: expected at most {max_number:g}, got {item:g}")


def _iterate_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_leaves(item)
    else:
        yield value
