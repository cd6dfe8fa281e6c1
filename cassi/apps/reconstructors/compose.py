"""Compose settings by Hydra: its search path, and the parts registered in its groups."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from cassi.apps.arguments import paper_recipes, spell
from cassi.apps.errors import config_errors
from cassi.apps.reconstructors.networks import model_node
from cassi.apps.settings import Reconstruct, read_settings
from cassi.config import Node
from cassi.models.registry import list_models
from cassi.plugins import node_of, parts

# Hydra has one search path for the whole process, so one thread at a time may set it.
_SEARCH_LOCK = threading.RLock()
# Folders of the user's configs, in a worker process; see `add_search_folders`.
_EXTRA_FOLDERS: list[str] = []


def compose_settings(
    options: Iterable[str] = (), data_dir: str | None = None, kind: type = Reconstruct
) -> Any:
    """Return the settings of a command with these options.

    Args:
        options: options, written as on the command line.
        data_dir: folder in place of `paths.data_dir`; None keeps it.
        kind: class of the settings.

    Raises:
        ValueError: the options do not fit the config.
    """
    with config_errors(), config_search():
        name, options = kind.__name__.lower(), spell(options)
        config = compose(name, overrides=options)
        if data_dir is not None:
            config.paths.data_dir = data_dir
        return read_settings(config, kind, options)


def settings_of_file(path: Path) -> Reconstruct:
    """Return the settings of cassi-reconstruct from a config file of the user.

    Raises:
        ValueError: the config cannot be composed.
    """
    store_parts()
    with config_errors(), _search_own_configs(GlobalHydra.instance(), path.parent):
        config = compose(path.stem, ["hydra.searchpath=[pkg://cassi.conf]"])
        settings: Reconstruct = read_settings(config, Reconstruct)
        return settings


def config_search() -> Any:
    """Return a context in which Hydra finds the configs of this package."""
    store_parts()
    # Inside a command, Hydra is already set up with the config folders of the user. Elsewhere,
    # Hydra is not set up, or set up for another program.
    hydra = GlobalHydra.instance()
    if hydra.is_initialized() and any(
        source.path == "cassi.conf" for source in _list_sources(hydra)
    ):
        return nullcontext()
    return _search_own_configs(hydra)


def _list_sources(hydra: GlobalHydra) -> list[Any]:
    return list(hydra.config_loader().get_sources())


@contextmanager
def _search_own_configs(hydra: GlobalHydra, folder: Path | None = None) -> Iterator[None]:
    """Search in the configs of this package, or in a folder alone; restore Hydra at the end."""
    with _SEARCH_LOCK:
        other_hydra, hydra.hydra = hydra.hydra, None
        try:
            hydra_context: Any
            if folder is None:
                hydra_context = initialize_config_module("cassi.conf", version_base="1.3")
            else:
                hydra_context = initialize_config_dir(str(folder.resolve()), version_base="1.3")
            with hydra_context:
                loader: Any = GlobalHydra.instance().config_loader()
                for extra_folder in _EXTRA_FOLDERS if folder is None else ():
                    loader.get_search_path().append("command", f"file://{extra_folder}")
                loader.repository.initialize_sources(loader.get_search_path())
                yield
        finally:
            # Hydra has made a new instance in the meantime.
            GlobalHydra.instance().hydra = other_hydra


def list_search_folders() -> tuple[str, ...]:
    """Return the folders in which the running command finds configs of the user."""
    hydra = GlobalHydra.instance()
    if not hydra.is_initialized():
        return ()
    return tuple(
        str(Path(source.path).resolve())
        for source in _list_sources(hydra)
        if source.scheme() == "file"
    )


def add_search_folders(folders: Iterable[str]) -> None:
    """Search in these folders too. A worker gets the folders of its command in this way."""
    _EXTRA_FOLDERS[:] = folders


def store_parts() -> None:
    """Make registered networks, losses, priors and data sets options of Hydra's groups.

    Raises:
        ValueError: a name is already one of the package's.
    """
    store_models()
    store = ConfigStore.instance()
    groups = {"loss": "loss", "prior": "prior", "dataset": "data"}
    for kind, group in groups.items():
        for name in parts(kind):
            if resources.files("cassi.conf").joinpath(group, f"{name}.yaml").is_file():
                raise ValueError(f"register_{kind}: the name {name!r} is taken by {group}={name}")
            node = node_of(kind, name)
            node = _make_data_node(name, node) if kind == "dataset" else node
            store.store(group=group, name=name, node=node, provider="cassi.plugins")


def _make_data_node(name: str, source: Node) -> Node:
    """Return the config of a data set that a plugin registers, with the bundled mask."""
    wavelengths = parts("dataset")[name].properties["wavelengths"]
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
    return node if wavelengths is None else node | {"wavelengths": list(wavelengths)}


def store_models() -> None:
    """Make every registered network, and `file`, an option of Hydra's group `model`."""
    store = ConfigStore.instance()
    # Hydra copies its sources for each group that --help lists. The store is one of the sources,
    # and each copy would also copy the settings of every network.
    vars(store)["__deepcopy__"] = lambda _: store
    # An earlier command of this process may have stored some networks already.
    registered_files = store.repo.get("model", {})
    for name in (name for name in list_models() if f"{name}.yaml" not in registered_files):
        store.store(group="model", name=name, node=model_node(name), provider="cassi.models")
    store.store(group="model", name="file", node={"path": "???"}, provider="cassi.models")


def describe_groups(name: str, options: Iterable[str] = ()) -> str:
    """Return the lines of `--help` on the groups of a command, each with the options of a group.

    Args:
        name: name of the primary config.
        options: options of the command line, which may choose configs with further groups.
    """
    loader = GlobalHydra.instance().config_loader()
    defaults_list = loader.compute_defaults_list(name, list(options), RunMode.RUN)
    groups = defaults_list.overrides.known_choices
    lines = []
    for key in sorted(key for key in groups if not key.startswith("hydra/")):
        group = key.partition("@")[0]
        group_options = loader.get_group_options(group)
        group_options += paper_recipes() if group == "recipe" else []
        # Files whose names begin with an underscore are parts of others.
        listed_options = [
            option
            for option in group_options
            if not option.startswith("_") and _is_option_for(group, option, name == "train")
        ]
        if len(listed_options) > 1 or (listed_options and groups[key] is None):
            lines.append(f"{key}: {', '.join(listed_options)}")
    return "\n".join(lines) + "\n"


def _is_option_for(group: str, option: str, training: bool) -> bool:
    """Tell whether an option is of use to a training, or to any other command."""
    if not resources.files("cassi.conf").joinpath(group, f"{option}.yaml").is_file():
        return True  # an option of the user
    if group == "experiment":
        return not training
    if group == "data" and training:
        return any(
            "_simulated" in (source.load_config(f"data/{option}").config.get("defaults") or ())
            for source in _list_sources(GlobalHydra.instance())
            if source.available() and source.is_config(f"data/{option}")
        )
    return True


OmegaConf.register_new_resolver("cassi.groups", describe_groups, replace=True)


def list_methods() -> list[str]:
    """Return the options of the group `method`."""
    with config_search():
        loader = GlobalHydra.instance().config_loader()
        return [name for name in loader.get_group_options("method") if not name.startswith("_")]
