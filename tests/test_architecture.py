"""The rules between the parts, checked on the source, and what importing the package costs."""

import ast
import graphlib
from functools import cache
from pathlib import Path

import pytest
from shared import python

from scripts.checks import structure

PACKAGE = Path(__file__).resolve().parents[1] / "cassi"
PARTS = {
    # part: the parts of cassi it may import, itself aside
    "ops": set(),
    "prior_protocols": set(),
    "pulled_prior": {"prior_protocols"},
    "systems": {"ops", "prior_protocols", "pulled_prior"},
    "priors": {"ops", "precision", "prior_protocols"},
    "smooth_windows": set(),
    "precision": set(),
    "solvers": {"smooth_windows", "precision", "prior_protocols"},
    "methods": {"solvers", "priors", "prior_protocols", "pulled_prior"},
    "models": {"solvers", "priors", "ops", "methods", "precision", "plugins"},
    "data": {"systems", "ops", "checks", "control_groups", "links"},
    "calibration": {"ops", "systems", "solvers", "smooth_windows", "camera"},
    "camera": {"systems"},
    "pipeline": {
        *("calibration", "camera", "guide_search", "methods", "priors"),
        *("solvers", "systems", "threads", "uncertainty"),
    },
    "guide_search": {"methods", "priors", "solvers", "systems"},
    "metrics": {"checks", "plugins"},
    "training": {"ops", "systems", "solvers", "data", "metrics"},
    "evaluation": {
        "data",
        "metrics",
        "ops",
        "pipeline",
        "plugins",
        "solvers",
        "systems",
        "uncertainty",
    },
    "uncertainty": {"solvers", "systems"},
    "viz": {"data"},
    "adapters": {"systems", "priors"},
    "config": {"plugins"},
    "plugins": set(),
    "checks": set(),
    "links": set(),
    "threads": {"control_groups"},
    "control_groups": set(),
    "shares": set(),
}
CONFIG_LIBRARIES = {"hydra", "omegaconf"}
SLOW = {
    *("matplotlib", "h5py", "lightning", "colour", "spectral", "scipy", "tifffile", "skimage"),
    *("tensorboard", "torchmetrics", "PIL", "xarray", "zarr", "pylops", "deepinv", "napari"),
}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@cache
def imports(path, top_level=False):
    """Return the dotted names a file imports; `from a import b` gives both a and a.b."""
    tree = tree_of(path)
    found = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if top_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if top_level and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        pending.extend(ast.iter_child_nodes(node))
    return found


def test_import_rules():
    for path in SOURCES:
        check_imports(path)
        check_top_level(path)


def check_imports(path):
    part = part_of(path)
    names = imports(path)
    inner = {name.split(".")[1] for name in names if name.startswith("cassi.")}
    if part in PARTS:
        known = {entry.stem for entry in PACKAGE.iterdir()}
        assert inner & known <= PARTS[part] | {part, "checks"}
    config_files = (
        "config.py",
        "apps/settings/read.py",
        "apps/settings/unknown.py",
        "apps/command.py",
        "apps/errors.py",
        "apps/camera/file.py",
    )
    config_files += ("apps/folders.py", "apps/evaluate/results.py", "apps/reconstruct/summary.py")
    config_files += tuple(
        f"apps/reconstructors/{name}.py" for name in ("compose", "names", "parts")
    )
    if path.relative_to(PACKAGE).as_posix() not in config_files:
        assert not {name.split(".")[0] for name in names} & CONFIG_LIBRARIES
    if path != PACKAGE / "ops" / "_library.py":
        assert "load_library" not in path.read_text()


def check_top_level(path):
    """Slow libraries are imported inside functions, or for annotations alone."""
    tops = {name.split(".")[0] for name in imports(path, top_level=True)}
    # Its classes derive from Lightning's; nothing that `import cassi` reaches imports them.
    allowed = {"lightning"} if part_of(path) == "training" else set()
    # What a library is to find is of its own classes.
    allowed |= set(path.with_suffix("").parts) if part_of(path) in ("adapters", "apps") else set()
    assert not tops & (SLOW - allowed)


def test_every_part_has_a_rule():
    parts = {part_of(path) for path in SOURCES} - {"__init__", "__main__", "apps", "reconstruction"}
    assert parts <= set(PARTS)


def file_of(name):
    """Return the file of the package that a dotted name stands for."""
    place = PACKAGE.parent.joinpath(*name.split("."))
    found = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def test_no_circle_of_files():
    # A name imported from a package stands for its own file where there is one, so that a package
    # and its parts, of which each needs another, are no circle.
    arrows = {}
    for path in SOURCES:
        names = imports(path)
        inner = {name for name in names if not any(n.startswith(f"{name}.") for n in names)}
        inner |= {name.rpartition(".")[0] for name in inner if file_of(name) is None}
        arrows[path] = {file for name in inner if (file := file_of(name)) not in (None, path)}
    graphlib.TopologicalSorter(arrows).prepare()  # raises, and names the files


def test_functions_fit_a_page():
    assert list(structure.find_long_functions()) == []
    assert structure.count_loose_types()["system: Any"] == 0


def test_few_functions_take_a_config():
    found = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                kinds = [ast.unparse(a.annotation) for a in node.args.args if a.annotation]
                found += [f"{path.name}:{node.name}"] * any("Config" in kind for kind in kinds)
    assert len(found) <= 10, found


@pytest.mark.parametrize(
    ("folder", "most"),
    [("cassi/apps", 12), ("cassi/models", 20), ("cassi/data", 18), ("scripts", 4)],
)
def test_folders_have_an_inner_order(folder, most):
    assert len(list((PACKAGE.parent / folder).glob("*.py"))) <= most


def test_import_is_cheap(tmp_path):
    """It loads no slow library; the package alone, and commands with a page, load no torch."""
    # Processor time, best of several: what the import costs, not what else the machine was doing.
    # An installed package has its bytecode; where none may be written, every import compiles.
    # What is before `start` is not written anew.
    code = f"""
import sys, time
import cassi.apps.live.command, cassi.apps.view.command, cassi.apps.view.server
from cassi.__main__ import main
sys.argv = ["cassi"]
main()
early = {{"torch"}} & sys.modules.keys()
import torch
sys.pycache_prefix, sys.dont_write_bytecode = {str(tmp_path)!r}, False
start = time.process_time()
from cassi import *
cost = time.process_time() - start
import cassi.viz
print(cost, *early, *({SLOW | CONFIG_LIBRARIES} & sys.modules.keys()))
"""
    costs = []
    for _ in range(5):
        printed = python("-c", code)
        cost, *slow = printed.splitlines()[-1].split()
        assert slow == []
        costs.append(float(cost))
        if min(costs) < 0.3:
            break
    assert min(costs) < 0.3


def test_torch_is_imported_by_the_job_of_a_command_alone(tmp_path):
    """Help, config and mistakes in options need no torch, where no network is chosen."""
    code = f"""
import sys
from importlib import import_module
from cassi.__main__ import COMMANDS
commands = {{name: module for name, (module, _) in COMMANDS.items() if name != "train"}}
for name, module in commands.items():
    views = [["--help"]] if name in ("live", "view") else [["--help"], ["--cfg", "job"], ["sede=1"]]
    for words in [*views, ["--version"]]:
        sys.argv = [f"cassi-{{name}}", *words]
        try:
            import_module(module).main()
        except SystemExit as end:
            assert end.code == 2 * (words == ["sede=1"]) or end.code is None, (name, words)
        assert "torch" not in sys.modules, (name, words)
sys.argv = ["cassi-reconstruct", "solver.iterations=2", "hydra.run.dir={tmp_path}"]
import_module(commands["reconstruct"]).main()
assert "torch" in sys.modules
slow = {SLOW | {"sympy"}} - {{"PIL", "tifffile"}}
assert not slow & sys.modules.keys(), slow & sys.modules.keys()
"""
    python("-c", code)
    assert (tmp_path / "bands.png").exists()
