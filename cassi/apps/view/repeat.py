"""The config that repeats a reconstruction from the command line."""

from collections.abc import Mapping
from pathlib import Path

from cassi.apps.arguments import config_groups, spell
from cassi.apps.reconstructors import compose_settings, settings_of_file
from cassi.apps.settings import Reconstruct, to_dict, to_yaml

NAME = "repeat"
_SYSTEMS = {"SDCassi": "sd_cassi", "DDCassi": "dd_cassi"}
_SYSTEMS |= {"BlurredCassi": "blurred", "TiltedCassi": "tilted", "WarpedCassi": "warped"}
_HEADER = """\
# Written by cassi-view. The same cube again, to the last bit:
#     cassi-reconstruct --config-dir DIR --config-name {name} hydra.run.dir=OTHER
# where DIR is the folder of this file.
"""


def write_config(folder: Path, settings: Reconstruct, options: list[str]) -> None:
    """Write the config of settings as `repeat.yaml`, and check it by reading it again.

    The config chooses the groups of the options, and has all values that differ from those of the
    groups. The values of a camera file are written out.

    Raises:
        OSError: the file cannot be written.
        ValueError: the config would give other settings.
    """
    chosen = choices(options)
    kind = _SYSTEMS.get(str(settings.system["_target_"]).rpartition(".")[2])
    if kind is not None:
        chosen = {"system": kind} | chosen
    base = to_dict(compose_settings([f"{group}={name}" for group, name in chosen.items()]))
    wanted = to_dict(settings) | {"camera": None}
    lines = ["defaults:", "  - reconstruct"]
    lines += [f"  - override /{group}: {name}" for group, name in chosen.items()]
    values = changed(base, wanted)
    text = _HEADER.format(name=NAME) + "\n".join([*lines, "  - _self_", ""])
    path = folder / f"{NAME}.yaml"
    path.write_text(text + (to_yaml(values) if values else ""), encoding="utf-8")
    if _said(to_dict(settings_of_file(path))) != _said(wanted):
        raise ValueError("these settings cannot be written as a config; keep the command line")


def choices(options: list[str]) -> dict[str, str]:
    """Return the config of each group that the options choose, as in a defaults list."""
    groups, found = config_groups(), {}
    for option in spell(options):
        key, equals, value = option.partition("=")
        name, at, package = key.partition("@")
        if equals and name in groups and "." not in name:
            found[f"{name}{at}{package}"] = value
    return found


def changed(base: Mapping[str, object], wanted: Mapping[str, object]) -> dict[str, object]:
    """Return the nested values that turn `base` into `wanted` when merged into it."""
    found: dict[str, object] = {}
    for key, value in wanted.items():
        there = base.get(key)
        if key in base and there == value and type(there) is type(value):
            continue
        if isinstance(value, dict) and isinstance(there, dict):
            value = changed(there, value)
        found[key] = value
    return found


def _said(values: Mapping[str, object]) -> dict[str, object]:
    """Return settings without paths of data sets and without empty values."""
    return {
        key: _said(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and key != "paths"
    }
