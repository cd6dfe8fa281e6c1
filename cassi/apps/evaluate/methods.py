"""From `reconstructors` of a config to methods: experiments, registered networks, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from cassi.apps.evaluate_names import config_search, understand
from cassi.apps.networks import build_model, check_model, rewrite_model_path
from cassi.apps.settings import check_denoiser
from cassi.config import build, plain
from cassi.data.manifest import checksum
from cassi.evaluation import Method, NetworkRun, SolverRun
from cassi.models.inference import prepare
from cassi.models.registry import weight_files
from cassi.solvers import Solver


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
        spec = understand(item)
        if spec["name"] in methods:
            raise ValueError(
                f"reconstructors: two are called {spec['name']!r}; write {{name: OTHER, …}}"
            )
        try:
            methods[spec["name"]] = _make(spec, config, more, bands, device)
        except (ValueError, TypeError) as error:
            raise ValueError(f"reconstructors: {spec['name']}: {error}") from error
    return methods


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
        if node.get("weights", "") is None:
            raise ValueError(
                f"expected weights, got none: write {{model: {spec['model']}, weights: FILE}}, or "
                "weights: random, which recovers nothing but takes as long"
            )
        check_model(node)
        torch.manual_seed(config.seed)  # random weights do not depend on what else is made
        network, card = build_model(node, bands)
        identity = {"model": node, "bands": bands, "card": card.name}
        ready = prepare(network, composed.refine, str(composed.precision)).to(device)
        identity |= {"refined": ready.refined, "precision": ready.precision}
        return Method(spec["name"], NetworkRun(ready), _identity(identity), network)
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
    with config_search():
        composed = compose("reconstruct", overrides=overrides)
    OmegaConf.update(composed, "paths.data_dir", config.paths.data_dir)
    return composed


def _identity(node: Any) -> Any:
    """A config as plain values, with a checksum for each file that it names."""
    if files := weight_files(node):  # other weights under the same name are another method
        return [f"sha256:{checksum(file)}" for file in files]
    if isinstance(node, DictConfig):
        return _identity(plain(node))
    if isinstance(node, dict):
        return {str(key): _identity(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_identity(value) for value in node]
    if isinstance(node, str) and "." in node and Path(node).expanduser().is_file():
        return f"sha256:{checksum(Path(node).expanduser())}"
    return node
