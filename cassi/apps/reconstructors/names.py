"""What a name means: a method, a network, a file of weights."""

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

KEYS = ("method", "model", "name", "overrides", "weights")
"""Of an item of `reconstructors`."""


def understand(item: Any, place: str = "reconstructors") -> Node:
    """Return the mapping that an item of `reconstructors` stands for, with a name."""
    if isinstance(item, str):
        networks, methods = list_models(), list_methods()
        if item.endswith(FILE_SUFFIX) or item in networks:
            return {"name": _short(item), "model": item}
        if item not in methods:
            hint = did_you_mean(item, [*methods, *networks]) or f"; there is {', '.join(methods)}"
            raise ValueError(f"{place}: no method, network or {FILE_SUFFIX} file {item!r}{hint}")
        return {"name": item, "method": item}
    unknown = sorted(set(map(str, item)) - set(KEYS)) if isinstance(item, dict) else ()
    if unknown:
        near = did_you_mean(unknown[0], KEYS) or f"; there is {', '.join(KEYS)}"
        raise ValueError(f"reconstructors: no key {unknown[0]!r}{near}")
    if not isinstance(item, dict) or ("method" in item) == ("model" in item):
        raise ValueError(
            f"reconstructors: expected a name, or a mapping with method or model, got {item!r}"
        )
    what = item.get("method", item.get("model"))
    return {**item, "name": str(item.get("name") or _short(str(what)))}


def settings_named(item: Any) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for, outside of any command.

    Each is composed once: that takes as long as half a reconstruction. Where Hydra is set up, its
    folders decide what a name means.
    """
    if GlobalHydra.instance().is_initialized() or not isinstance(item, str | dict):
        return settings_of(understand(item))
    return _settings_once(json.dumps(item, default=str))


@lru_cache
def _settings_once(item: str) -> Reconstruct:
    return settings_of(understand(json.loads(item)))


def settings_of(spec: Node, more: Iterable[str] = (), data_dir: str | None = None) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for.

    `more` are options that a data set has for solvers; `data_dir` is that of the command.
    """
    given = spec.get("overrides") or []
    # A mapping says the same, and needs no quotes on the command line.
    pairs = [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else given
    overrides = list(map(str, pairs))
    if "model" not in spec:
        if "weights" in spec:
            raise ValueError("weights: expected with model only; a method takes overrides")
        name = spec["method"]
        if name in list_models():
            raise ValueError(f"{name} is a network: write {{model: {name}, weights: FILE}}")
        chosen: Reconstruct = compose_settings([f"method={name}", *more, *overrides], data_dir)
        return chosen
    known = spec["model"] in list_models() or str(spec["model"]).endswith(FILE_SUFFIX)
    if not known and spec["model"] in list_methods():
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


def _short(item: str) -> str:
    path = Path(item)
    if path.suffix != FILE_SUFFIX:
        return item
    # A training calls every file model.safetensors, and its folder tells which.
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem
