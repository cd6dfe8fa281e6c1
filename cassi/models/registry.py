"""The registry of networks by name, and the description in a file of weights."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cassi.checks import did_you_mean
from cassi.plugins import check_name, owner, same_thing

if TYPE_CHECKING:
    from torch import nn

Maker = TypeVar("Maker", bound="Callable[..., nn.Module]")
# Names that modules of `cassi.models` register. A module is imported when one of its networks is
# looked up. So a list of the names needs neither torch nor the networks.
_NAMES_BY_MODULE = {
    "cassi_net": "cassi_net",
    "pretrained": "pretrained",
    "published.bisrnet": "bisrnet",
    "published.cst": "cst_s cst_m cst_l cst_l_plus",
    "published.dauhst": "dauhst_2stg dauhst_3stg dauhst_5stg dauhst_9stg",
    "published.dernn_lnlt": "dernn_lnlt_5stg dernn_lnlt_7stg dernn_lnlt_9stg dernn_lnlt_9stg_star",
    "published.dgsmp": "dgsmp",
    "published.dpu": "dpu_5stg dpu_9stg",
    "published.gap_net": "gap_net admm_net",
    "published.hdnet": "hdnet",
    "published.lade_dun": "lade_dun_3stg lade_dun_5stg lade_dun_7stg lade_dun_9stg",
    "published.lambda_net": "lambda_net",
    "published.lrdun": "lrdun_3stg lrdun_6stg lrdun_9stg",
    "published.mijun": "mijun_3stg mijun_5stg mijun_9stg",
    "published.mst": "mst_s mst_m mst_l mst_plus_plus",
    "published.padut": "padut_3stg padut_5stg padut_7stg padut_12stg",
    "published.rdluf_mixs2": "rdluf_mixs2_3stg rdluf_mixs2_5stg rdluf_mixs2_7stg rdluf_mixs2_9stg",
    "published.saunet": "saunet_1stg saunet_2stg saunet_3stg saunet_5stg saunet_9stg saunet_13stg",
    "published.ssr": "ssr_s ssr_m ssr_l",
    "published.tsa_net": "tsa_net",
}
_MODULES = {
    name: f"cassi.models.{module}"
    for module, names in _NAMES_BY_MODULE.items()
    for name in names.split()
}


@dataclass(frozen=True)
class Entry:
    """A registered network.

    Attributes:
        make: its class, or a function that makes it, `make(bands=C, **settings)`.
        settings: keyword arguments of `make` that distinguish this name, such as `stages=3`.
        has_weights: whether it comes with its weights; the network then has an attribute `shipped`.
        files: files that the network's results depend on, such as its weights.
        any_bands: whether its weights serve any number of bands.
        plugin: the user's file or module that registers it; None for a network of the package.
    """

    make: Callable[..., nn.Module]
    settings: Mapping[str, Any]
    has_weights: bool = False
    files: tuple[Path, ...] = ()
    any_bands: bool = False
    plugin: str | None = None


@dataclass(frozen=True)
class Card:
    """The description that a file of weights holds in its metadata.

    Attributes:
        name: name of the network, as `create_model` takes it.
        settings: further arguments of `create_model`.
        bands: number C of bands.
        wavelengths: nm, one per band, or None.
        training: how the weights were trained; a record for people.
        plugins: the user's files or modules that register the network.
    """

    name: str
    bands: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    wavelengths: tuple[float, ...] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()


_ENTRIES: dict[str, Entry] = {}


def register_model(
    name: str,
    *,
    shipped: bool = False,
    files: tuple[Path, ...] = (),
    any_bands: bool = False,
    **settings: Any,
) -> Callable[[Maker], Maker]:
    """Register a network under a name.

    Several of these decorators may be stacked, to give other settings other names.

    Args:
        name: as `create_model` takes it, lower case.
        shipped: see `Entry`.
        files: see `Entry`.
        any_bands: see `Entry`.
        settings: arguments of the class, which a caller of `create_model` may override.

    Returns:
        A decorator for a class of networks, or for a function that makes a network. The class or
        function is called as `make(bands=C, **settings)` and returns a `torch.nn.Module`. The call
        `network(y, system)` of that module returns the cube `(B, C, H, W)`.

    Raises:
        ValueError: the name is taken, or is not a valid identifier.
    """
    check_name("register_model", name)

    def register(make: Maker) -> Maker:
        is_own = _MODULES.get(name) == make.__module__
        old_entry = _ENTRIES.get(name) if is_own else _load_entry(name)
        # A module that is loaded again may register the same class once more.
        if old_entry is not None and not same_thing(old_entry.make, make):
            raise ValueError(f"register_model: the name {name!r} is taken by {old_entry.make}")
        _ENTRIES[name] = Entry(make, settings, shipped, files, any_bands, owner(make))
        return make

    return register


def list_models(pattern: str = "*", *, shipped: bool | None = None) -> list[str]:
    """Return the names of the networks, sorted.

    Args:
        pattern: shell pattern that the names must match, such as `dauhst*`.
        shipped: True for networks that come with their weights, False for the others, None for all.
    """
    names = sorted(fnmatch.filter(_MODULES.keys() | _ENTRIES, pattern))
    return [name for name in names if shipped is None or is_shipped(name) == shipped]


def is_shipped(name: object) -> bool:
    """Tell whether this is the name of a network that comes with its weights."""
    entry = _load_entry(name)
    return entry is not None and entry.has_weights


def _load_entry(name: object) -> Entry | None:
    """Return the entry of a name, and import its module if needed; None if there is none."""
    if not isinstance(name, str):
        return None
    if name not in _ENTRIES and name in _MODULES:
        importlib.import_module(_MODULES[name])
    return _ENTRIES.get(name)


def find_model(name: str) -> Entry:
    """Return the entry of a name; raise a ValueError that names the most similar ones."""
    if (entry := _load_entry(name)) is not None:
        return entry
    hint = did_you_mean(name, list_models()) or f"; there is {', '.join(list_models())}"
    raise ValueError(f"no model named {name!r}{hint}")


def plugins_of(name: str) -> tuple[str, ...]:
    """Return the user's files or modules that register a network; () for one of the package."""
    entry = _ENTRIES.get(name)
    return () if entry is None or entry.plugin is None else (entry.plugin,)


def weight_files(name: object) -> tuple[Path, ...]:
    """Return the files of weights of a shipped network; () for any other name."""
    entry = _load_entry(name)
    return () if entry is None else entry.files
