"""Check the syntax of every source of csrc/ against the headers of the oldest supported torch.

    python -m scripts.checks.syntax [FOLDER]

FOLDER has torch's headers; the default is `$CASSI_TORCH_2_11`, else `../shared/torch_2_11/include`.
If headers or a compiler are missing, the check says so and passes. CUDA sources are compiled as
C++, with the headers of `csrc/emulated`. If `nvcc` is found, `ops.cpp` and the C++ sources of
`csrc/cuda` are also compiled with CUDA's headers.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The oldest torch, 2.11; the same as in CMakeLists.txt.
TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"


def make_commands(headers: Path, compiler: str) -> dict[str, list[str]]:
    """Return the command that checks each source, by the name of the source."""
    base = [compiler, "-std=c++17", "-fsyntax-only", "-w", "-isystem", str(headers), TARGET]
    cpu = [*base, "-DCASSI_DEVICE=CPU", "-DCASSI_X86", "-mavx2", "-mfma", "-mf16c"]
    emulation = [*base, "-DCASSI_DEVICE=CPU", "-DCASSI_EMULATED", "-D__CUDACC__", "-x", "c++"]
    emulation += ["-I", str(ROOT / "csrc" / "emulated")]
    commands = {}
    for source in [ROOT / "csrc" / "ops.cpp", *sorted(ROOT.glob("csrc/cpu/*.cpp"))]:
        commands[source.relative_to(ROOT).as_posix()] = [*cpu, str(source)]
    for source in sorted([*ROOT.glob("csrc/cuda/*.cu"), *ROOT.glob("csrc/emulated/*.cpp")]):
        commands[source.relative_to(ROOT).as_posix()] = [*emulation, str(source)]
    if include := cuda_headers():
        cuda = [*base, "-DCASSI_DEVICE=CUDA", "-DUSE_CUDA", '-DCASSI_CUDA_BUILD=""']
        for source in [ROOT / "csrc" / "ops.cpp", *sorted(ROOT.glob("csrc/cuda/*.cpp"))]:
            name = f"{source.relative_to(ROOT).as_posix()} (CUDA)"
            commands[name] = [*cuda, "-isystem", include, str(source)]
    return commands


def cuda_headers() -> str | None:
    """Return the folder of CUDA's headers; None without `nvcc`."""
    if shutil.which("nvcc") is None:
        return None
    # A dry run of nvcc prints the folder of the headers.
    command = ["nvcc", "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    match = re.search(r'INCLUDES="-I([^"]+)"', output)
    return None if match is None else match[1]


def main() -> int:
    """Check all sources, and print the errors of those that do not compile."""
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CASSI_TORCH_2_11")
    headers = Path(folder or ROOT.parent / "shared" / "torch_2_11" / "include")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not (headers / "torch").is_dir():
        missing = "compiler" if compiler is None else f"headers in {headers}"
        print(f"syntax: skipped, no {missing}")
        return 0

    def run(command: list[str]) -> str:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        return process.stderr if process.returncode else ""

    commands = make_commands(headers, compiler)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = dict(zip(commands, pool.map(run, commands.values()), strict=True))
    errors = {name: text for name, text in outputs.items() if text}
    for name, text in errors.items():
        print(f"{name}:\n{text[:2000]}")
    n_sources = len(commands)
    print(f"syntax: {n_sources - len(errors)} of {n_sources} sources compile with {headers}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
