"""Networks in configs: every registered one is an option of the group `model`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from torch import nn

from cassi.config import plain
from cassi.models.inference import Shipped
from cassi.models.load import Card, load_model, make_network, read_card
from cassi.models.registry import Entry, find_model, list_models

FILE_SUFFIX = ".safetensors"


def store_models() -> None:
    """Enter every registered network and `file` into Hydra's group `model`."""
    store = ConfigStore.instance()
    for name in list_models():
        store.store(group="model", name=name, node=model_node(name), provider="cassi.models")
    store.store(group="model", name="file", node={"path": "???"}, provider="cassi.models")


def model_node(name: str) -> dict[str, Any]:
    """Return the config of a registered network: its name, weights, which of them, and settings."""
    entry = find_model(name)
    settings = _settings(entry)
    if not entry.shipped:
        return {"name": name, "weights": None, "ema": None} | settings
    # Data steps as damped as the solver's would be: an experiment knows its camera.
    noise = {"noise": "${oc.select:solver.noise,auto}"} if "noise" in settings else {}
    return {"name": name} | settings | noise


def _settings(entry: Entry) -> dict[str, Any]:
    parameters = list(inspect.signature(entry.make).parameters.values())
    missing = inspect.Parameter.empty
    settings = {
        p.name: "???" if p.default is missing else p.default
        for p in parameters
        if p.name != "bands" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return {**settings, **entry.settings}


def build_model(node: DictConfig, bands: int) -> tuple[nn.Module, Card]:
    """Make the network of a `model` node.

    Args:
        node: with the name of a network, a file of weights or null or `random`, and settings; or
            with the path of a file that a training exported.
        bands: number C of bands of the camera.

    Returns:
        The network and what it is.

    Raises:
        OSError: a file is missing.
        ValueError: name, settings, weights and bands do not fit.
    """
    missing = sorted(OmegaConf.missing_keys(node))
    if missing:
        raise ValueError(f"config: model.{missing[0]} has no value; give it one")
    settings = plain(node)
    path = settings.pop("path", None)
    if path is not None:
        card = read_card(path)
        if card.bands != bands and not find_model(card.name).any_bands:
            raise ValueError(
                f"model {path}: made for {card.bands} bands, but the camera has {bands}"
            )
        network, card = load_model(path)
        return network, card if card.bands == bands else _for_any(card, bands)
    name, weights = settings.pop("name"), settings.pop("weights", None)
    ema = settings.pop("ema", None)
    if ema not in (None, True, False):
        raise ValueError(f"model.ema: expected true, false or null, got {ema!r}")
    # Lists of a config are tuples in Python; a network may unpack or hash them.
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    given = None if weights in (None, "random") else weights
    network = make_network(name, bands, given, ema, **settings)
    shipped: Shipped | None = getattr(network, "shipped", None)
    if shipped is not None:
        return network, _for_any(shipped.card, bands)
    return network, Card(name=name, bands=bands, settings=settings)


def _for_any(card: Card, bands: int) -> Card:
    """What a network for any number of bands was trained with says nothing about a camera's."""
    return replace(card, bands=bands, wavelengths=None)


def check_model(node: DictConfig) -> Card | None:
    """Look at a `model` node before anything is read that it is needed for.

    Returns:
        What the file of an exported network says about itself; None for a network by name.

    Raises:
        OSError: the file is missing.
        ValueError: it is no such file; or a network is named and no weights are.
    """
    if "path" in node:
        return read_card(node.path)
    if not find_model(node.name).shipped and node.weights is None:
        raise ValueError(
            f"model.weights: expected a file, got none: an untrained {node.name} recovers nothing; "
            "give model.weights=FILE, or model=FILE.safetensors, or model.weights=random to time it"
        )
    return None


def rewrite_model_path(arguments: list[str]) -> list[str]:
    """Turn `model=FILE.safetensors` into options of the group: `model=file model.path=FILE`."""
    result: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "model" and value.strip("'\"").endswith(FILE_SUFFIX):
            path = value.strip("'\"").replace("\\", "\\\\").replace("'", "\\'")
            result += ["model=file", f"model.path='{path}'"]
        else:
            result.append(argument)
    return result
