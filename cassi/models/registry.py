"""The registry of networks by name, and the description in a file of weights."""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from cassi.checks import did_you_mean
from cassi.plugins import check_name, owner, same_thing

Maker = TypeVar("Maker", bound=Callable[..., nn.Module])


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
        # A module that is loaded again may register the same class once more.
        if name in _ENTRIES and not same_thing(_ENTRIES[name].make, make):
            raise ValueError(f"register_model: the name {name!r} is taken by {_ENTRIES[name].make}")
        _ENTRIES[name] = Entry(make, settings, shipped, files, any_bands, owner(make))
        return make

    return register


def list_models(pattern: str = "*", *, shipped: bool | None = None) -> list[str]:
    """Return the names of the networks, sorted.

    Args:
        pattern: shell pattern that the names must match, such as `dauhst*`.
        shipped: True for networks that come with their weights, False for the others, None for all.
    """
    names = sorted(fnmatch.filter(_ENTRIES, pattern))
    return [name for name in names if shipped in (None, _ENTRIES[name].has_weights)]


def find_model(name: str) -> Entry:
    """Return the entry of a name; raise a ValueError that names the most similar ones."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    hint = did_you_mean(name, _ENTRIES) or f"; there is {', '.join(list_models())}"
    raise ValueError(f"no model named {name!r}{hint}")


def plugins_of(name: str) -> tuple[str, ...]:
    """Return the user's files or modules that register a network; () for one of the package."""
    entry = _ENTRIES.get(name)
    return () if entry is None or entry.plugin is None else (entry.plugin,)


def weight_files(name: object) -> tuple[Path, ...]:
    """Return the files of weights of a shipped network; () for any other name."""
    return _ENTRIES[name].files if isinstance(name, str) and name in _ENTRIES else ()
