"""From `reconstructors` of a config to methods: experiments, registered networks, files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from cassi.apps.networks import FILE_SUFFIX, build_model, check_model, rewrite_model_path
from cassi.apps.settings import check_denoiser
from cassi.config import build, plain
from cassi.data.manifest import checksum
from cassi.evaluation import Method, NetworkRun, SolverRun
from cassi.models.registry import list_models
from cassi.solvers import Solver

KEYS = {"name", "method", "model", "weights", "overrides"}


def make_methods(config: DictConfig, bands: int, device: torch.device) -> dict[str, Method]:
    """Make every reconstructor of a config.

    Each is a name, or a file, or a mapping: `method` (an experiment, or several) or `model` (a
    registered network, or a file), `weights`, `overrides` (a list as for cassi-reconstruct, or a
    mapping) and the `name` in the tables.

    Args:
        config: of cassi-evaluate.
        bands: C of the cameras.
        device: where networks go.

    Raises:
        OSError: a file is missing.
        ValueError: a name is unknown or taken, or the parts do not fit.
    """
    listed = plain(config.reconstructors)
    if isinstance(listed, str | dict):
        listed = [listed]
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"reconstructors: expected a list of names, got {listed!r}")
    more = plain(config.data.get("overrides")) or []
    methods: dict[str, Method] = {}
    for item in listed:
        spec = _understood(item)
        if spec["name"] in methods:
            raise ValueError(
                f"reconstructors: two are called {spec['name']!r}; write {{name: OTHER, …}}"
            )
        try:
            methods[spec["name"]] = _make(spec, config, more, bands, device)
        except (ValueError, TypeError) as error:
            raise ValueError(f"reconstructors: {spec['name']}: {error}") from error
    return methods


def list_experiments() -> list[str]:
    """Return the experiments that are methods: those that neither name a scene nor train."""
    with _configs():
        loader = GlobalHydra.instance().config_loader()
        names = [n for n in loader.get_group_options("experiment") if not n.startswith("_")]
        return [n for n in names if not n.startswith("train_") and not _names_a_scene(n)]


def _understood(item: Any) -> dict[str, Any]:
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


def _make(
    spec: dict[str, Any], config: DictConfig, more: list[str], bands: int, device: torch.device
) -> Method:
    given = spec.get("overrides") or []
    # A mapping says the same, and needs no quotes on the command line.
    pairs = [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else given
    overrides = list(map(str, pairs))
    if "model" in spec:
        composed = _compose(rewrite_model_path([f"model={spec['model']}", *overrides]), config)
        node = composed.model
        if "weights" in spec:
            OmegaConf.update(node, "weights", spec["weights"])
        check_model(node)
        torch.manual_seed(config.seed)  # random weights do not depend on what else is made
        network, card = build_model(node, bands)
        identity = {"model": node, "bands": bands, "card": card.name}
        run = NetworkRun(network.to(device))
        return Method(spec["name"], run, _identity(identity), network)
    if "weights" in spec:
        raise ValueError("weights: expected with model only; a method takes overrides")
    wanted = spec["method"] if isinstance(spec["method"], list) else [spec["method"]]
    composed = _compose([f"experiment=[{','.join(wanted)}]", *more, *overrides], config)
    check_denoiser(composed)
    solver = build(composed.solver, prior=build(composed.prior))
    if not isinstance(solver, Solver):
        raise ValueError(f"expected cassi.solvers.Solver, got {type(solver).__name__}")
    identity = {"solver": composed.solver, "prior": composed.prior}
    return Method(spec["name"], SolverRun(solver), _identity(identity), None, solver.iterations)


def _compose(overrides: list[str], config: DictConfig) -> DictConfig:
    with _configs():
        composed = compose("reconstruct", overrides=overrides)
    OmegaConf.update(composed, "paths.data_dir", config.paths.data_dir)
    return composed


def _configs() -> Any:
    # Inside a command Hydra is set up, with the config folders of the user; elsewhere it is not.
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return initialize_config_module("cassi.conf", version_base="1.3")


def _names_a_scene(name: str) -> bool:
    loaded = GlobalHydra.instance().config_loader().get_sources()
    for source in loaded:
        if source.available() and source.is_config(f"experiment/{name}"):
            return "scene" in source.load_config(f"experiment/{name}").config
    return False


def _identity(node: Any) -> Any:
    """A config as plain values, with a checksum for each file that it names."""
    if isinstance(node, DictConfig):
        return _identity(plain(node))
    if isinstance(node, dict):
        return {str(key): _identity(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_identity(value) for value in node]
    if isinstance(node, str) and "." in node and Path(node).expanduser().is_file():
        return f"sha256:{checksum(Path(node).expanduser())}"
    return node


def _short(item: str) -> str:
    path = Path(item)
    if path.suffix != FILE_SUFFIX:
        return item
    # A training calls every file model.safetensors, and its folder tells which.
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem


def _some(names: Iterable[str]) -> str:
    return ", ".join(names)
