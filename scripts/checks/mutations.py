"""Change a package at random places, and count the changes that its tests notice.

    python -m scripts.checks.mutations metrics                       # a sample of 60
    python -m scripts.checks.mutations systems --sample 200 --seed 1
    mutmut browse                                                    # look at those that survived

mutmut makes the mutants (`[tool.mutmut]` in pyproject.toml), in the folder `mutants`, and runs the
tests that reach each of them. Two things are added: a random sample is taken of the thousands, and
the finder of an editable install is left out, which would lead past the mutants. Mutants are of
functions without decorators; tests marked slow, and those that compile, are not asked: the share is
a lower bound.
"""

import argparse
import json
import math
import os
import random
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SURVIVED, UNTESTED = 0, 33  # statuses of mutmut
PACKAGES = ("metrics", "systems", "ops", "priors", "solvers")


def interval(killed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion."""
    z, p = 1.96, killed / total
    middle = p + z * z / (2 * total)
    width = z * math.sqrt(p * (1 - p) / total + (z / total) ** 2 / 4)
    return (middle - width) / (1 + z * z / total), (middle + width) / (1 + z * z / total)


def read_results(package: str) -> dict[str, int | None]:
    """Return the exit status of the tests of every mutant of a package; None: not tried yet."""
    found: dict[str, int | None] = {}
    for file in sorted((ROOT / "mutants/cassi" / package).rglob("*.meta")):
        found |= json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def main() -> None:
    """Sample, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--sample", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    options = parser.parse_args()

    os.chdir(ROOT)
    # An editable install keeps the compiled operators elsewhere, and its finder leads there first.
    libraries = Path(sysconfig.get_paths()["purelib"]) / "cassi/ops"
    os.environ.setdefault("CASSI_LIBRARY_DIR", str(libraries))
    sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT]
    from mutmut import __main__ as mutmut
    from mutmut.configuration import config

    config().only_mutate = [f"cassi/{options.package}/*"]
    config().pytest_add_cli_args_test_selection = [f"tests/{options.package}"]
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(options.jobs)
    everything = sorted(read_results(options.package))
    sample = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))
    mutmut.cli(["run", "--max-children", str(options.jobs), *sample], standalone_mode=False)

    results = read_results(options.package)
    alive = [name for name in sample if results[name] in (SURVIVED, UNTESTED)]
    for name in alive:
        mutmut.cli(["show", name], standalone_mode=False)
    killed = len(sample) - len(alive)
    low, high = interval(killed, len(sample))
    print(f"{len(everything)} mutants in all, {killed}/{len(sample)} of the sample killed, "
          f"{low:.0%} to {high:.0%} of all")  # fmt: skip


if __name__ == "__main__":
    main()
