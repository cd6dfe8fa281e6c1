"""Make the network that a node `model` describes: a registered one, or a file of weights."""

import inspect
from dataclasses import replace

from torch import nn

from cassi.checks import did_you_mean
from cassi.config import Node
from cassi.models.inference import shipped_settings
from cassi.models.load import load_model, make_network, read_card
from cassi.models.registry import Card, Entry, find_model, plugins_of


def model_node(name: str) -> Node:
    """Return the node of a registered network, with the defaults of its settings."""
    entry = find_model(name)
    settings: Node = _read_defaults(entry)
    if entry.has_weights:
        # The noise level that a data set states for the solver holds for the network too.
        return {"name": name} | settings | {"noise": "${oc.select:solver.noise,auto}"}
    return {"name": name, "weights": None, "ema": None} | settings


def _read_defaults(entry: Entry) -> Node:
    parameters = inspect.signature(entry.make).parameters.values()
    no_default = inspect.Parameter.empty
    settings = {
        parameter.name: "???" if parameter.default is no_default else parameter.default
        for parameter in parameters
        if parameter.name != "bands"
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return settings | dict(entry.settings)


def build_network(node: Node, bands: int) -> tuple[nn.Module, Card]:
    """Make the network of a `model` node.

    Args:
        node: either `path`, a file that a training exported; or the `name` of a registered network,
            its `weights` (a file, null or `random`) and its settings.
        bands: number of bands of the camera, C.

    Raises:
        ValueError: a setting is unknown or has no value, or the file is for another number of
            bands.
    """
    if missing := [key for key, value in node.items() if value == "???"]:
        raise ValueError(f"config: model.{missing[0]} has no value; give it one")
    # A network may hash its settings, so lists of a config become tuples.
    settings: Node = {
        key: tuple(value) if isinstance(value, list) else value for key, value in node.items()
    }
    path = settings.pop("path", None)
    if path is not None:
        card = read_card(path)
        if card.bands != bands and not find_model(card.name).any_bands:
            raise ValueError(
                f"model {path}: made for {card.bands} bands, but the camera has {bands}"
            )
        network, card = load_model(path)
        return network, card if card.bands == bands else _change_bands(card, bands)
    name, weights = settings.pop("name"), settings.pop("weights", None)
    ema = settings.pop("ema", None)
    allowed_settings = _read_defaults(find_model(name))
    if unknown := sorted(settings.keys() - allowed_settings):
        hint = (
            did_you_mean(unknown[0], allowed_settings, place="model.")
            or f"; there is {', '.join(allowed_settings)}"
        )
        raise ValueError(f"no config value {f'model.{unknown[0]}'!r} of {name}{hint}")
    if ema not in (None, True, False):
        raise ValueError(f"model.ema: expected true, false or null, got {ema!r}")
    weight_file = None if weights in (None, "random") else weights
    network = make_network(name, bands, weight_file, ema, **settings)
    if (shipped_network := shipped_settings(network)) is not None:
        return network, _change_bands(shipped_network.card, bands)
    return network, Card(name=name, bands=bands, settings=settings, plugins=plugins_of(name))


def _change_bands(card: Card, bands: int) -> Card:
    # A network for any number of bands was trained with other wavelengths than the camera's.
    return replace(card, bands=bands, wavelengths=None)


def check_model(node: Node) -> Card | None:
    """Check a `model` node before the files of a scene are read.

    Returns:
        The card of an exported network; None for a network by name.

    Raises:
        ValueError: a network by name has no weights.
    """
    if "path" in node:
        return read_card(node["path"])
    if not find_model(node["name"]).has_weights and node["weights"] is None:
        raise ValueError(
            f"model.weights: expected a file, got none: an untrained {node['name']} recovers "
            "nothing; give model.weights=FILE, or model=FILE.safetensors, or model.weights=random "
            "to time it"
        )
    return None
