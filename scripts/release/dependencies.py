"""List the packages that an installation of cassi adds to torch, numpy and scipy.

    python -m scripts.release.dependencies    # with the python of a fresh environment

The size in megabytes and the licence of each package are printed. The exit status is 1 if a licence
is copyleft or not stated, or if all packages together exceed `MAX_MEGABYTES`.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

# Largest size of all packages together, on disk.
MAX_MEGABYTES = 120
BASE_PACKAGES = ("torch", "numpy", "scipy")
# The licence MPL of tqdm is allowed, because it only covers changes of tqdm's own files.
COPYLEFT = re.compile(r"GPL|EUPL|CeCILL|CC-BY-SA|OSL|European Union|Affero|General Public", re.I)


def add_requirements(name: str, packages: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add a distribution and all that it requires to `packages`, by normalized name."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in packages:
        return packages
    # A package that is only required on another system, or by another Python, is not installed.
    try:
        packages[key] = distribution(name)
    except PackageNotFoundError:
        return packages
    for line in packages[key].requires or ():
        requirement, _, marker = line.partition(";")
        if "extra" not in marker and (match := re.match(r"[\w.-]+", requirement)):
            add_requirements(match[0], packages)
    return packages


def read_licence(package: Distribution) -> str:
    """Return the licence in the metadata of a package, in one line; "" if it states none."""
    metadata = package.metadata
    classifiers = [
        line for line in metadata.get_all("Classifier") or () if line.startswith("License :: OSI")
    ]
    # The fields are tried from the most exact one on. The last, License, may have the whole text.
    texts = [
        *(metadata.get_all("License-Expression") or ()),
        "; ".join(line.rpartition(" :: ")[2] for line in classifiers),
        *(metadata.get_all("License") or ()),
    ]
    return next(filter(None, texts), "").strip().partition("\n")[0]


def measure_megabytes(package: Distribution) -> float:
    """Return the size of a distribution's files, without Python's compiled files."""
    files = [file for file in package.files or () if file.suffix != ".pyc"]
    paths = [Path(str(package.locate_file(file))) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def main() -> int:
    """Print the table, and the faults on the error stream."""
    base: dict[str, Distribution] = {}
    for name in BASE_PACKAGES:
        add_requirements(name, base)
    packages = add_requirements("cassi", {})
    rows = [
        (measure_megabytes(package), name, read_licence(package))
        for name, package in packages.items()
        if name not in base and name != "cassi"
    ]
    for size, name, terms in sorted(rows, reverse=True):
        print(f"{size:7.1f} MB  {name:24} {terms or 'not stated'}")
    total = sum(size for size, _, _ in rows)
    print(f"{total:7.1f} MB  in {len(rows)} packages beside {', '.join(BASE_PACKAGES)} and theirs")
    faults = [f"{name}: {terms or 'no licence stated'}" for _, name, terms in rows
              if not terms or COPYLEFT.search(terms)]  # fmt: skip
    if total > MAX_MEGABYTES:
        faults.append(f"more than {MAX_MEGABYTES} MB")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
