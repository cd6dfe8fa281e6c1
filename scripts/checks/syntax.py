"""Compile the syntax of every source of csrc/ against the headers of the least torch.

    python -m scripts.checks.syntax [FOLDER]

FOLDER has torch's headers; without one, `$CASSI_TORCH_2_11`, else `../shared/torch_2_11/include`.
Where there is none, or no compiler, the check says so and passes. CUDA sources are compiled as C++,
by the emulation; where `nvcc` is found, `ops.cpp` and `scratch.cpp` with CUDA's headers too.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"
"""As in CMakeLists.txt."""


def commands(headers: Path, compiler: str) -> dict[str, list[str]]:
    """Return what compiles each source, by name."""
    plain = [compiler, "-std=c++17", "-fsyntax-only", "-w", "-isystem", str(headers), TARGET]
    cpu = [*plain, "-DCASSI_DEVICE=CPU", "-DCASSI_X86", "-mavx2", "-mfma", "-mf16c"]
    emulated = [*plain, "-DCASSI_DEVICE=CPU", "-DCASSI_EMULATED", "-D__CUDACC__", "-x", "c++"]
    emulated += ["-I", str(ROOT / "csrc" / "emulated")]
    found = {}
    for source in [ROOT / "csrc" / "ops.cpp", *sorted(ROOT.glob("csrc/cpu/*.cpp"))]:
        found[source.relative_to(ROOT).as_posix()] = [*cpu, str(source)]
    for source in sorted([*ROOT.glob("csrc/cuda/*.cu"), *ROOT.glob("csrc/emulated/*.cpp")]):
        found[source.relative_to(ROOT).as_posix()] = [*emulated, str(source)]
    if include := cuda_headers():
        cuda = [*plain, "-DCASSI_DEVICE=CUDA", "-DUSE_CUDA", '-DCASSI_CUDA_BUILD=""']
        for source in [ROOT / "csrc" / "ops.cpp", *sorted(ROOT.glob("csrc/cuda/*.cpp"))]:
            name = f"{source.relative_to(ROOT).as_posix()} (CUDA)"
            found[name] = [*cuda, "-isystem", include, str(source)]
    return found


def cuda_headers() -> str | None:
    """Return the folder of CUDA's headers, which `nvcc` knows; None without one."""
    if shutil.which("nvcc") is None:
        return None
    asked = ["nvcc", "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    found = re.search(r'INCLUDES="-I([^"]+)"', said)
    return None if found is None else found[1]


def main() -> int:
    """Print what does not compile."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CASSI_TORCH_2_11")
    headers = Path(given or ROOT.parent / "shared" / "torch_2_11" / "include")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not (headers / "torch").is_dir():
        print(f"syntax: skipped, no {'compiler' if compiler is None else f'headers in {headers}'}")
        return 0

    def run(command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    wanted = commands(headers, compiler)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = dict(zip(wanted, pool.map(run, wanted.values()), strict=True))
    failed = {name: text for name, text in said.items() if text}
    for name, text in failed.items():
        print(f"{name}:\n{text[:2000]}")
    print(f"syntax: {len(wanted) - len(failed)} of {len(wanted)} sources compile with {headers}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
