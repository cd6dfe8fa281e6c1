"""Find what a name of a reconstructor stands for: a method, a network or a file of weights."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra

from cassi.apps.arguments import FILE_SUFFIX
from cassi.apps.reconstructors.compose import compose_settings, list_methods
from cassi.apps.settings import Reconstruct
from cassi.checks import did_you_mean
from cassi.config import Node
from cassi.models.registry import list_models

ITEM_KEYS = ("method", "model", "name", "overrides", "weights")
"""Keys that an item of `reconstructors` may have."""


def parse_item(item: Any, setting: str = "reconstructors") -> Node:
    """Return the mapping that an item of `reconstructors` stands for, with a name.

    Raises:
        ValueError: the item is no known name, nor a mapping with method or model.
    """
    if isinstance(item, str):
        networks, methods = list_models(), list_methods()
        if item.endswith(FILE_SUFFIX) or item in networks:
            return {"name": _shorten_name(item), "model": item}
        if item not in methods:
            hint = did_you_mean(item, [*methods, *networks]) or f"; there is {', '.join(methods)}"
            raise ValueError(f"{setting}: no method, network or {FILE_SUFFIX} file {item!r}{hint}")
        return {"name": item, "method": item}
    unknown = sorted(set(map(str, item)) - set(ITEM_KEYS)) if isinstance(item, dict) else ()
    if unknown:
        hint = did_you_mean(unknown[0], ITEM_KEYS) or f"; there is {', '.join(ITEM_KEYS)}"
        raise ValueError(f"reconstructors: no key {unknown[0]!r}{hint}")
    if not isinstance(item, dict) or ("method" in item) == ("model" in item):
        raise ValueError(
            f"reconstructors: expected a name, or a mapping with method or model, got {item!r}"
        )
    method_or_model = item.get("method", item.get("model"))
    return {**item, "name": str(item.get("name") or _shorten_name(str(method_or_model)))}


def settings_named(item: Any) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for; for calls from Python."""
    # Hydra takes as long as half a reconstruction to compose settings, so they are cached by name.
    # Inside a command the config folders of the user decide what a name means, and these folders
    # may change, so nothing is cached.
    if GlobalHydra.instance().is_initialized() or not isinstance(item, str | dict):
        return settings_of(parse_item(item))
    return _compose_once(json.dumps(item, default=str))


@lru_cache
def _compose_once(item: str) -> Reconstruct:
    return settings_of(parse_item(json.loads(item)))


def settings_of(
    spec: Node, data_options: Iterable[str] = (), data_dir: str | None = None
) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for.

    Args:
        spec: the mapping that `parse_item` returns.
        data_options: options that a data set has for methods without a network.
        data_dir: `paths.data_dir` of the command.

    Raises:
        ValueError: method and model are mixed up, or a network has no weights.
    """
    overrides = spec.get("overrides") or []
    # A list has options as on the command line. A mapping has them as keys and values.
    if isinstance(overrides, dict):
        overrides = [f"{key}={value}" for key, value in overrides.items()]
    overrides = list(map(str, overrides))
    if "model" not in spec:
        if "weights" in spec:
            raise ValueError("weights: expected with model only; a method takes overrides")
        name = spec["method"]
        if name in list_models():
            raise ValueError(f"{name} is a network: write {{model: {name}, weights: FILE}}")
        method_settings: Reconstruct = compose_settings(
            [f"method={name}", *data_options, *overrides], data_dir
        )
        return method_settings
    is_network_or_file = spec["model"] in list_models() or str(spec["model"]).endswith(FILE_SUFFIX)
    if not is_network_or_file and spec["model"] in list_methods():
        raise ValueError(f"{spec['model']} is a method: write {{method: {spec['model']}}}")
    settings: Reconstruct = compose_settings([f"model={spec['model']}", *overrides], data_dir)
    if "weights" in spec:
        settings = replace(settings, model=settings.model | {"weights": spec["weights"]})
    if settings.model.get("weights", "") is None:
        raise ValueError(
            f"expected weights, got none: write {{model: {spec['model']}, weights: FILE}}, or "
            "weights: random, which recovers nothing but takes as long"
        )
    return settings


def _shorten_name(item: str) -> str:
    path = Path(item)
    if path.suffix != FILE_SUFFIX:
        return item
    # Every training calls its file model.safetensors, so the name of its folder is used.
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem
