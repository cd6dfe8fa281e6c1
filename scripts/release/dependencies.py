"""List what an install of cassi brings beside torch, numpy and scipy: megabytes and licences.

    python -m scripts.release.dependencies    # with the python of a fresh environment

Status 1: a licence is copyleft or not stated, or all of it exceeds the limit.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

LIMIT = 120
"""Megabytes on disk."""
GIVEN = ("torch", "numpy", "scipy")
COPYLEFT = re.compile(r"GPL|EUPL|CeCILL|CC-BY-SA|OSL|European Union|Affero|General Public", re.I)
"""The MPL of tqdm is not among them: it holds for changes of the files themselves."""


def requirements(name: str, seen: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add the distribution of this name to those seen, and all that it requires."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    try:
        seen[key] = distribution(name)
    except PackageNotFoundError:  # of another system or Python
        return seen
    for line in seen[key].requires or ():
        requirement, _, marker = line.partition(";")
        if "extra" not in marker and (found := re.match(r"[\w.-]+", requirement)):
            requirements(found[0], seen)
    return seen


def licence(package: Distribution) -> str:
    """Return the licence that the metadata state, in a line; empty where they state none."""
    about = package.metadata
    kinds = [
        line for line in about.get_all("Classifier") or () if line.startswith("License :: OSI")
    ]
    listed = "; ".join(line.rpartition(" :: ")[2] for line in kinds)
    stated = [
        *(about.get_all("License-Expression") or ()),
        listed,
        *(about.get_all("License") or ()),
    ]
    return next(filter(None, stated), "").strip().partition("\n")[0]


def megabytes(package: Distribution) -> float:
    """Return the size of a distribution's files, without what Python compiles."""
    files = [file for file in package.files or () if file.suffix != ".pyc"]
    paths = [Path(str(package.locate_file(file))) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def main() -> int:
    """Print the table and what is wrong with it."""
    given: dict[str, Distribution] = {}
    for name in GIVEN:
        requirements(name, given)
    wanted = requirements("cassi", {})
    rows = [
        (megabytes(package), name, licence(package))
        for name, package in wanted.items()
        if name not in given and name != "cassi"
    ]
    for size, name, terms in sorted(rows, reverse=True):
        print(f"{size:7.1f} MB  {name:24} {terms or 'not stated'}")
    total = sum(size for size, _, _ in rows)
    print(f"{total:7.1f} MB  in {len(rows)} packages beside {', '.join(GIVEN)} and theirs")
    faults = [f"{name}: {terms or 'no licence stated'}" for _, name, terms in rows
              if not terms or COPYLEFT.search(terms)]  # fmt: skip
    if total > LIMIT:
        faults.append(f"more than {LIMIT} MB")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
