from .compose import (
    add_search_folders,
    compose_settings,
    config_search,
    list_methods,
    list_search_folders,
    settings_of_file,
)
from .identity import fingerprint_settings, identity_of
from .names import parse_item, settings_named, settings_of
from .networks import build_network, model_node
from .parts import offer_parts
from .recipe import Recipe, build_method, build_solver

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
    "offer_parts",
    "parse_item",
    "settings_named",
    "settings_of",
    "settings_of_file",
]
