"""Networks by name."""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from cassi.checks import did_you_mean
from cassi.plugins import check_name, owner, same_thing

Made = TypeVar("Made", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Entry:
    """A registered network.

    Attributes:
        make: its class, or what makes it, `make(bands=C, **settings)`.
        settings: the arguments that make it the named one.
        shipped: it comes with its weights; what `make` returns has an attribute `shipped`.
        files: those whose content its results depend on.
        any_bands: its weights do not depend on the number of bands.
        plugin: the user's file or module that registers it; None for a network of the package.
    """

    make: Callable[..., nn.Module]
    settings: Mapping[str, Any]
    shipped: bool = False
    files: tuple[Path, ...] = ()
    any_bands: bool = False
    plugin: str | None = None


@dataclass(frozen=True)
class Card:
    """What a file of weights says about itself.

    Attributes:
        name: of the network, as `create_model` takes it.
        settings: further arguments of `create_model`.
        bands: number C of bands.
        wavelengths: nm, one per band, or None.
        training: how the weights came about, for people to read.
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
) -> Callable[[Made], Made]:
    """Give a network a name; several names with other settings may be stacked.

    Args:
        name: as `create_model` takes it, lower case.
        shipped: see `Entry`.
        files: see `Entry`.
        any_bands: see `Entry`.
        settings: arguments of the class, which a caller of `create_model` may override.

    Returns:
        A decorator of a class of networks, or of a function that makes one: `make(bands=C,
        **settings)` is a `torch.nn.Module`, and `network(y, system)` the cube `(B, C, H, W)`.

    Raises:
        ValueError: the name is taken, or none of Python.
    """
    check_name("register_model", name)

    def enter(make: Made) -> Made:
        if name in _ENTRIES and not same_thing(_ENTRIES[name].make, make):
            raise ValueError(f"register_model: the name {name!r} is taken by {_ENTRIES[name].make}")
        _ENTRIES[name] = Entry(make, settings, shipped, files, any_bands, owner(make))
        return make

    return enter


def list_models(pattern: str = "*", *, shipped: bool | None = None) -> list[str]:
    """Return the names of the networks, sorted.

    Args:
        pattern: as of the shell, `dauhst*`, selects.
        shipped: True for those that come with their weights, False for the others.
    """
    names = sorted(fnmatch.filter(_ENTRIES, pattern))
    return [name for name in names if shipped in (None, _ENTRIES[name].shipped)]


def find_model(name: str) -> Entry:
    """Return what is registered under a name; raise a ValueError that names the nearest."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    hint = did_you_mean(name, _ENTRIES) or f"; there is {', '.join(list_models())}"
    raise ValueError(f"no model named {name!r}{hint}")


def plugins_of(name: str) -> tuple[str, ...]:
    """Return the user's files or modules that register a network; none for one of the package."""
    found = _ENTRIES.get(name)
    return () if found is None or found.plugin is None else (found.plugin,)


def weight_files(name: object) -> tuple[Path, ...]:
    """Return the files that a name stands for: those of a shipped network, else none."""
    return _ENTRIES[name].files if isinstance(name, str) and name in _ENTRIES else ()
