"""Write the reference pages of the documentation site: Python names, commands and config groups.

Nothing of the package is imported: names are taken from its syntax trees, commands from `conf`. A
function of pages returns a dictionary from a path in the site to Markdown.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

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
FURTHER = ("evaluation", "uncertainty", "viz", "training")
COMMANDS = ("reconstruct", "train", "evaluate", "calibrate", "camera", "export")
Node = dict[str, Any]


def exported(module: Path) -> list[str]:
    """Return the names in `__all__` of a module, in the order of the file; none gives []."""
    for node in ast.parse(listing(module).read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return []


def defined(module: Path) -> list[str]:
    """Return the public functions and classes that a module defines."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(module.read_text()).body
    return [n.name for n in body if isinstance(n, definitions) and not n.name.startswith("_")]


def sources(module: Path) -> dict[str, str]:
    """Return where each name that a module imports comes from, as a dotted name."""
    tree = ast.walk(ast.parse(listing(module).read_text()))  # some are there for types alone
    imports = [node for node in tree if isinstance(node, ast.ImportFrom)]
    inside = ".".join(module.parent.relative_to(ROOT).parts)
    return {
        alias.asname or alias.name: ".".join(
            filter(None, (inside * node.level, node.module, alias.name))
        )
        for node in imports
        for alias in node.names
    }


def listing(module: Path) -> Path:
    """Return the file that lists the names of a module: the stub of a package, if it has one."""
    stub = module.with_suffix(".pyi")
    return stub if stub.exists() else module


def file_of(module: str) -> Path:
    """Return the file of a dotted module name."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def summary(name: str) -> str:
    """Return the first line of the docstring of a dotted name of the package."""
    if file_of(name).exists():
        return (ast.get_docstring(ast.parse(file_of(name).read_text())) or "").partition("\n")[0]
    module, _, last = name.rpartition(".")
    for node in ast.parse(file_of(module).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return summary(sources(file_of(module))[last])


def public_names(part: str) -> list[str]:
    """Return the dotted public names of a part: `__all__`, or what its public modules define."""
    folder = ROOT / "cassi" / part
    names = exported(folder / "__init__.py")
    if names:
        return [f"cassi.{part}.{name}" for name in names]
    modules = sorted(m for m in folder.glob("*.py") if not m.stem.startswith("_"))
    return [f"cassi.{part}.{module.stem}.{name}" for module in modules for name in defined(module)]


def python_pages() -> dict[str, str]:
    """One page for each part of the package, and one of what `import cassi` gives at once."""
    pages = {}
    for part in PARTS + FURTHER:
        head = f"---\ntitle: cassi.{part}\n---\n\n::: cassi.{part}\n    options:\n"
        head += "      heading_level: 1\n      members: false\n      show_root_full_path: true\n"
        pages[f"reference/{part}.md"] = head + "".join(map(entry, public_names(part)))
    package = ROOT / "cassi" / "__init__.py"
    listed = {name for part in PARTS + FURTHER for name in public_names(part)}
    lines, elsewhere = ["| name | |", "|---|---|"], ""
    for name in exported(package):
        origin = sources(package)[name]
        link = f"({name}.md)" if name in PARTS + FURTHER else f"[{origin}]"
        lines.append(f"| [`cassi.{name}`]{link} | {summary(origin)} |")
        if name not in PARTS + FURTHER and origin not in listed:
            elsewhere += entry(origin)
    intro = "# Python\n\nWhat `import cassi` gives at once; the parts have more.\n\n"
    pages["reference/python.md"] = intro + "\n".join(lines) + "\n" + elsewhere
    return pages


def entry(name: str) -> str:
    """Return the Markdown that mkdocstrings turns into the description of a name."""
    return f"\n::: {name}\n    options:\n      heading_level: 2\n"


def groups_of(defaults: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield group, the key it fills, and the default choice of a list of Hydra defaults."""
    for entry in defaults:
        if not isinstance(entry, dict):
            continue
        ((key, choice),) = entry.items()
        if not key.startswith(("override", "optional")):
            group, _, place = key.partition("@")
            yield group, place or group, "null" if choice is None else str(choice)


def first_comment(text: str) -> str:
    """Return the comment that a config file begins with, as one line."""
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


def options_of(group: str) -> dict[str, Path]:
    """Return the config files of a group by option, those that only others are made of last."""
    folder = ROOT / "conf" / group
    files = {str(f.relative_to(folder).with_suffix("")): f for f in folder.rglob("*.yaml")}
    return dict(sorted(files.items(), key=lambda item: (is_part(item[0]), item[0])))


def is_part(option: str) -> bool:
    """Tell whether only other options are made of it."""
    return option.rpartition("/")[2].startswith("_")


def command_pages() -> dict[str, str]:
    """One page for each command: its help, its groups, its values."""
    pages = {}
    for command in COMMANDS:
        text = (ROOT / "conf" / f"{command}.yaml").read_text()
        texts = yaml.safe_load((ROOT / f"conf/hydra/help/cassi_{command}.yaml").read_text())
        config: Node = yaml.safe_load(text)
        lines = [f"# cassi-{command}\n\n{texts['header']}\n\n```text\n{texts['footer']}\n```\n"]
        lines += ["## Groups\n\nChoose with `group=option`, set values with `key.value=…`.\n"]
        lines += ["| group | default | options |", "|---|---|---|"]
        for group, place, choice in groups_of(config["defaults"]):
            name = group if place == group else f"{group}@{place}"
            options = [f"`{name}`" for name in options_of(group) if not is_part(name)]
            known = (ROOT / "conf" / group).is_dir()
            link = f"[`{name}`](config_{group}.md)" if known else f"`{name}`"
            listed = " ".join(options) if known else "a name of [Networks](networks.md), or a file"
            lines.append(f"| {link} | `{choice}` | {listed} |")
        lines += ["", "## Values", "", "```yaml", text.rstrip(), "```", ""]
        pages[f"reference/cassi-{command}.md"] = "\n".join(lines)
    return pages


def config_pages() -> dict[str, str]:
    """One page for each group of `conf`: every option with its comments."""
    pages = {}
    for folder in sorted((ROOT / "conf").iterdir()):
        if not folder.is_dir() or folder.name in ("hydra", "__pycache__"):
            continue
        files = options_of(folder.name)
        lines = [f"# {folder.name}=", "", "| option | |", "|---|---|"]
        for name, file in files.items():
            if not is_part(name):
                comment = first_comment(file.read_text()).replace("|", "\\|")
                lines.append(f"| [`{name}`](#{anchor(name)}) | {comment} |")
        for name, file in files.items():
            lines += ["", f"## `{name}` {{#{anchor(name)}}}", "", "```yaml"]
            lines += [file.read_text().rstrip(), "```"]
        pages[f"reference/config_{folder.name}.md"] = "\n".join(lines) + "\n"
    return pages


def anchor(name: str) -> str:
    """Return a name as an anchor of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + "-yaml"
