"""Build the CPU library with other compilers: clang, and GCC for 64-bit ARM.

    python -m scripts.checks.compilers [COMPILER …]

Each library comes into `build/compilers/COMPILER`. A compiler that is not installed is named and
left out. `CASSI_LIBRARY_DIR` makes the package load a library from there, so tests can run with it:

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
    """Return what came of it, in a word or with the compiler's errors."""
    if shutil.which(compiler) is None:
        return "not installed, left out"
    folder = ROOT / "build" / "compilers" / compiler
    options = [f"-DCMAKE_CXX_COMPILER={compiler}", f"-DPython_EXECUTABLE={sys.executable}"]
    if processor := compiler.partition("-linux-")[0] if "-linux-" in compiler else "":
        options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
    for command in (["-S", str(ROOT), "-B", str(folder), *options], ["--build", str(folder), "-j"]):
        environment = os.environ | {"FORCE_CUDA": "0"}
        run = ["cmake", *command]
        done = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return f"failed\n{(done.stdout + done.stderr)[-4000:]}"
    return f"built, {(folder / '_cpu.so').stat().st_size / 2**20:.1f} MiB"


def main() -> int:
    """Print a line for each compiler."""
    said = {compiler: build(compiler) for compiler in sys.argv[1:] or COMPILERS}
    for compiler, text in said.items():
        print(f"{compiler}: {text}")
    return int(any(text.startswith("failed") for text in said.values()))


if __name__ == "__main__":
    sys.exit(main())
