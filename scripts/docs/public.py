"""List the public names of the package: Python names, settings, groups, formats and operators.

`docs/reference/public.txt` has the last output, and a test compares it with the present one.
`docs/reference/public.md` says what is promised of these names.

    python -m scripts.docs.public > docs/reference/public.txt
"""

import importlib
import inspect
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Any

import torch
from hydra import compose
from omegaconf import DictConfig

from cassi.apps.reconstructors import config_search
from cassi.data.io import READ_SUFFIXES, WRITE_SUFFIXES
from cassi.models.registry import list_models
from scripts.docs.reference import COMMANDS, OTHER_PARTS, PARTS, ROOT, is_part, list_options


def list_names() -> Iterator[str]:
    """Yield the lines of the listing, one for each name."""
    package = distribution("cassi")
    yield "# Commands"
    yield from sorted(e.name for e in package.entry_points if e.group == "console_scripts")
    yield "\n# Extras of the package"
    yield from sorted(package.metadata.get_all("Provides-Extra") or ())
    yield "\n# Names in Python, with their parameters; those with `=` have a default"
    yield from sorted(set(map(describe, list_python_names())))
    for command in COMMANDS:
        yield f"\n# Settings of cassi-{command}"
        yield from list_settings(command)
    yield "\n# Networks"
    yield from sorted(list_models())
    yield "\n# Options of groups"
    for folder in sorted((ROOT / "conf").iterdir()):
        if folder.is_dir() and folder.name not in ("hydra", "__pycache__"):
            options = (name for name in list_options(folder.name) if not is_part(name))
            yield from (f"{folder.name}={name}" for name in sorted(options))
    yield "\n# Files"
    yield f"read: {' '.join(sorted(filter(None, READ_SUFFIXES)))}"
    yield f"written: {' '.join(sorted(WRITE_SUFFIXES))}"
    yield "\n# Operators of torch"
    schemas = torch._C._jit_get_all_schemas()
    ours = (schema for schema in schemas if schema.name.startswith("cassi::"))
    yield from sorted(str(schema) for schema in ours if not schema.name.endswith("_backward"))


def list_python_names() -> Iterator[str]:
    """Yield the dotted public names of the package and its parts."""
    for module in ("cassi", *(f"cassi.{part}" for part in PARTS + OTHER_PARTS)):
        names = getattr(importlib.import_module(module), "__all__", ())
        yield from (f"{module}.{name}" for name in names)


def describe(name: str) -> str:
    """Return a dotted name with its parameters, without their defaults and types."""
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    if not callable(value) or inspect.ismodule(value):
        return name
    try:
        parameters = inspect.signature(value).parameters.values()
    # Objects that are written in C may have no signature.
    except ValueError:
        return name
    return f"{name}({', '.join(map(_parameter, parameters))})"


_PREFIXES: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.KEYWORD_ONLY: "keyword ",
}


def _parameter(parameter: inspect.Parameter) -> str:
    text = _PREFIXES.get(parameter.kind, "") + parameter.name
    return text if parameter.default is parameter.empty else f"{text}="


def list_settings(command: str) -> list[str]:
    """Return the full names of the settings of a command, with its default groups."""
    with config_search():
        config = compose(command)
    return sorted(_leaves(config))


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the full names of the values of a config; an empty group counts as a value."""
    for key in map(str, config):
        node = config._get_node(key)
        is_value = not isinstance(node, DictConfig) or node._is_none() or node._is_missing()
        if isinstance(node, DictConfig) and not is_value and len(node):
            yield from _leaves(node, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}"


def main() -> None:
    """Print the listing."""
    print("\n".join(list_names()))


if __name__ == "__main__":
    main()
