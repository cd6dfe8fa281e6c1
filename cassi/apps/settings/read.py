"""Turn composed configs into settings, and settings into dicts and files."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, fields, is_dataclass, make_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
)

from cassi.apps.camera.file import with_camera
from cassi.apps.settings.unknown import unknown_key
from cassi.config import verbatim

T = TypeVar("T")


def read_settings(config: DictConfig, kind: Callable[..., T], options: Iterable[str] = ()) -> T:
    """Turn a composed config into settings of a class.

    Args:
        config: the config, composed by Hydra.
        kind: one of the classes in `commands`.
        options: options of the command line, which win over the file of a camera.

    Raises:
        ValueError: a key is unknown, a value is missing, or values do not fit each other.
    """
    if absent := {"seed", "paths"} - set(map(str, config)):
        raise ValueError(
            f"no config value {min(absent)!r}; a config of your own begins with "
            f"defaults: [{kind.__name__.lower()}, _self_]; give a camera's file by camera=FILE"
        )
    # Earlier versions had this value. OmegaConf's own message would not name the new setting.
    if config.get("calibrate") == "auto":
        raise ValueError("calibrate: expected true or false, got auto; auto is align=true now")
    config = with_camera(config, kind.__name__.lower(), options)
    _check_denoiser(config)
    # Checked before the merge, in which a default of the class would replace a missing value.
    _check_missing(kind, config)
    try:
        merged_config = OmegaConf.merge(_make_schema_config(kind), config)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise ValueError(unknown_key(error)) from error
    _check_missing(kind, merged_config)
    values: Any = OmegaConf.to_container(merged_config, resolve=True, throw_on_missing=False)
    # An option of the group `system` may have a mask. It is used if the user sets no other mask.
    if "mask" in (values.get("system") or {}):
        preset_mask = values["system"].pop("mask")
        values["mask"] = preset_mask if values.get("mask") is None else values["mask"]
    settings: T = _fill(kind, values)
    return settings


def to_dict(settings: Any) -> dict[str, Any]:
    """Return settings as dicts, lists and scalars."""
    return asdict(settings)


def to_yaml(value: Mapping[str, Any]) -> str:
    """Return the text of a config file that gives exactly these dicts, lists and scalars."""
    return OmegaConf.to_yaml(OmegaConf.create(verbatim(dict(value))))


def influence(settings: Any, on: str = "files") -> dict[str, Any]:
    """Return the settings that results depend on, as dicts, lists and scalars.

    Args:
        settings: settings of a command, or a part of them.
        on: "files" for the settings that any result depends on, "cube" for those of the cube alone.
    """
    values = {}
    for entry in fields(settings):
        changes = entry.metadata.get("changes", "cube")
        if changes == "cube" or (changes == "files" and on == "files"):
            value = getattr(settings, entry.name)
            values[entry.name] = influence(value, on) if is_dataclass(value) else value
    return values


@functools.cache
def _read_hints(kind: Any) -> dict[str, Any]:
    # The module of settings does not import this class, because torch would come with it.
    from cassi.data.synthetic.twin import Twin

    return get_type_hints(kind, localns={"Twin": Twin})


@functools.cache
def _make_schema(kind: Any) -> Any:
    """Return a copy of a class of settings that is not frozen."""
    # OmegaConf checks keys and types by merging a config into a class, which must not be frozen.
    entries = []
    for entry in fields(kind):
        hint = _read_hints(kind)[entry.name]
        if (nested_class := _find_settings_class(hint)) is not None:
            hint = (
                _make_schema(nested_class)
                if hint is nested_class
                else _make_schema(nested_class) | None
            )
        default = {name: getattr(entry, name) for name in ("default", "default_factory")}
        entries.append((entry.name, hint, field(**default)))
    return make_dataclass(kind.__name__, entries, kw_only=True)


@functools.cache
def _make_schema_config(kind: Any) -> Any:
    """Return the config of the schema of a class, which a merge copies and does not change."""
    return OmegaConf.structured(_make_schema(kind))


def _find_settings_class(hint: Any) -> Any:
    """Return the class of settings that a type hint names, alone or beside None."""
    options = get_args(hint) or (hint,)
    return next((option for option in options if is_dataclass(option)), None)


def _check_denoiser(config: DictConfig) -> None:
    """Raise ValueError if the prior uses the denoiser, and a value of the denoiser is missing."""
    is_node = isinstance(config.get("denoiser"), DictConfig)
    missing = sorted(OmegaConf.missing_keys(config.denoiser)) if is_node else []
    if missing and "${denoiser}" in OmegaConf.to_yaml(config.get("prior")):
        key = f"denoiser.{missing[0].removeprefix('denoiser.')}"
        raise ValueError(f"config: {key} has no value; give it one, {key}=…")


def _check_missing(kind: Any, config: Any, prefix: str = "") -> None:
    """Raise ValueError for a setting without a value.

    Values inside a node are checked when its object is built.
    """
    for key in map(str, config):
        if key in _read_hints(kind) and OmegaConf.is_missing(config, key):
            if f"{prefix}{key}" == "data.root":
                raise ValueError(
                    "data.root: expected a folder of cubes, got none; give data.root=DIR, or "
                    "data.root=null data.measurements=DIR to evaluate on measurements"
                )
            raise ValueError(f"config: {prefix}{key} has no value; give it one, {prefix}{key}=…")
        nested_class = _find_settings_class(_read_hints(kind).get(key))
        if nested_class is not None and isinstance(config[key], DictConfig):
            _check_missing(nested_class, config[key], f"{prefix}{key}.")


def _fill(kind: Any, values: Any) -> Any:
    arguments = {}
    for name, hint in _read_hints(kind).items():
        value, nested_class = values[name], _find_settings_class(hint)
        arguments[name] = (
            value if nested_class is None or value is None else _fill(nested_class, value)
        )
    return kind(**arguments)
