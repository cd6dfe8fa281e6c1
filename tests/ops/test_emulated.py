"""The CUDA kernels, compiled as C++ and run on the CPU, under the tests of the operators.

`make emulate` builds the library, see csrc/emulated/cuda_runtime.h. The tests run in processes of
their own, where it takes the place of the CPU library.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from shared import ROOT, python

HERE = Path(__file__).resolve().parent
SOURCES = ["csrc/*.h", "csrc/ops.cpp", "csrc/cuda/*.cu*", "csrc/cuda/memory.h", "csrc/emulated/*"]

pytestmark = pytest.mark.slow
# Of the CPU alone, or too long: its memory and instruction sets, what one thread would emulate for
# minutes.
LEFT_OUT = (
    "not instruction and not thread_count and not row_sums and not column_tiles"
    " and not larger_than and not compiles and not memory_is_kept and not export"
)
ORDERED = ["ascending", "descending"]


@pytest.fixture(scope="module")
def library():
    """The folder of the library, or a skip that says why there is none."""
    path = ROOT / "build" / "emulated" / "_cpu.so"
    if not path.exists():
        reason = "run `make emulate`" if shutil.which("g++") else "there is no g++"
        pytest.skip(f"the CUDA kernels are not emulated: {reason}")
    newest = max(source.stat().st_mtime for glob in SOURCES for source in ROOT.glob(glob))
    assert path.stat().st_mtime >= newest, "csrc has changed since `make emulate`"
    return path.parent


def _run(library, command, **settings):
    names = {f"CASSI_EMULATED_{name.upper()}": value for name, value in settings.items()}
    python(*command, CASSI_LIBRARY_DIR=str(library), OMP_NUM_THREADS="1", **names)


def _pytest(*names, chosen):
    files = [str(path) for name in names for path in sorted(HERE.glob(f"{name}.py"))]
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return [*command, "-k", f"{LEFT_OUT} and ({chosen})", *files]


def test_kernels(library):
    """Threads between two barriers may run in any order."""
    _run(library, _pytest("emulated_cases", chosen="not release"), order="shuffled")


@pytest.mark.release
def test_compiled_cases(library):
    """Sizes, layouts and dtypes against the reference."""
    _run(library, _pytest("test_compiled*", chosen="test"), order="shuffled")


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["shuffled", *ORDERED])
def test_operators(library, order):
    """As functions with gradients of any order too, against dense matrices and other libraries."""
    names = "forward_adjoint data_step gradients taps tv signal dtypes transforms"
    files = [*(f"test_{name}" for name in names.split()), "emulated_cases"]
    if order == "shuffled":  # what the two tests above leave out
        _run(library, _pytest(*files, chosen="not emulated_cases or release"), order=order)
    else:
        _run(library, _pytest("test_compiled*", *files, chosen="test"), order=order)


@pytest.mark.release
def test_random_calls(library):
    command = ["-m", "scripts.checks.fuzz", "ops", "--count", "200"]
    _run(library, command, order="shuffled", blocks="3")


# What each does wrong, and what is said of it.
WRONG = {
    "if (threadIdx.x < 7) __syncthreads();": "threads ended while others wait at wrong.cpp:6",
    "if (threadIdx.x < 7) __syncthreads();\nelse __syncthreads();": "threads wait at wrong.cpp",
    "shared[16 * 4] = 0;": "wrote beyond shared memory",
    "emulated::copy_later(shared, a.in, 16);": "a thread ended before its copies",
    "__ldg(reinterpret_cast<const double*>(a.in + 1));": "misaligned address",
    "if (shared[threadIdx.x] == shared[threadIdx.x]) shared[64] = 0;": "no error",  # NaN
    "": "no error",
}
MISALIGNED_STORE = "*reinterpret_cast<uint2*>(shared + 1) = {1, 2};"
KERNELS = [*WRONG, MISALIGNED_STORE]
START = """
#include <cstdio>
#include <cstdlib>
#include "cuda_runtime.h"
namespace cassi::cuda { extern __shared__ uint4 cassi_shared[]; }
struct Args { const float* in; };
"""
KERNEL = """
__global__ void kernel{}(const Args a) {{
  float* shared = (float*)cassi::cuda::cassi_shared;
#line 6
{}
}}
"""
MAIN = """
int main(int, char** named) {{
  alignas(16) const float in[8] = {{}};
  Args a = {{in}};
  void* args[] = {{&a}};
  void (*kernels[])(const Args) = {{{}}};
  auto* kernel = kernels[std::atoi(named[1])];
  std::puts(cudaGetErrorString(cudaLaunchKernel(kernel, 2, 16, args, 256, nullptr)));
}}
"""


@pytest.fixture(scope="module")
def run_kernel(library, tmp_path_factory):
    """Compile all of `KERNELS`; return what runs one of them."""
    folder, emulated = tmp_path_factory.mktemp("kernels"), ROOT / "csrc" / "emulated"
    kernels = "".join(KERNEL.format(i, code) for i, code in enumerate(KERNELS))
    names = ", ".join(f"kernel{i}" for i in range(len(KERNELS)))
    (folder / "wrong.cpp").write_text(START + kernels + MAIN.format(names))
    build = ["g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-fsanitize=alignment", "-w"]
    build += ["-fsanitize-undefined-trap-on-error", f"-I{emulated}", "-o", "wrong", "wrong.cpp"]
    subprocess.run([*build, str(emulated / "emulator.cpp")], cwd=folder, check=True)

    def run(code):
        command = ["./wrong", str(KERNELS.index(code))]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("wrong", WRONG)
def test_the_emulation_notices(wrong, run_kernel):
    assert WRONG[wrong] in run_kernel(wrong).stdout


def test_a_misaligned_store_ends_the_process(run_kernel):
    assert run_kernel(MISALIGNED_STORE).returncode < 0
