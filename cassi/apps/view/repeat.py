"""The config that repeats a reconstruction from the command line."""

from collections.abc import Mapping
from pathlib import Path

from cassi.apps.arguments import config_groups, spell
from cassi.apps.reconstructors import compose_settings, settings_of_file
from cassi.apps.settings import Reconstruct, to_dict, to_yaml

CONFIG_NAME = "repeat"
_SYSTEM_GROUPS = {"SDCassi": "sd_cassi", "DDCassi": "dd_cassi"}
_SYSTEM_GROUPS |= {"BlurredCassi": "blurred", "TiltedCassi": "tilted", "WarpedCassi": "warped"}
_CONFIG_HEADER = """\
# Written by cassi-view. This command makes the same cube again, to the last bit:
#     cassi-reconstruct --config-dir DIR --config-name {name} hydra.run.dir=OTHER
# where DIR is the folder of this file.
"""


def write_config(folder: Path, settings: Reconstruct, options: list[str]) -> None:
    """Write settings as the config `repeat.yaml`, and check it by reading it again.

    The config chooses the same groups as the options, and sets every value that differs from the
    values of these groups. The values of a camera file become part of the config.

    Raises:
        OSError: the file cannot be written.
        ValueError: the config would give other settings.
    """
    group_choices = find_group_choices(options)
    system_group = _SYSTEM_GROUPS.get(str(settings.system["_target_"]).rpartition(".")[2])
    if system_group is not None:
        group_choices = {"system": system_group} | group_choices
    group_settings = to_dict(
        compose_settings([f"{group}={name}" for group, name in group_choices.items()])
    )
    all_settings = to_dict(settings) | {"camera": None}
    lines = ["defaults:", "  - reconstruct"]
    lines += [f"  - override /{group}: {name}" for group, name in group_choices.items()]
    values = find_differences(group_settings, all_settings)
    text = _CONFIG_HEADER.format(name=CONFIG_NAME) + "\n".join([*lines, "  - _self_", ""])
    path = folder / f"{CONFIG_NAME}.yaml"
    path.write_text(text + (to_yaml(values) if values else ""), encoding="utf-8")
    # A setting that the config could not express would give another cube without a warning.
    if _drop_local_values(to_dict(settings_of_file(path))) != _drop_local_values(all_settings):
        raise ValueError("these settings cannot be written as a config; keep the command line")


def find_group_choices(options: list[str]) -> dict[str, str]:
    """Return the config that the options choose for each group, in the form of a defaults list.

    Options of single values are left out: `solver=gap` chooses a group, `seed=1` does not.
    """
    groups, group_choices = config_groups(), {}
    for option in spell(options):
        # A group has the form GROUP=NAME, or GROUP@PACKAGE=NAME for another place in the config.
        key, equals, value = option.partition("=")
        name, at, package = key.partition("@")
        if equals and name in groups and "." not in name:
            group_choices[f"{name}{at}{package}"] = value
    return group_choices


def find_differences(base: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    """Return the nested values that turn `base` into `target` when merged into it."""
    difference: dict[str, object] = {}
    for key, value in target.items():
        base_value = base.get(key)
        if key in base and base_value == value and type(base_value) is type(value):
            continue
        if isinstance(value, dict) and isinstance(base_value, dict):
            value = find_differences(base_value, value)
        difference[key] = value
    return difference


def _drop_local_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return settings without paths of data sets and without empty values."""
    # The paths differ between machines, and null means the same as a missing value.
    return {
        key: _drop_local_values(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and key != "paths"
    }
