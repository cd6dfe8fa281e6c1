"""Settings from the configs: Hydra's search path, and what is registered in its groups."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cassi.apps.arguments import paper_recipes, spell
from cassi.apps.errors import describe
from cassi.apps.reconstructors.networks import model_node
from cassi.apps.settings import Reconstruct, read_settings
from cassi.config import Node
from cassi.models.registry import list_models
from cassi.plugins import node_of, parts

_COMPOSING = threading.RLock()
"""Hydra's search path is the process's: one thread at a time sets it."""
_ALSO: list[str] = []


def compose_settings(
    options: Iterable[str] = (), data_dir: str | None = None, kind: type = Reconstruct
) -> Any:
    """Return the settings of a command with these options.

    `data_dir` is `paths.data_dir` of the command that asks.
    """
    try:
        with config_search():
            name, options = kind.__name__.lower(), spell(options)
            composed = compose(name, overrides=options)
            if data_dir is not None:
                composed.paths.data_dir = data_dir
            return read_settings(composed, kind, options)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(describe(error)) from error


def settings_of_file(path: Path) -> Reconstruct:
    """Return the settings of cassi-reconstruct with a config of the user's own."""
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


def searched_folders() -> tuple[str, ...]:
    """Return the folders in which the running command finds configs of the user's own."""
    found = GlobalHydra.instance()
    if not found.is_initialized():
        return ()
    return tuple(str(Path(s.path).resolve()) for s in _sources(found) if s.scheme() == "file")


def search_also(folders: Iterable[str]) -> None:
    """Search in these folders too, outside of a command: those of the one that this works for."""
    _ALSO[:] = folders


def store_parts() -> None:
    """Enter what is registered into Hydra's groups: networks, losses, priors and data sets."""
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


def _data_node(name: str, source: Node) -> Node:
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


def describe_groups(name: str, options: Iterable[str] = ()) -> str:
    """Return what `--help` says of the groups of a command: a line for each, and its options.

    Listed are the groups that a config of this name has, by the key that chooses in them, and files
    that are not parts of others. Of data sets those of trainings are for trainings.
    """
    loader = GlobalHydra.instance().config_loader()
    found = loader.compute_defaults_list(name, list(options), RunMode.RUN)
    groups = found.overrides.known_choices
    lines = []
    for key in sorted(key for key in groups if not key.startswith("hydra/")):
        group = key.partition("@")[0]
        options = [o for o in loader.get_group_options(group) if not o.startswith("_")]
        options += paper_recipes() if group == "recipe" else []
        kept = [o for o in options if _is_for(group, o, name == "train")]
        if len(kept) > 1 or (kept and groups[key] is None):
            lines.append(f"{key}: {', '.join(kept)}")
    return "\n".join(lines) + "\n"


def _is_for(group: str, option: str, training: bool) -> bool:
    if not resources.files("cassi.conf").joinpath(group, f"{option}.yaml").is_file():
        return True  # the user's own
    if group == "experiment":
        return not training
    if group == "data" and training:
        return any(
            "_simulated" in (source.load_config(f"data/{option}").config.get("defaults") or ())
            for source in _sources(GlobalHydra.instance())
            if source.available() and source.is_config(f"data/{option}")
        )
    return True


OmegaConf.register_new_resolver("cassi.groups", describe_groups, replace=True)


def list_methods() -> list[str]:
    """Return the options of the group `method`."""
    with config_search():
        loader = GlobalHydra.instance().config_loader()
        return [n for n in loader.get_group_options("method") if not n.startswith("_")]
