"""Build the CPU library with other compilers: clang, and GCC for 64-bit ARM.

    python -m scripts.checks.compilers [COMPILER …]

Each library is built in `build/compilers/COMPILER`. A compiler that is not installed is named and
left out. With `CASSI_LIBRARY_DIR` the package loads the library of a folder, so the tests can run
with it:

    CASSI_LIBRARY_DIR=build/compilers/clang++ pytest tests/ops
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("clang++", "aarch64-linux-gnu-g++")


def build(compiler: str) -> str:
    """Build with a compiler; return the outcome in a word, with the errors if it failed."""
    if shutil.which(compiler) is None:
        return "not installed, left out"
    folder = ROOT / "build" / "compilers" / compiler
    options = [f"-DCMAKE_CXX_COMPILER={compiler}", f"-DPython_EXECUTABLE={sys.executable}"]
    # CMake cannot tell from the compiler that the library is for another processor.
    if "-linux-" in compiler:
        processor = compiler.partition("-linux-")[0]
        options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
    for command in (["-S", str(ROOT), "-B", str(folder), *options], ["--build", str(folder), "-j"]):
        environment = os.environ | {"FORCE_CUDA": "0"}
        words = ["cmake", *command]
        process = subprocess.run(
            words, capture_output=True, text=True, env=environment, check=False
        )
        if process.returncode:
            return f"failed\n{(process.stdout + process.stderr)[-4000:]}"
    return f"built, {(folder / '_cpu.so').stat().st_size / 2**20:.1f} MiB"


def main() -> int:
    """Print a line for each compiler."""
    outcomes = {compiler: build(compiler) for compiler in sys.argv[1:] or COMPILERS}
    for compiler, text in outcomes.items():
        print(f"{compiler}: {text}")
    return int(any(text.startswith("failed") for text in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
