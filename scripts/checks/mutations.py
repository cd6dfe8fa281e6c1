"""Mutate a package at random places and count the mutants that its tests notice.

Prints ``killed/total`` with its 95 % interval and the change of every mutant that survived::

    python scripts/checks/mutations.py --package systems --sample 60 --seed 0 --out systems.jsonl

The mutants are cosmic-ray's. Three things differ from running that tool alone. Of the thousands
that a package has a random sample is tested. Each is tested in a fork of this process, which has
imported torch already: that is most of the time of a test run that fails at once. And no file ever
changes: the fork's import of the module finds the mutated source. Only the test files that know a
module are asked (`KNOWN_BY`), without tests marked slow or named by `SKIPPED`: a lower bound. A
mutant whose tests take more than `--limit` seconds of a core is killed by that.

``--out`` keeps the results, and a second run goes on where the first one ended. ``--mutant TEXT …``
tests those alone whose names contain a text, to see whether a new test kills them. ``--trust``
spares the run of the unmutated tests.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
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
from collections.abc import Iterator, Mapping
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.checks.mutants import Mutant, list_mutants, mutate  # noqa: E402

PACKAGES = ("metrics", "systems", "ops")
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
    "reference_signal": ("signal", "compiled", "signal_torch", "compiled_signal"),
    "reference_taps": ("taps", "compiled", "compiled_camera"),
    "reference_tv": ("tv", "compiled", "tv_dual", "compiled_tv"),
    "signal": ("signal_torch", "transforms"),
    "taps": ("gradients", "transforms", "library"),
    "tv": ("tv_dual", "gradients", "transforms", "compiled_tv"),
}
# What tests import, beside the package.
PRELOADED = ("torch", "torch._dynamo", "pytest", "numpy", "scipy.ndimage", "skimage.metrics")
UNMUTATED, NOT_MET = 0, 99


def copy_tree(scratch: Path) -> Path:
    """Copy what git knows or would add: the sample is one of a tree that stays as it is."""
    tree = scratch / "tree"
    parts = ("cassi", "tests", "pyproject.toml")
    listing = ("git", "ls-files", "-co", "--exclude-standard", "-z", *parts)
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    # With the times of the files copied, their bytecode serves the copy.
    for part in ("cassi", "tests"):
        for cache in (ROOT / part).rglob("__pycache__"):
            shutil.copytree(cache, tree / cache.relative_to(ROOT), dirs_exist_ok=True)
    return tree


def find_libraries() -> str:
    """Return the folder of the compiled operators, which an editable install keeps elsewhere."""
    folders = (ROOT / "cassi/ops", Path(sysconfig.get_paths()["purelib"]) / "cassi/ops")
    return next((str(folder) for folder in folders if (folder / "_cpu.so").is_file()), "")


def find_tests(tree: Path, package: str, path: str) -> list[str]:
    """Return the test files that know a module, all of the package if none is named for it."""
    folder = tree / "tests" / package
    stem = Path(path).stem.strip("_")
    own = stem.removesuffix("_api")
    names = dict.fromkeys([stem, own, *KNOWN_BY.get(own, ())])
    files = [folder / f"test_{name}.py" for name in names]
    known = [file for file in files if file.is_file()]
    return [str(file) for file in known or sorted(folder.glob("test_*.py"))]


def start_tests(
    tree: Path, files: list[str], limit: int, mutant: Mutant | None, source: str
) -> int:
    """Run tests on the copy in a fork, one module with another source; return the fork's number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        os.chdir(tree)
        log = os.open(tree.parent / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Without the finder of an editable install, which would lead back to the checkout.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
        sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() != ROOT)]
        sys.dont_write_bytecode = True
        os.environ["CASSI_LIBRARY_DIR"] = find_libraries()
        changed = str(tree / mutant.path) if mutant else ""
        read = SourceFileLoader.get_code
        compiled: list[str] = []

        def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
            if self.path != changed:
                return read(self, name)
            compiled.append(name)
            return compile(source, changed, "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000", "-m", "not slow"]
        code = int(pytest.main([*options, "-k", SKIPPED, *files]))
        if changed and code == UNMUTATED and not compiled:
            code = NOT_MET
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait_for(children: Mapping[int, object]) -> tuple[int, int, float]:
    """Wait for one of several forks: its number, exit status or signal, seconds of a core."""
    child, status, usage = os.wait3(0)
    while child not in children:
        child, status, usage = os.wait3(0)
    return child, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def interval(killed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion."""
    z, p = 1.96, killed / total
    middle, width = (
        p + z * z / (2 * total),
        z * math.sqrt(p * (1 - p) / total + (z / total) ** 2 / 4),
    )
    return (middle - width) / (1 + z * z / total), (middle + width) / (1 + z * z / total)


def try_mutants(
    tree: Path, package: str, mutants: Mapping[Mutant, str], limit: int, jobs: int
) -> Iterator[dict[str, object]]:
    """Test several mutants at a time; yield the record of each when it is done."""
    waiting = list(mutants.items())
    running: dict[int, tuple[Mutant, list[str]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant, changed = waiting.pop(0)
            source = (tree / mutant.path).read_text(encoding="utf-8")
            files = find_tests(tree, package, mutant.path)
            lines = difflib.unified_diff(
                source.splitlines(), changed.splitlines(), n=0, lineterm=""
            )
            diff = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
            running[start_tests(tree, files, limit, mutant, changed)] = (mutant, diff)
        child, status, seconds = wait_for(running)
        mutant, diff = running.pop(child)
        yield {
            "mutant": mutant.name,
            "killed": status not in (UNMUTATED, NOT_MET),
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
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--mutant", nargs="+", default=[], help="only those whose names hold these")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a core for a mutant")
    parser.add_argument("--trust", action="store_true", help="that the unmutated tests pass")
    options = parser.parse_args()
    known: dict[str, dict[str, object]] = {}
    if options.out and options.out.exists():
        lines = options.out.read_text(encoding="utf-8").splitlines()
        known = {record["mutant"]: record for record in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder).resolve())
        everything = list_mutants(tree, options.package)
        count = min(options.sample, len(everything))
        sample = {
            mutant: changed
            for mutant in random.Random(options.seed).sample(everything, count)
            if any(text in mutant.name for text in options.mutant or [""])
            and (changed := mutate((tree / mutant.path).read_text(encoding="utf-8"), mutant))
        }
        print(f"{len(everything)} mutants, {len(sample)} of them in the sample", flush=True)
        untested = {m: c for m, c in sample.items() if m.name not in known or options.mutant}
        for name in PRELOADED:
            importlib.import_module(name)
        if untested and not options.trust:
            files = {f for m in untested for f in find_tests(tree, options.package, m.path)}
            child = start_tests(tree, sorted(files), 100 * options.limit, None, "")
            if wait_for({child: None})[1] != UNMUTATED:
                log = (tree.parent / f"{child}.log").read_text(encoding="utf-8")
                sys.exit(f"expected the unmutated tests to pass\n{log[-2000:]}")
        for record in try_mutants(tree, options.package, untested, options.limit, options.jobs):
            known[str(record["mutant"])] = record
            print("killed  " if record["killed"] else "SURVIVED", record["mutant"], flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    records = [known[mutant.name] for mutant in sample]
    alive = [record for record in records if not record["killed"]]
    for record in alive:
        print(record["mutant"], *record["diff"], sep="\n  ")  # type: ignore[misc]
    killed = len(records) - len(alive)
    low, high = interval(killed, len(records))
    print(f"{options.package}: {killed}/{len(records)} killed, {low:.0%} to {high:.0%} of all")


if __name__ == "__main__":
    main()
