"""Reconstructors by name: solvers of experiments, registered networks, files of weights."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from cassi.apps.arguments import is_training, paper_recipes, quoted, spell
from cassi.apps.errors import describe
from cassi.apps.settings import Reconstruct, influence, read_settings
from cassi.checks import did_you_mean
from cassi.config import build, check_node
from cassi.data.store import fingerprint
from cassi.models.inference import prepare
from cassi.models.load import load_model, make_network, read_card
from cassi.models.registry import (
    Card,
    Entry,
    find_model,
    list_models,
    plugins_of,
    weight_files,
)
from cassi.plugins import node_of, parts, plugin_files
from cassi.precision import resolve
from cassi.solvers import Solution, Solver
from cassi.solvers.base import Reconstructor

FILE_SUFFIX = ".safetensors"
_COMPOSING = threading.RLock()
"""Hydra's search path is the process's: one thread at a time sets it."""
ADAPT = ("experiment=self_supervised",)
"""What `adapt=true` puts a network beside: patches of the scene itself, for a minute."""
KEYS = ("method", "model", "name", "overrides", "weights")
"""Of an item of `reconstructors`."""


class Recipe:
    """What settings describe: a solver, or a network that is made for each number of bands.

    A network beside a method with a start makes its first cube; with `adapt`, that of `ADAPT`.

    Attributes:
        bands: the number that a file of weights was made for, if it says one.

    Raises:
        OSError: a file of weights is missing.
        ValueError: it is no solver, a network without weights, or a network beside another start.
    """

    def __init__(self, settings: Reconstruct, device: torch.device) -> None:
        settings = adapted(settings)
        self.settings, self.device = settings, device
        self.bands: int | None = None
        self._networks: dict[int, tuple[Reconstructor, Card]] = {}
        self._method: Reconstructor | None = None
        if settings.model is not None and (card := check_model(settings.model)) is not None:
            self.bands = None if find_model(card.name).any_bands else card.bands
        if settings.model is None:
            self._method = build_method(settings)
        elif has_start(settings):
            if settings.solver["start"] != "auto":
                raise ValueError(
                    f"solver.start: expected auto beside model=…, whose cube is the first one, got "
                    f"{settings.solver['start']!r}"
                )
            alone = replace(settings, solver=settings.solver | {"start": None})
            network = NamedNetwork(alone, Recipe(alone, torch.device("cpu")))
            self._method = build_method(settings, network=network)

    @property
    def is_network(self) -> bool:
        """Tell whether it is a network."""
        return self._method is None

    def make(self, bands: int) -> tuple[Reconstructor, Card | None]:
        """Return the reconstructor for C bands, and what a network says of itself.

        Raises:
            ValueError: the network is not for so many bands.
        """
        if self._method is not None:
            return self._method, None
        if bands not in self._networks:
            torch.manual_seed(self.settings.seed)  # random weights are those of the seed
            network, card = build_network(self.settings.model, bands)
            ready = prepare(network, self.settings.refine, self.settings.precision)
            self._networks[bands] = ready.to(self.device), card
        return self._networks[bands]


def adapted(settings: Any) -> Any:
    """Return settings with the method that fits a network's cube to the snapshot, if they ask so.

    It is told the noise of theirs; a method with a start of its own stays.
    """
    if not settings.adapt or has_start(settings):
        return replace(settings, adapt=False)
    passes, told = compose_settings(ADAPT), (settings.solver or {}).get("noise", "auto")
    solver = passes.solver | {"noise": told}
    return replace(settings, solver=solver, prior=passes.prior, adapt=False)


def has_start(settings: Any) -> bool:
    """Tell whether the method begins at another's cube: a network's then, where there is one."""
    return settings.solver is not None and settings.solver.get("start") is not None


def build_method(settings: Any, **parts: Reconstructor) -> Reconstructor:
    """Make the method that the nodes `solver` and `prior` describe.

    Args:
        settings: of a command.
        parts: further reconstructors that the method takes, such as `network`.

    Raises:
        ValueError: it is none, or needs a prior.
    """
    node, prior = dict(settings.solver), None
    if settings.prior is not None:
        check_node(settings.prior, "prior", complete=True)
        prior = build(settings.prior)
    elif not node["_target_"].startswith("cassi.methods."):
        raise ValueError("prior: expected one with this solver, such as prior=tv, got null")
    start = node.pop("start", None)
    if start is not None and "network" not in parts:
        made = _build_start(start, node.get("noise", "auto"))
        parts["network" if isinstance(made, NamedNetwork) else "start"] = made
    method: Reconstructor = build(node, prior=prior, **parts)
    if not hasattr(method, "run"):
        raise ValueError(f"solver: expected a reconstructor, got {type(method).__name__}")
    return method


def build_solver(settings: Any) -> Solver:
    """Make the solver that settings describe; ValueError where it is another kind of method."""
    solver = build_method(settings)
    if not isinstance(solver, Solver):
        raise ValueError(
            f"solver: expected one solver, such as solver=auto, got a {type(solver).__name__}"
        )
    return solver


def _build_start(name: Any, noise: Any) -> Reconstructor:
    """Make what a solver starts from: a method or network by its name, told the same noise."""
    if not isinstance(name, str):
        raise ValueError(f"solver.start: expected the name of a method or network, got {name!r}")
    spec = understand(name, "solver.start")
    if noise != "auto":
        shipped = "model" in spec and spec["model"] in list_models(shipped=True)
        told = "solver.noise" if "method" in spec else "model.noise" if shipped else None
        spec = spec if told is None else spec | {"overrides": {told: noise}}
    settings = settings_of(spec)
    recipe = Recipe(settings, torch.device("cpu"))
    return NamedNetwork(settings, recipe) if recipe.is_network else recipe.make(0)[0]


class NamedNetwork:
    """A network as a part of a method, made for a measurement's bands and device."""

    iterations, halo, shares_batch, network = 1, 96, False, None

    def __init__(self, settings: Reconstruct, recipe: Recipe) -> None:
        self.settings, self.recipe = settings, recipe

    def run(self, y: Tensor, system: Any, **more: Any) -> Solution:
        """Reconstruct y; see `cassi.solvers.base.Reconstructor`."""
        if self.recipe.device != y.device:
            self.recipe = Recipe(self.settings, y.device)
        return self.recipe.make(system.cube_shape[0])[0].run(y, system, **more)


def store_parts() -> None:
    """Enter what is registered into Hydra's groups: networks, losses, priors and data sets.

    Raises:
        ValueError: a plugin has a name that a file of the package has.
    """
    store_models()
    store = ConfigStore.instance()
    groups = {"loss": "loss", "prior": "prior", "dataset": "data"}
    for kind, group in groups.items():
        for name in parts(kind):
            if resources.files("cassi.conf").joinpath(group, f"{name}.yaml").is_file():
                raise ValueError(f"register_{kind}: the name {name!r} is taken by {group}={name}")
            node = node_of(kind, name)
            node = _data_node(name, node) if kind == "dataset" else node
            store.store(group=group, name=name, node=node, provider="cassi.plugins")


def _data_node(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a data set of the user's own: the bundled mask, the usual training."""
    nm = parts("dataset")[name].about["wavelengths"]
    node = {
        "defaults": ["_simulated", "_28_bands", "_self_"],
        "name": name,
        "root": None,
        "manifest": None,
        "source": source,
        "workers": 0,
        "simulator": {"masks": {"mask": None}},
        "evaluation": {"split": "test", "mask": None, "crop": None},
    }
    return node if nm is None else node | {"wavelengths": list(nm)}


def store_models() -> None:
    """Enter every registered network, and `file`, into Hydra's group `model`."""
    store = ConfigStore.instance()
    # Hydra copies its sources for each group that --help lists, and so every network's settings.
    vars(store)["__deepcopy__"] = lambda _: store
    stored = store.repo.get("model", {})  # by an earlier command of this process
    for name in (name for name in list_models() if f"{name}.yaml" not in stored):
        store.store(group="model", name=name, node=model_node(name), provider="cassi.models")
    store.store(group="model", name="file", node={"path": "???"}, provider="cassi.models")


def model_node(name: str) -> dict[str, Any]:
    """Return the config of a registered network: its name, weights, which of them, and settings."""
    entry = find_model(name)
    settings: dict[str, Any] = _settings(entry)
    if entry.shipped:
        # As the solver would take it: an experiment knows its camera.
        return {"name": name} | settings | {"noise": "${oc.select:solver.noise,auto}"}
    return {"name": name, "weights": None, "ema": None} | settings


def _settings(entry: Entry) -> dict[str, Any]:
    parameters = inspect.signature(entry.make).parameters.values()
    missing = inspect.Parameter.empty
    settings = {
        p.name: "???" if p.default is missing else p.default
        for p in parameters
        if p.name != "bands" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return settings | dict(entry.settings)


def build_network(node: dict[str, Any], bands: int) -> tuple[nn.Module, Card]:
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
    if missing := [key for key, value in node.items() if value == "???"]:
        raise ValueError(f"config: model.{missing[0]} has no value; give it one")
    # Lists of a config are tuples in Python; a network may unpack or hash them.
    settings: dict[str, Any] = {
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
        return network, card if card.bands == bands else _for_any(card, bands)
    name, weights = settings.pop("name"), settings.pop("weights", None)
    ema = settings.pop("ema", None)
    known = _settings(find_model(name))
    if unknown := sorted(settings.keys() - known):
        near = did_you_mean(unknown[0], known, place="model.") or f"; there is {_some(known)}"
        raise ValueError(f"no config value {f'model.{unknown[0]}'!r} of {name}{near}")
    if ema not in (None, True, False):
        raise ValueError(f"model.ema: expected true, false or null, got {ema!r}")
    given = None if weights in (None, "random") else weights
    network = make_network(name, bands, given, ema, **settings)
    shipped = getattr(network, "shipped", None)
    if shipped is not None:
        return network, _for_any(shipped.card, bands)
    return network, Card(name=name, bands=bands, settings=settings, plugins=plugins_of(name))


def _for_any(card: Card, bands: int) -> Card:
    """What a network for any number of bands was trained with says nothing about a camera's."""
    return replace(card, bands=bands, wavelengths=None)


def check_model(node: dict[str, Any]) -> Card | None:
    """Look at a `model` node before anything is read that it is needed for.

    Returns:
        What the file of an exported network says about itself; None for a network by name.

    Raises:
        OSError: the file is missing.
        ValueError: it is no such file; or a network is named and no weights are.
    """
    if "path" in node:
        return read_card(node["path"])
    if not find_model(node["name"]).shipped and node["weights"] is None:
        raise ValueError(
            f"model.weights: expected a file, got none: an untrained {node['name']} recovers "
            "nothing; give model.weights=FILE, or model=FILE.safetensors, or model.weights=random "
            "to time it"
        )
    return None


def rewrite_model_path(arguments: list[str]) -> list[str]:
    """Turn `model=FILE.safetensors` into options of the group: `model=file model.path=FILE`.

    `guide=FILE` becomes `guide.file=FILE` in the same way.
    """
    result: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "model" and value.strip("'\"").endswith(FILE_SUFFIX):
            path = value.strip("'\"")
            result += ["model=file", f"model.path={quoted(path)}"]
        elif key == "guide" and not value.startswith("{"):
            result.append(f"guide.file={value}")
        else:
            result.append(argument)
    return result


def compose_settings(
    options: Iterable[str] = (), data_dir: str | None = None, kind: type = Reconstruct
) -> Any:
    """Return the settings of a command with these options.

    Args:
        options: as on the command line.
        data_dir: `paths.data_dir` of the command that asks.
        kind: class of the settings.

    Raises:
        ValueError: an option names nothing, or has a value that is not fit.
    """
    try:
        with config_search():
            name, options = kind.__name__.lower(), rewrite_model_path(spell(options))
            composed = compose(name, overrides=options)
            if data_dir is not None:
                composed.paths.data_dir = data_dir
            return read_settings(composed, kind, options)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(describe(error)) from error


def settings_of_file(path: Path) -> Reconstruct:
    """Return the settings of cassi-reconstruct with a config of the user's own.

    Args:
        path: of the config, as `--config-dir` and `--config-name` find it.

    Raises:
        ValueError: it is no such config.
    """
    store_parts()
    try:
        with _own_search(GlobalHydra.instance(), path.parent):
            composed = compose(path.stem, ["hydra.searchpath=[pkg://cassi.conf]"])
            settings: Reconstruct = read_settings(composed, Reconstruct)
            return settings
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(describe(error)) from error


def config_search() -> Any:
    """Return a context in which configs are found and composed."""
    store_parts()
    # Inside a command Hydra is set up, with the config folders of the user; elsewhere it is not, or
    # for another program.
    found = GlobalHydra.instance()
    if found.is_initialized() and any(s.path == "cassi.conf" for s in _sources(found)):
        return nullcontext()
    return _own_search(found)


def _sources(found: GlobalHydra) -> list[Any]:
    return list(found.config_loader().get_sources())


@contextmanager
def _own_search(found: GlobalHydra, folder: Path | None = None) -> Iterator[None]:
    """Search in the configs of this package, or in a folder, and leave Hydra as it was."""
    with _COMPOSING:
        program, found.hydra = found.hydra, None
        try:
            with (
                initialize_config_module("cassi.conf", version_base="1.3")
                if folder is None
                else initialize_config_dir(str(folder.resolve()), version_base="1.3")
            ):
                loader: Any = GlobalHydra.instance().config_loader()
                for more in _ALSO if folder is None else ():
                    loader.get_search_path().append("command", f"file://{more}")
                loader.repository.initialize_sources(loader.get_search_path())
                yield
        finally:
            GlobalHydra.instance().hydra = program  # the instance is another one by now


_ALSO: list[str] = []


def searched_folders() -> tuple[str, ...]:
    """Return the folders in which the running command finds configs of the user's own."""
    found = GlobalHydra.instance()
    if not found.is_initialized():
        return ()
    return tuple(str(Path(s.path).resolve()) for s in _sources(found) if s.scheme() == "file")


def search_also(folders: Iterable[str]) -> None:
    """Search in these folders too, outside of a command: those of the one that this works for."""
    _ALSO[:] = folders


def describe_groups(name: str, options: Iterable[str] = ()) -> str:
    """Return what `--help` says of the groups of a command: a line for each, and its options.

    Listed are the groups that a config of this name has, by the key that chooses in them, and files
    that are not parts of others. Of experiments and data sets those of trainings are for trainings.

    Args:
        name: of the primary config.
        options: of the command line; what they choose may have groups inside.
    """
    loader = GlobalHydra.instance().config_loader()
    found = loader.compute_defaults_list(name, list(options), RunMode.RUN)
    groups = found.overrides.known_choices
    lines = []
    for key in sorted(key for key in groups if not key.startswith("hydra/")):
        group = key.partition("@")[0]
        options = [o for o in loader.get_group_options(group) if not o.startswith("_")]
        options += paper_recipes() if group == "experiment" else []
        kept = [o for o in options if _is_for(group, o, name == "train")]
        if len(kept) > 1 or groups[key] is None:
            lines.append(f"{key}: {', '.join(kept)}")
    return "\n".join(lines) + "\n"


def _is_for(group: str, option: str, training: bool) -> bool:
    if not resources.files("cassi.conf").joinpath(group, f"{option}.yaml").is_file():
        return True  # the user's own
    if group == "experiment":
        return training == is_training(option)
    if group == "data" and training:
        return any(
            "_simulated" in (source.load_config(f"data/{option}").config.get("defaults") or ())
            for source in _sources(GlobalHydra.instance())
            if source.available() and source.is_config(f"data/{option}")
        )
    return True


OmegaConf.register_new_resolver("cassi.groups", describe_groups, replace=True)


def list_experiments() -> list[str]:
    """Return the experiments that are methods: they have no scene, no camera and no training."""
    with config_search():
        loader = GlobalHydra.instance().config_loader()
        names = [n for n in loader.get_group_options("experiment") if not n.startswith("_")]
        return [n for n in names if not is_training(n) and not _has_a_scene_or_camera(n)]


def _has_a_scene_or_camera(name: str) -> bool:
    for source in _sources(GlobalHydra.instance()):
        if source.available() and source.is_config(f"experiment/{name}"):
            config = source.load_config(f"experiment/{name}").config
            defaults = [item for item in config.get("defaults") or () if not isinstance(item, str)]
            chosen = {str(key).rpartition("/")[2] for item in defaults for key in item}
            return bool({"scene", "camera", "mask", "system"} & (set(map(str, config)) | chosen))
    return False


def understand(item: Any, place: str = "reconstructors") -> dict[str, Any]:
    """Return the mapping that an item of `reconstructors` stands for, with a name.

    Raises:
        ValueError: there is nothing of that name, or the mapping has other keys than `KEYS`.
    """
    if isinstance(item, str):
        networks, methods = list_models(), list_experiments()
        if item.endswith(FILE_SUFFIX) or item in networks:
            return {"name": _short(item), "model": item}
        if item not in methods:
            hint = did_you_mean(item, [*methods, *networks]) or f"; there is {_some(methods)}"
            raise ValueError(f"{place}: no method, network or {FILE_SUFFIX} file {item!r}{hint}")
        return {"name": item, "method": item}
    unknown = sorted(set(map(str, item)) - set(KEYS)) if isinstance(item, dict) else ()
    if unknown:
        near = did_you_mean(unknown[0], KEYS) or f"; there is {_some(KEYS)}"
        raise ValueError(f"reconstructors: no key {unknown[0]!r}{near}")
    if not isinstance(item, dict) or ("method" in item) == ("model" in item):
        raise ValueError(
            f"reconstructors: expected a name, or a mapping with method or model, got {item!r}"
        )
    what = item.get("method", item.get("model"))
    name = item.get("name") or ("+".join(what) if isinstance(what, list) else _short(str(what)))
    return {**item, "name": str(name)}


def settings_named(item: Any) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for, outside of any command.

    Each is composed once: that takes as long as half a reconstruction. Where Hydra is set up, its
    folders decide what a name means.

    Raises:
        ValueError: there is nothing of that name, or the mapping does not fit.
    """
    if GlobalHydra.instance().is_initialized() or not isinstance(item, str | dict):
        return settings_of(understand(item))
    return _settings_once(json.dumps(item, default=str))


@lru_cache
def _settings_once(item: str) -> Reconstruct:
    return settings_of(understand(json.loads(item)))


def settings_of(
    spec: dict[str, Any], more: Iterable[str] = (), data_dir: str | None = None
) -> Reconstruct:
    """Return the settings that an item of `reconstructors` stands for.

    Args:
        spec: of `understand`.
        more: options that a data set has for solvers.
        data_dir: `paths.data_dir` of the command that asks.

    Raises:
        ValueError: names, weights and options do not fit.
    """
    given = spec.get("overrides") or []
    # A mapping says the same, and needs no quotes on the command line.
    pairs = [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else given
    overrides = list(map(str, pairs))
    if "model" not in spec:
        if "weights" in spec:
            raise ValueError("weights: expected with model only; a method takes overrides")
        wanted = spec["method"] if isinstance(spec["method"], list) else [spec["method"]]
        if networks := [name for name in wanted if name in list_models()]:
            raise ValueError(
                f"{networks[0]} is a network: write {{model: {networks[0]}, weights: FILE}}"
            )
        methods: Reconstruct = compose_settings(
            [f"experiment=[{','.join(wanted)}]", *more, *overrides], data_dir
        )
        return methods
    known = spec["model"] in list_models() or str(spec["model"]).endswith(FILE_SUFFIX)
    if not known and spec["model"] in list_experiments():
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


def identity_of(settings: Reconstruct, bands: int, device: torch.device) -> dict[str, Any]:
    """Return what the results of a reconstructor depend on beside camera and measurement.

    "auto" is named by the precision that it stands for on the device: other bits, another result.
    """
    settings, auto = adapted(settings), resolve("auto", device)
    solver = {"solver": settings.solver, "prior": _settle(settings.prior, auto), **_own_files()}
    if settings.model is None:
        return name_weights(solver)
    settled = {"bands": bands, "refine": settings.refine, "precision": settings.precision}
    settled |= {"auto": auto} if settings.model.get("name") in list_models(shipped=True) else {}
    settled |= solver if has_start(settings) else _own_files()
    return name_weights({"model": settings.model, **settled})


def _settle(value: Any, auto: str) -> Any:
    """Write the precision that "auto" stands for into a prior's settings."""
    if isinstance(value, list):
        return [_settle(item, auto) for item in value]
    if not isinstance(value, dict):
        return value
    settled = {key: _settle(item, auto) for key, item in value.items()}
    return settled | ({"precision": auto} if settled.get("precision") == "auto" else {})


def name_weights(value: Any) -> Any:
    """Replace the name of weights that come with the package by their files.

    Other weights under the same name are another method.
    """
    if isinstance(value, dict):
        return {key: name_weights(item) for key, item in value.items()}
    if isinstance(value, list):
        return [name_weights(item) for item in value]
    return [str(file) for file in weight_files(value)] or value


def fingerprint_settings(settings: Any, on: str = "files") -> str:
    """Return a hash of all in settings that the results of every snapshot depend on.

    A file stands for its name, size and time of change.

    Args:
        settings: of a command.
        on: "files" for all that is written, "cube" for the cube alone.
    """
    return fingerprint(name_weights(influence(settings, on) | _own_files()))


def _own_files() -> dict[str, list[str]]:
    """Return the files of plugins, on which all results may depend; nothing without any."""
    files = plugin_files()
    return {"plugins": files} if files else {}


def _short(item: str) -> str:
    path = Path(item)
    if path.suffix != FILE_SUFFIX:
        return item
    # A training calls every file model.safetensors, and its folder tells which.
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem


def _some(names: Iterable[str]) -> str:
    return ", ".join(names)
