"""Mutate a package at random places and count the mutants that its tests notice.

Prints ``killed/total`` with its 95 % interval and the change of every mutant that survived::

    python scripts/run_mutations.py --package systems --sample 60 --seed 0 --out systems.jsonl

The mutants are cosmic-ray's. Three things differ from running that tool alone. They are made in a
copy of the tree, so that nobody who uses the checkout at the same time sees one. Of the thousands
that a package has a random sample is tested. And each is tested in a fork of this process, which
has imported torch already: that is most of the time of a test run that fails at once. Only the test
files that know a module are asked (`KNOWN_BY`), without tests marked slow or named by `SKIPPED`: a
lower bound. A mutant that takes three times the processor time of all tests is killed by that.

``--out`` keeps the results, and a second run goes on where the first one ended. ``--mutant TEXT``
tests those alone whose name contains a text, to see whether a new test kills them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("metrics", "systems", "ops")
# The list that drives the operator tests: a mutant of it is another test, not a fault.
LISTS = frozenset({"examples.py"})
# What compiles, or starts interpreters of its own, which would import the unmutated package.
SKIPPED = "not compiles and not instruction and not huge_calls and not fuzz and not learned"
# Tests that know a module, beside those in the file of its name.
KNOWN_BY = {
    "error": ("checks", "presets"),
    "structural": ("presets", "checks"),
    "spectral": ("checks",),
    "presets": ("error", "structural"),
    "arguments": ("sd_cassi", "dd_cassi", "offsets"),
    "base": ("sd_cassi", "parts", "conjugate", "systems"),
    "blue_noise": ("patterns",),
    "blur": ("blurred", "systems"),
    "blurred": ("systems",),
    "dd_cassi": ("systems",),
    "glass": ("curves",),
    "learnable": ("patterns",),
    "sd_cassi": ("offsets", "parts", "mask_per_sample", "systems"),
    "shifted_masks": ("patterns",),
    "warp": ("warped", "systems"),
    "warped": ("systems",),
    "camera": ("forward_adjoint", "data_step", "validation", "gradients", "transforms"),
    "checks": ("validation", "tv", "tv_dual", "taps"),
    "library": ("transforms", "gradients", "signal_torch"),
    "reference": ("forward_adjoint", "data_step", "gradients", "compiled", "compiled_camera"),
    "reference_signal": ("signal", "signal_torch", "compiled_signal"),
    "reference_taps": ("taps", "compiled_camera", "gradients"),
    "reference_tv": ("tv", "tv_dual", "compiled_tv", "gradients"),
    "signal": ("signal_torch", "transforms"),
    "taps": ("gradients", "transforms", "library"),
    "tv": ("tv_dual", "gradients", "transforms", "compiled_tv"),
}
UNMUTATED, FOREIGN = 0, 99


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """What results and `--mutant` call it."""
        return f"{self.path}:{self.line}:{self.operator}:{self.occurrence}"


def copy_tree(scratch: Path) -> Path:
    """Copy what git knows or would add, configs and bundled data where a wheel has them."""
    tree = scratch / "tree"
    parts = ("cassi", "tests", "conf", "data", "scripts", "pyproject.toml")
    listing = ("git", "ls-files", "-co", "--exclude-standard", "-z", *parts)
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    (tree / "cassi" / "conf").symlink_to("../conf")
    (tree / "cassi" / "bundled").mkdir()
    (tree / "cassi" / "bundled" / "data").symlink_to("../../data")
    return tree


def find_libraries() -> str:
    """Return the folder of the compiled operators, which an editable install keeps elsewhere."""
    folders = (ROOT / "cassi/ops", Path(sysconfig.get_paths()["purelib"]) / "cassi/ops")
    return next((str(folder) for folder in folders if (folder / "_cpu.so").is_file()), "")


def _annotations(source: str) -> set[int]:
    """Return the lines of annotations with operators, which are no arithmetic."""
    places: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        hints = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for hint in filter(None, hints):
            for part in ast.walk(hint):
                if isinstance(part, ast.BinOp):
                    places.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return places


def list_mutants(tree: Path, package: str) -> list[Mutant]:
    """Return every mutant of a package, without those of ``|`` in annotations, in a fixed order."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    operators = [(name, plugins.get_operator(name)) for name in sorted(plugins.operator_names())]
    mutants = []
    for path in sorted((tree / "cassi" / package).glob("*.py")):
        if path.name in LISTS:
            continue
        source = path.read_text(encoding="utf-8")
        hints, nodes = _annotations(source), list(ast_nodes(get_ast(source)))
        for name, make in operators:
            if make.arguments():
                continue
            operator = make()
            places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, (line, _) in enumerate(places):
                if not ("BitOr" in name and line in hints):
                    short = name.removeprefix("core/")
                    relative = str(path.relative_to(tree))
                    mutants.append(Mutant(relative, short, occurrence, line))
    return mutants


def mutate(source: str, mutant: Mutant) -> str:
    """Return the source with one change."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    changed = mutate_code(
        source, plugins.get_operator(f"core/{mutant.operator}")(), mutant.occurrence
    )
    if changed is None:
        raise ValueError(f"{mutant.name}: there is no such place")
    return str(changed)


def find_tests(tree: Path, package: str, path: str) -> list[str]:
    """Return the test files that know a module, all of the package if none is named for it."""
    folder = tree / "tests" / package
    stem = Path(path).stem.strip("_")
    own = stem.removesuffix("_api")
    names = dict.fromkeys([stem, own, *KNOWN_BY.get(own, ())])
    files = [folder / f"test_{name}.py" for name in names]
    known = [file for file in files if file.is_file()]
    return [str(file) for file in known or sorted(folder.glob("test_*.py"))]


def run_tests(tree: Path, files: list[str], limit: float, keep: bool = False) -> tuple[int, float]:
    """Run tests on the copy in a fork; return the exit status, or the signal, and CPU seconds."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        _test_copy(tree, files, keep)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _test_copy(tree: Path, files: list[str], keep: bool) -> None:
    code = 1
    try:
        os.chdir(tree)
        log = os.open(tree.parent / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Without the finder of an editable install, which would lead back to the checkout.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
        sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() != ROOT)]
        os.environ["CASSI_LIBRARY_DIR"] = find_libraries()
        # Mutants leave no bytecode; that of the unmutated run serves all of them.
        sys.dont_write_bytecode = not keep
        spec = importlib.util.find_spec("cassi")
        if spec is None or not str(spec.origin).startswith(str(tree)):
            os._exit(FOREIGN)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000", "-m", "not slow"]
        code = int(pytest.main([*options, "-k", SKIPPED, *files]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def interval(killed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion."""
    z, p = 1.96, killed / total
    middle, width = (
        p + z * z / (2 * total),
        z * math.sqrt(p * (1 - p) / total + (z / total) ** 2 / 4),
    )
    return (middle - width) / (1 + z * z / total), (middle + width) / (1 + z * z / total)


def try_mutants(
    tree: Path, package: str, mutants: list[Mutant], limit: float
) -> Iterator[dict[str, object]]:
    """Test each mutant; yield its record. The file is as it was after each."""
    for mutant in mutants:
        path = tree / mutant.path
        source = path.read_text(encoding="utf-8")
        changed = mutate(source, mutant)
        path.write_text(changed, encoding="utf-8")
        try:
            files = find_tests(tree, package, mutant.path)
            status, seconds = run_tests(tree, files, limit)
        finally:
            path.write_text(source, encoding="utf-8")
        if status == FOREIGN:
            raise RuntimeError(f"expected the tests to import the copy in {tree}")
        lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
        diff = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
        yield {
            "mutant": mutant.name,
            "killed": status != UNMUTATED,
            "status": status,
            "seconds": round(seconds, 1),
            "diff": diff,
        }


def main() -> None:
    """Sample, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--package", choices=PACKAGES, required=True)
    parser.add_argument("--sample", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--out", type=Path, help="a JSON line for each mutant tested")
    parser.add_argument("--mutant", default="", help="only those whose name contains this")
    options = parser.parse_args()
    import torch  # noqa: F401

    known: dict[str, dict[str, object]] = {}
    if options.out and options.out.exists():
        lines = options.out.read_text(encoding="utf-8").splitlines()
        known = {record["mutant"]: record for record in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder).resolve())
        everything = list_mutants(tree, options.package)
        sample = random.Random(options.seed).sample(
            everything, min(options.sample, len(everything))
        )
        sample = [mutant for mutant in sample if options.mutant in mutant.name]
        untested = [mutant for mutant in sample if mutant.name not in known or options.mutant]
        files = find_tests(tree, options.package, "")
        status, seconds = run_tests(tree, files, 1e6, keep=True)
        if status != UNMUTATED:
            log = (tree.parent / "tests.log").read_text(encoding="utf-8")
            sys.exit(f"expected the unmutated tests to pass, got status {status}\n{log[-2000:]}")
        print(
            f"{len(everything)} mutants; the unmutated tests take {seconds:.0f} s of a core",
            flush=True,
        )
        for record in try_mutants(tree, options.package, untested, 3 * seconds + 30):
            known[str(record["mutant"])] = record
            print("killed  " if record["killed"] else "SURVIVED", record["mutant"], flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    records = [known[mutant.name] for mutant in sample]
    for record in records:
        if not record["killed"]:
            print(record["mutant"], *record["diff"], sep="\n  ")  # type: ignore[misc]
    killed = sum(bool(record["killed"]) for record in records)
    low, high = interval(killed, len(records))
    print(f"{options.package}: {killed}/{len(records)} killed, {low:.0%} to {high:.0%} of all")


if __name__ == "__main__":
    main()
