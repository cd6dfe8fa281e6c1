"""Make the reference pages of the documentation site: Python names, commands and config groups.

The functions `make_…_pages` return a dictionary from paths in the site to Markdown.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import cassi

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "ops",
    "systems",
    "priors",
    "solvers",
    "methods",
    "models",
    "data",
    "metrics",
    "calibration",
    "adapters",
)
OTHER_PARTS = ("evaluation", "uncertainty", "viz", "training")
COMMANDS = ("reconstruct", "train", "evaluate", "calibrate", "camera", "export")
Node = dict[str, Any]


def find_public_objects(part: str) -> dict[str, Any]:
    """Return the public objects of a part by dotted name.

    If the part has `__all__`, its names are public. Otherwise all functions and classes of the
    part's public modules are.
    """
    package = importlib.import_module(f"cassi.{part}")
    if names := getattr(package, "__all__", None):
        return {f"{package.__name__}.{name}": getattr(package, name) for name in names}
    stems = sorted(file.stem for file in (ROOT / "cassi" / part).glob("[!_]*.py"))
    modules = [importlib.import_module(f"{package.__name__}.{stem}") for stem in stems]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__  # not what the module imports
    }


def summarize(value: Any) -> str:
    """Return the first line of an object's docstring."""
    return (inspect.getdoc(value) or "").partition("\n")[0]


def make_python_pages() -> dict[str, str]:
    """Return a page for each part of the package, and one for the names of `cassi` itself."""
    pages: dict[str, str] = {}
    documented_names: dict[int, str] = {}  # by the identity of the object
    for part in PARTS + OTHER_PARTS:
        objects = find_public_objects(part)
        head = f"---\ntitle: cassi.{part}\n---\n\n::: cassi.{part}\n    options:\n"
        head += "      heading_level: 1\n      members: false\n      show_root_full_path: true\n"
        pages[f"reference/{part}.md"] = head + "".join(map(format_entry, objects))
        documented_names |= {id(value): name for name, value in objects.items()}
    # An object that no part documents gets its entry on the page of `cassi` itself.
    lines, own_entries = ["| name | |", "|---|---|"], ""
    for name in cassi.__all__:
        value = getattr(cassi, name)
        if name in PARTS + OTHER_PARTS:
            link = f"({name}.md)"
        else:
            full_name = documented_names.get(id(value)) or f"{value.__module__}.{name}"
            link = f"[{full_name}]"
            if id(value) not in documented_names:
                own_entries += format_entry(full_name)
        lines.append(f"| [`cassi.{name}`]{link} | {summarize(value)} |")
    intro = "# Python\n\nThe names of `cassi` itself. Its parts have further names.\n\n"
    pages["reference/python.md"] = intro + "\n".join(lines) + "\n" + own_entries
    return pages


def format_entry(name: str) -> str:
    """Return the Markdown that mkdocstrings turns into the description of a name."""
    return f"\n::: {name}\n    options:\n      heading_level: 2\n"


def list_groups(defaults: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield group, filled key and default option of each item in Hydra's defaults."""
    for entry in defaults:
        # An item that is no mapping includes a file, and offers no choice.
        if not isinstance(entry, dict):
            continue
        ((key, choice),) = entry.items()
        if not key.startswith(("override", "optional")):
            group, _, target = key.partition("@")
            yield group, target or group, "null" if choice is None else str(choice)


def read_first_comment(text: str) -> str:
    """Return the comment at the beginning of a config file, as one line."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("# "):
            if lines:
                break
            continue
        lines.append(line[2:])
    return " ".join(lines)


def list_options(group: str) -> dict[str, Path]:
    """Return the config files of a group by option; files that are only included come last."""
    folder = ROOT / "conf" / group
    files = {str(f.relative_to(folder).with_suffix("")): f for f in folder.rglob("*.yaml")}
    return dict(sorted(files.items(), key=lambda item: (is_part(item[0]), item[0])))


def is_part(option: str) -> bool:
    """Tell whether an option is a file that only other options include."""
    return option.rpartition("/")[2].startswith("_")


def make_command_pages() -> dict[str, str]:
    """Return a page for each command, with its help, groups and values."""
    pages = {}
    for command in COMMANDS:
        text = (ROOT / "conf" / f"{command}.yaml").read_text()
        texts = yaml.safe_load((ROOT / f"conf/hydra/help/cassi_{command}.yaml").read_text())
        config: Node = yaml.safe_load(text)
        lines = [f"# cassi-{command}\n\n{texts['header']}\n\n```text\n{texts['footer']}\n```\n"]
        lines += ["## Groups\n\nChoose with `group=option`, set values with `key.value=…`.\n"]
        lines += ["| group | default | options |", "|---|---|---|"]
        for group, target, choice in list_groups(config["defaults"]):
            name = group if target == group else f"{group}@{target}"
            # Networks register their options when a command starts, so they have no folder.
            link, options = f"`{name}`", "a name of [Networks](networks.md), or a file"
            if (ROOT / "conf" / group).is_dir():
                link = f"[`{name}`](config_{group}.md)"
                options = " ".join(f"`{o}`" for o in list_options(group) if not is_part(o))
            lines.append(f"| {link} | `{choice}` | {options} |")
        lines += ["", "## Values", "", "```yaml", text.rstrip(), "```", ""]
        pages[f"reference/cassi-{command}.md"] = "\n".join(lines)
    return pages


def make_config_pages() -> dict[str, str]:
    """Return a page for each group of `conf`, with every option and its comments."""
    pages = {}
    for folder in sorted((ROOT / "conf").iterdir()):
        if not folder.is_dir() or folder.name in ("hydra", "__pycache__"):
            continue
        files = list_options(folder.name)
        lines = [f"# {folder.name}=", "", "| option | |", "|---|---|"]
        for name, file in files.items():
            if not is_part(name):
                comment = read_first_comment(file.read_text()).replace("|", "\\|")
                lines.append(f"| [`{name}`](#{make_anchor(name)}) | {comment} |")
        for name, file in files.items():
            lines += ["", f"## `{name}` {{#{make_anchor(name)}}}", "", "```yaml"]
            lines += [file.read_text().rstrip(), "```"]
        pages[f"reference/config_{folder.name}.md"] = "\n".join(lines) + "\n"
    return pages


def make_anchor(name: str) -> str:
    """Return a name as an anchor of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + "-yaml"
