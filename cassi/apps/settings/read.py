"""Composed configs to settings, and settings to dicts and files."""

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
    """Turn a composed config into settings.

    `options` of the command line win over the file of a camera.
    """
    if absent := {"seed", "paths"} - set(map(str, config)):
        raise ValueError(
            f"no config value {min(absent)!r}; a config of your own begins with "
            f"defaults: [{kind.__name__.lower()}, _self_]; a camera's file is given by camera=FILE"
        )
    if config.get("calibrate") == "auto":
        raise ValueError("calibrate: expected true or false, got auto; auto is align=true now")
    config = with_camera(config, kind.__name__.lower(), options)
    _check_denoiser(config)
    _check_missing(kind, config)  # where the class has another value, which would win
    try:
        merged = OmegaConf.merge(OmegaConf.structured(_schema(kind)), config)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise ValueError(unknown_key(error)) from error
    _check_missing(kind, merged)
    values: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=False)
    if "mask" in (values.get("system") or {}):  # that of a preset, where none is given
        own = values["system"].pop("mask")
        values["mask"] = own if values.get("mask") is None else values["mask"]
    settings: T = _fill(kind, values)
    return settings


def to_dict(settings: Any) -> dict[str, Any]:
    """Return settings as dicts, lists and scalars."""
    return asdict(settings)


def to_yaml(value: Mapping[str, Any]) -> str:
    """Write dicts, lists and scalars as a config file that gives these very values."""
    return OmegaConf.to_yaml(OmegaConf.create(verbatim(dict(value))))


def influence(settings: Any, on: str = "files") -> dict[str, Any]:
    """Return what results depend on, as dicts, lists and scalars.

    `on` is "files" for all that is written, "cube" for the cube alone.
    """
    kept = {}
    for entry in fields(settings):
        changes = entry.metadata.get("changes", "cube")
        if changes == "cube" or (changes == "files" and on == "files"):
            value = getattr(settings, entry.name)
            kept[entry.name] = influence(value, on) if is_dataclass(value) else value
    return kept


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _schema(kind: Any) -> Any:
    """Return the class as OmegaConf may fill it: one that is frozen cannot be merged into."""
    entries = []
    for entry in fields(kind):
        hint = _hints(kind)[entry.name]
        if (inner := _inner(hint)) is not None:
            hint = _schema(inner) if hint is inner else _schema(inner) | None
        default = {name: getattr(entry, name) for name in ("default", "default_factory")}
        entries.append((entry.name, hint, field(**default)))
    return make_dataclass(kind.__name__, entries, kw_only=True)


def _inner(hint: Any) -> Any:
    """Return the class of settings that a type hint names, alone or beside None."""
    options = get_args(hint) or (hint,)
    return next((option for option in options if is_dataclass(option)), None)


def _check_denoiser(config: DictConfig) -> None:
    """Raise where the prior takes the config's denoiser, and that is not complete."""
    known = isinstance(config.get("denoiser"), DictConfig)
    missing = sorted(OmegaConf.missing_keys(config.denoiser)) if known else []
    if missing and "${denoiser}" in OmegaConf.to_yaml(config.get("prior")):
        key = f"denoiser.{missing[0].removeprefix('denoiser.')}"
        raise ValueError(f"config: {key} has no value; give it one, {key}=…")


def _check_missing(kind: Any, config: Any, place: str = "") -> None:
    """Raise for a setting that has no value; nodes may have such values inside."""
    for key in map(str, config):
        if key in _hints(kind) and OmegaConf.is_missing(config, key):
            if f"{place}{key}" == "data.root":
                raise ValueError(
                    "data.root: expected a folder of cubes, got none; give data.root=DIR, or "
                    "data.root=null data.measurements=DIR to evaluate on measurements"
                )
            raise ValueError(f"config: {place}{key} has no value; give it one, {place}{key}=…")
        inner = _inner(_hints(kind).get(key))
        if inner is not None and isinstance(config[key], DictConfig):
            _check_missing(inner, config[key], f"{place}{key}.")


def _fill(kind: Any, values: Any) -> Any:
    made = {}
    for name, hint in _hints(kind).items():
        value, inner = values[name], _inner(hint)
        made[name] = value if inner is None or value is None else _fill(inner, value)
    return kind(**made)
