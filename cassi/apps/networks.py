"""Networks in configs: every registered one is an option of the group `model`."""

from __future__ import annotations

import inspect
import time
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from cassi.config import plain
from cassi.models.registry import Entry, create_model, find_model, list_models
from cassi.models.saved import Card, load_model, read_card
from cassi.solvers import Iteration, Solution
from cassi.solvers.loop import Callback
from cassi.systems import System

FILE_SUFFIX = ".safetensors"


def store_models() -> None:
    """Enter every registered network, and `file`, into Hydra's group `model`."""
    store = ConfigStore.instance()
    for name in list_models():
        store.store(group="model", name=name, node=model_node(name), provider="cassi.models")
    store.store(group="model", name="file", node={"path": "???"}, provider="cassi.models")


def model_node(name: str) -> dict[str, Any]:
    """Return the config of a registered network: its name, weights, which of them, and settings."""
    return {"name": name, "weights": None, "ema": None} | _settings(find_model(name))


def _settings(entry: Entry) -> dict[str, Any]:
    parameters = list(inspect.signature(entry.cls).parameters.values())
    missing = inspect.Parameter.empty
    settings = {
        p.name: "???" if p.default is missing else p.default
        for p in parameters
        if p.name != "bands" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return settings | entry.settings


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
        made_for = read_card(path).bands
        if made_for != bands:
            raise ValueError(f"model {path}: made for {made_for} bands, but the camera has {bands}")
        return load_model(path)
    name, weights, ema = settings.pop("name"), settings.pop("weights"), settings.pop("ema", None)
    if ema not in (None, True, False):
        raise ValueError(f"model.ema: expected true, false or null, got {ema!r}")
    # Lists of a config are tuples in Python; a network may unpack or hash them.
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    given = None if weights in (None, "random") else weights
    network = create_model(name, bands=bands, weights=given, ema=ema, **settings)
    return network, Card(name=name, bands=bands, settings=settings)


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
    if node.weights is None:
        raise ValueError(
            f"model.weights: expected a file, got none: an untrained {node.name} recovers nothing; "
            "give model.weights=FILE, or model=FILE.safetensors, or model.weights=random to time it"
        )
    return None


class NetworkSolver:
    """A network in the place of a solver, with one iteration.

    Args:
        network: `net(y, system) -> x`.
    """

    iterations = 1

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval()

    @torch.no_grad()
    def run(
        self, y: Tensor, system: System, *, callback: Callback, objective: bool = False
    ) -> Solution:
        """Reconstruct `(B, C, H, W)` from y `(B, 1, H', W')`; see `cassi.solvers.Solver.run`.

        Raises:
            ValueError: the camera does not fit the network, or the cube is not finite.
        """
        start = time.perf_counter()
        x = self.network(y, system).float()
        # Reading a number also waits for a GPU to be done.
        if not bool(x.isfinite().all()):
            raise ValueError("the network's cube is not finite; check scale, dark and the mask")
        seconds = time.perf_counter() - start
        residual = float((y - system(x)).norm() / y.norm().clamp_min(torch.finfo(y.dtype).tiny))
        step = Iteration(index=1, residual=residual, change=1.0, seconds=seconds, sigma=0.0)
        callback(step, x)
        return Solution(x, [step], "iterations")


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
