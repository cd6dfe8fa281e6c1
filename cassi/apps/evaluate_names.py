"""What the names of reconstructors in a config stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from cassi.apps.networks import FILE_SUFFIX
from cassi.models.registry import list_models

KEYS = {"name", "method", "model", "weights", "overrides"}


def list_experiments() -> list[str]:
    """Return the experiments that are methods: they name no scene, no camera and no training."""
    with config_search():
        loader = GlobalHydra.instance().config_loader()
        names = [n for n in loader.get_group_options("experiment") if not n.startswith("_")]
        return [n for n in names if not n.startswith("train_") and not _names_a_scene_or_camera(n)]


def understand(item: Any) -> dict[str, Any]:
    """Return the mapping that an item of `reconstructors` stands for, with a name.

    Raises:
        ValueError: there is nothing of that name, or the mapping has other keys than `KEYS`.
    """
    if isinstance(item, str):
        networks, methods = list_models(), list_experiments()
        if item.endswith(FILE_SUFFIX) or item in networks:
            return {"name": _short(item), "model": item}
        if item not in methods:
            near = difflib.get_close_matches(item, [*methods, *networks], n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there is {_some(methods)}"
            raise ValueError(
                f"reconstructors: no method, network or {FILE_SUFFIX} file {item!r}; {hint}"
            )
        return {"name": item, "method": item}
    if not isinstance(item, dict) or ("method" in item) == ("model" in item):
        raise ValueError(
            f"reconstructors: expected a name, or a mapping with method or model, got {item!r}"
        )
    if unknown := sorted(set(map(str, item)) - KEYS):
        raise ValueError(f"reconstructors: no key {unknown[0]!r}; there is {_some(sorted(KEYS))}")
    what = item.get("method", item.get("model"))
    name = item.get("name") or ("+".join(what) if isinstance(what, list) else _short(str(what)))
    return {**item, "name": str(name)}


def config_search() -> Any:
    """Return a context in which configs are found and composed."""
    # Inside a command Hydra is set up, with the config folders of the user; elsewhere it is not.
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return initialize_config_module("cassi.conf", version_base="1.3")


def _names_a_scene_or_camera(name: str) -> bool:
    loaded = GlobalHydra.instance().config_loader().get_sources()
    for source in loaded:
        if source.available() and source.is_config(f"experiment/{name}"):
            return bool({"scene", "camera"} & set(source.load_config(f"experiment/{name}").config))
    return False


def _short(item: str) -> str:
    path = Path(item)
    if path.suffix != FILE_SUFFIX:
        return item
    # A training calls every file model.safetensors, and its folder tells which.
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem


def _some(names: Iterable[str]) -> str:
    return ", ".join(names)
