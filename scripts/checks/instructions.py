"""Count the instructions that the CUDA kernels spend on an element of the cube.

    pip install nvidia-cuda-nvdisasm                         # where CUDA's nvdisasm is missing
    python scripts/checks/instructions.py                    # a few minutes: nvcc compiles them
    python scripts/checks/instructions.py forward --arch sm_80

No GPU is needed. The count is static: of every kernel's innermost loops, the one that copies the
cube into shared memory (16 bytes at a time), the one that sums bands onto a detector column, and
the one that emits bands; each is the one of its kind that spends the fewest instructions on an
element, which is what full tiles of one shot run. Its
instructions are divided by the elements that one turn of it takes: bytes copied over the size of
an element, or multiplications. What goes before and after these loops, once a row or a detector
column, is not counted. Of the kernels with one mask for all bands; the numbers
in their names are those of the columns that a thread takes, of the cube and of the detector. Of two
numbers the last is the step as well. Where they work on components of a cube
(`forward_subspace`, `adjoint_subspace`) bands are mixed from eight of them instead of copied, or
summed onto eight instead of emitted.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
# What makes up the work on an element, in the order of a row.
PHASES = {
    "forward": ("copy", "sum"),
    "adjoint": ("emit",),
    "data_step": ("copy", "sum", "emit"),
}
SIZES = {"float": 4, "__nv_bfloat16": 2}
MULTIPLY = ("FFMA", "FMUL")
TOGETHER = 8  # components in a thread's registers


def disassembler() -> str:
    """Return nvdisasm: of the PATH, of the toolkit, or of the package nvidia-cuda-nvdisasm."""
    nvcc = shutil.which("nvcc")
    places = [Path(path) / "nvidia/cu13/bin" for path in sys.path]
    places += [Path(nvcc).resolve().parent] if nvcc else []
    found = shutil.which("nvdisasm") or next(
        (str(p / "nvdisasm") for p in places if (p / "nvdisasm").exists()), None
    )
    if nvcc is None or found is None:
        missing = "nvcc" if nvcc is None else "nvdisasm (pip install nvidia-cuda-nvdisasm)"
        raise SystemExit(f"expected nvcc and nvdisasm, found no {missing}")
    return found


def disassemble(kernel: str, arch: str) -> str:
    """Return the machine code of csrc/cuda/KERNEL.cu, compiled as the library is."""
    tool = disassembler()
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/{kernel}.cubin"
        source = str(ROOT / "csrc" / "cuda" / f"{kernel}.cu")
        build = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}", "-cubin", "-o", cubin, source]
        subprocess.run(build, check=True)
        code = subprocess.run([tool, "-c", cubin], check=True, capture_output=True, text=True)
    return code.stdout


def demangle(name: str) -> str:
    """Return a C++ name as it is written."""
    return subprocess.run(["c++filt", name], check=True, capture_output=True, text=True).stdout


def functions(code: str) -> dict[str, list[str]]:
    """Return labels and instructions of each function by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in code.splitlines():
        if line.startswith(".text."):
            lines = found[line.removeprefix(".text.").rstrip(":")] = []
        elif match := re.match(r"\s*(\.L_x_\d+:)|\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            lines.append(match[1] or re.sub(r"^@\S+\s+", "", match[2]))
    return found


def loops_of(lines: list[str]) -> list[list[str]]:
    """Return the instructions of loops, from a label to a branch back, without those in them.

    Loops around one that writes to global memory are left out.
    """
    labels: dict[str, int] = {}
    code: list[str] = []
    ends: dict[int, int] = {}
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
            continue
        target = re.match(r"BRA.*?(\.L_x_\d+)", line)
        if target and labels.get(target[1], len(code)) < len(code):
            ends[labels[target[1]]] = len(code)
        code.append(line)
    loops = sorted(ends.items(), key=lambda loop: loop[1] - loop[0])
    found: list[list[str]] = []
    for first, last in loops:
        inner = [(a, b) for a, b in loops if first <= a and b <= last and (a, b) != (first, last)]
        if not any("STG" in line for a, b in inner for line in code[a : b + 1]):
            inside = {i for a, b in inner for i in range(a, b + 1)}
            found.append([code[i] for i in range(first, last + 1) if i not in inside])
    return found


def classify(
    loop: list[str], size: int, kernel: str = "", mixed: bool = False
) -> tuple[str, float] | None:
    """Return what a loop does and the elements of `size` bytes that a turn of it takes."""
    count = Counter(line.split()[0].split(".")[0] for line in loop)
    products = sum(count[name] for name in MULTIPLY)
    if count["LDGSTS"]:
        wide = sum("LDGSTS" in line and ".128" in line for line in loop)
        return ("copy", wide * 16 / size) if wide else None
    if mixed and products >= TOGETHER:
        if kernel == "adjoint":  # each is multiplied by the mask first
            return "emit", products / (TOGETHER + 1)
        if count["STS"]:
            return "copy", products / TOGETHER
    if not products or count["STS"] or count["LDG"]:
        return None
    return ("emit" if count["STG"] else "sum"), products


def count(kernel: str, code: str) -> list[list[str | float]]:
    """Return a row for every kernel of the file that works on whole rows."""
    rows: list[list[str | float]] = []
    for name, lines in functions(code).items():
        pattern = rf"{kernel}_rows<(\w+), \w+, \S*Staged, (\d)(, \d)?(, true)?.*?>\("
        match = re.search(pattern, demangle(name)) if f"{kernel}_rows" in name else None
        if not match or match[1] not in SIZES:
            continue
        least: dict[str, float] = {}
        for loop in loops_of(lines):
            if found := classify(loop, SIZES[match[1]], kernel, bool(match[4])):
                phase, elements = found
                least[phase] = min(least.get(phase, math.inf), len(loop) / elements)
        each = [least.get(p, 0.0) for p in PHASES[kernel]]
        shown = {
            p: f"{value:.1f}" if value else "?"
            for p, value in zip(PHASES[kernel], each, strict=True)
        }
        rows.append(
            [
                f"{kernel}{'_subspace' if match[4] else ''} {match[2]}{(match[3] or '')[1:]}",
                match[1].strip("_").removeprefix("nv_"),
            ]
            + [shown.get(phase, "") for phase in ("copy", "sum", "emit")]
            + ([f"{sum(each):.1f}"] if all(each) else ["?"])
        )
    return rows


def main() -> None:
    """Compile, count, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help=f"of {', '.join(PHASES)}; default: all")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    if unknown := set(options.kernels) - set(PHASES):
        parser.error(f"expected {', '.join(PHASES)}, got {', '.join(sorted(unknown))}")
    rows = [
        row
        for kernel in options.kernels or PHASES
        for row in count(kernel, disassemble(kernel, options.arch))
    ]
    print(tabulate(rows, ["kernel", "cube", "copy", "sum", "emit", "all"], tablefmt="github"))


if __name__ == "__main__":
    main()
