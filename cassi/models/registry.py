"""Networks by name."""

from __future__ import annotations

import difflib
import fnmatch
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import nn

PRETRAINED = "pretrained"
"""In place of a network's name: the one whose weights come with the package."""

Class = TypeVar("Class", bound=type[nn.Module])


class Entry(NamedTuple):
    """A registered network: its class, and the arguments that make it the named one."""

    cls: type[nn.Module]
    settings: dict[str, Any]


_ENTRIES: dict[str, Entry] = {}


def register(name: str, **settings: Any) -> Callable[[Class], Class]:
    """Give a class of `Network` a name; several names with other settings may be stacked.

    Args:
        name: as `create_model` takes it, lower case.
        settings: arguments of the class, which a caller of `create_model` may override.
    """

    def enter(cls: Class) -> Class:
        if name in _ENTRIES:
            raise ValueError(f"register: the name {name!r} is taken by {_ENTRIES[name].cls}")
        _ENTRIES[name] = Entry(cls, settings)
        return cls

    return enter


def create_model(
    name: str,
    system: Any = None,
    *,
    bands: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    ema: bool | None = None,
    **settings: Any,
) -> Any:
    """Make a network `net(y, system) -> x` by its name.

    Args:
        name: one of `list_models()`; or `pretrained`, with the weights that come with the package,
            see `cassi.models.pretrained.load_pretrained`, which takes the settings.
        system: the camera it is for.
        bands: number C of bands; by default those of the camera, 28 without one.
        weights: file of its weights, see `load_published`; without one they are random.
        ema: which weights of a file that holds two kinds, see `load_published`.
        settings: further arguments of the network's class.

    Returns:
        The network, in evaluation mode where weights were loaded.

    Raises:
        ValueError: there is no such name, a setting is unknown or unfit, the weights belong to
            another network, or do not fit the camera.

    >>> net = create_model("gap_net", bands=5, stages=2)
    """
    if name == PRETRAINED:
        return _create_pretrained(system, bands, weights, settings)
    entry = find_model(name)
    if bands is None:
        bands = 28 if system is None else system.cube_shape[0]
    try:
        network = entry.cls(bands=bands, **entry.settings | settings)
    except TypeError as error:
        raise ValueError(f"model {name}: {error}") from None
    if weights is not None:
        from cassi.models.load import load_into

        load_into(network, name, weights, ema)
    return network


def _create_pretrained(
    system: Any, bands: int | None, weights: Any, settings: dict[str, Any]
) -> Any:
    from cassi.models.pretrained import load_pretrained

    if weights is not None:
        raise ValueError(f"model {PRETRAINED}: expected no weights, it has its own; got {weights}")
    if bands is not None and system is not None and bands != system.cube_shape[0]:
        raise ValueError(f"bands: the camera has {system.cube_shape[0]}, got {bands}")
    try:
        return load_pretrained(system, **settings)
    except TypeError as error:
        raise ValueError(f"model {PRETRAINED}: {error}") from None


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the networks, sorted; a pattern as of the shell, `dauhst*`, selects."""
    return sorted(fnmatch.filter(_ENTRIES, pattern))


def find_model(name: str) -> Entry:
    """Return what is registered under a name; raise a ValueError that names the nearest."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    near = difflib.get_close_matches(str(name), [*_ENTRIES, PRETRAINED], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(list_models())}"
    raise ValueError(f"no model named {name!r}; {hint}")
