"""Make reconstructors from settings.

`compose` makes settings from options, by Hydra. `names` finds the method, network or file that has
a name. `networks` makes the network of a node `model`. `recipe` makes the reconstructor that
settings describe. `identity` makes fingerprints of everything that results depend on.
"""

from cassi.apps.reconstructors.compose import (
    add_search_folders,
    compose_settings,
    config_search,
    list_methods,
    list_search_folders,
    settings_of_file,
    store_models,
    store_parts,
)
from cassi.apps.reconstructors.identity import fingerprint_settings, identity_of
from cassi.apps.reconstructors.names import parse_item, settings_named, settings_of
from cassi.apps.reconstructors.networks import build_network, model_node
from cassi.apps.reconstructors.recipe import Recipe, build_method, build_solver

__all__ = [
    "Recipe",
    "add_search_folders",
    "build_method",
    "build_network",
    "build_solver",
    "compose_settings",
    "config_search",
    "fingerprint_settings",
    "identity_of",
    "list_methods",
    "list_search_folders",
    "model_node",
    "parse_item",
    "settings_named",
    "settings_of",
    "settings_of_file",
    "store_models",
    "store_parts",
]
