"""The registered networks, losses, priors and data sets as options of Hydra's groups.

Hydra asks `PartSource`, one of its sources of configs, for the names in a group and for the config
of a chosen name. So the config of a network is made, and torch imported, only if it is chosen.
"""

from collections.abc import Iterable
from importlib import resources
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf

from cassi.apps.arguments import paper_recipes
from cassi.config import Node
from cassi.models.registry import list_models
from cassi.plugins import GROUPS, node_of, parts

_SCHEME = "cassi-parts"
_KINDS = {group: kind for kind, group in GROUPS.items()}


def offer_parts() -> None:
    """Let Hydra find the registered parts, and list the options of groups in `--help`.

    A launcher of Hydra may replace its registers, so each command calls this anew.
    """
    for plugin in (PartSource, PartSearchPath):
        Plugins.instance().register(plugin)
    # Hydra copies its sources for each group that --help lists, hundreds of times. Its store of
    # configs is one of them, and a copy of it takes 4 ms.
    store = ConfigStore.instance()
    vars(store)["__deepcopy__"] = lambda _: store
    OmegaConf.register_new_resolver("cassi.groups", describe_groups, replace=True)


class PartSource(ConfigSource):
    """Hydra's source of the configs of registered parts, and of `model=file`."""

    @staticmethod
    def scheme() -> str:
        """Return the scheme of the source in Hydra's search path."""
        return _SCHEME

    def available(self) -> bool:
        """Tell that the source exists."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Tell whether a group has registered parts."""
        return bool(_list_names(config_path.rstrip("/")))

    def is_config(self, config_path: str) -> bool:
        """Tell whether `GROUP/NAME` is a registered part."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return name in _list_names(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the registered parts of a group."""
        if results_filter == ObjectType.GROUP:
            return []
        return sorted(_list_names(config_path.rstrip("/")))

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the config of a registered part."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        config = OmegaConf.create(_make_node(group, name))
        return ConfigResult("cassi", self.full_path(), config, header={"package": None})


class PartSearchPath(SearchPathPlugin):
    """Puts `PartSource` behind the folders of configs in Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source."""
        search_path.append(provider="cassi", path=f"{_SCHEME}://")


def _list_names(group: str) -> list[str]:
    if group == "model":
        return [*list_models(), "file"]
    return list(parts(_KINDS[group])) if group in _KINDS else []


def _make_node(group: str, name: str) -> Node:
    if group == "model":
        from cassi.apps.reconstructors.networks import model_node

        return {"path": "???"} if name == "file" else model_node(name)
    node = node_of(_KINDS[group], name)
    return _make_data_node(name, node) if group == "data" else node


def _make_data_node(name: str, source: Node) -> Node:
    """Return the config of a data set that a plugin registers, with the bundled mask."""
    wavelengths: Any = parts("dataset")[name].properties["wavelengths"]
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
            "_simulated" in (OmegaConf.select(config, "defaults") or ())
            for config in _load_configs(f"data/{option}")
        )
    return True


def _load_configs(path: str) -> list[Any]:
    sources = GlobalHydra.instance().config_loader().get_sources()
    return [
        source.load_config(path).config
        for source in sources
        if source.available() and source.is_config(path)
    ]
