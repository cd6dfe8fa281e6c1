"""Leave out each barrier of the CUDA kernels in turn, and list which of them the tests notice.

    make emulate && python -m scripts.checks.barriers          # all: a quarter of an hour
    python -m scripts.checks.barriers data_step.cu adjoint.cu:66

The kernels run on the CPU (csrc/emulated), their threads in ascending, descending and shuffled
order. Prints a table, one row a barrier, and exits with status 1 where one is not noticed: it is
not needed, or a test is missing.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "emulated"
ORDERS = ("descending", "shuffled", "ascending")
TESTS = ("emulated_cases.py", "test_compiled_tv.py", "test_compiled_camera.py", "test_compiled.py")


def find_barriers() -> list[str]:
    """Return where `__syncthreads` is called, as FILE:LINE."""
    return [
        f"{path.name}:{number}"
        for path in sorted((ROOT / "csrc" / "cuda").glob("*.cu*"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b__syncthreads\(\)", line)
    ]


def first_failure(barrier: str, order: str) -> str | None:
    """Return the first test that fails without a barrier, or None."""
    settings = {"ORDER": order, "SKIP": barrier}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-k", "not row_sums and not column_tiles and not larger_than and not instruction"]
    result = subprocess.run(
        command + [f"tests/ops/{name}" for name in TESTS],
        cwd=ROOT,
        env=os.environ
        | {"CASSI_LIBRARY_DIR": str(LIBRARY), "OMP_NUM_THREADS": "1"}
        | {f"CASSI_EMULATED_{name}": value for name, value in settings.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        return None
    found = re.search(r"^FAILED \S+::(\S+)", result.stdout, re.MULTILINE)
    return found[1] if found else f"status {result.returncode}"


def main() -> None:
    """Leave out, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="*", help="FILE or FILE:LINE")
    options = parser.parse_args()
    if not (LIBRARY / "_cpu.so").exists():
        parser.error(f"there is no {LIBRARY / '_cpu.so'}: run `make emulate`")
    if failure := first_failure("", "ascending"):
        parser.error(f"with all barriers, {failure} fails")
    barriers = [
        barrier
        for barrier in find_barriers()
        if not options.only or barrier in options.only or barrier.split(":")[0] in options.only
    ]
    missed = 0
    print(f"{'barrier':28}{'order':12}first test that fails without it")
    for barrier in barriers:
        for order in ORDERS:
            if failure := first_failure(barrier, order):
                print(f"{barrier:28}{order:12}{failure}", flush=True)
                break
        else:
            missed += 1
            print(f"{barrier:28}{'any':12}none", flush=True)
    print(f"{len(barriers) - missed} of {len(barriers)} are noticed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
