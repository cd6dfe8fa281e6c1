"""Time methods on this machine, and with AVX2 alone, idle and beside another program.

    python -m scripts.benchmarks.machines                            # the bundled scene
    python -m scripts.benchmarks.machines --scenes DIR/*.mat         # cubes, through the same mask
    python -m scripts.benchmarks.machines --methods auto --size 32   # small, to try it

Every cell is a process of its own, which reconstructs by `cassi.reconstruct`, once untimed: the
median of the rounds, of several scenes the median and the worst. `auto` threads are what the
commands take by themselves. Beside stands one process that never waits.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median

import torch

import cassi
from cassi.data.bundled import bundled_path
from cassi.threads import free_cores
from scripts.benchmarks.tables import Table

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "CASSI_ISA": "avx2"}
PROCESSORS: dict[str, dict[str, str]] = {"native": {}, "AVX2": AVX2}
METHODS = {
    "auto": '"auto"',
    "pretrained": '"pretrained"',
    "small": '{"model": "pretrained", "overrides": {"model.size": "small"}}',
    "gap_tv": '"gap_tv"',
    "self_supervised": '"self_supervised"',
}


def measure(method: str, scenes: list[str], size: int, rounds: int, threads: str) -> list[float]:
    """Return the median seconds of each scene, in this process."""
    most = torch.get_num_threads()
    torch.set_num_threads(min(most, free_cores()) if threads == "auto" else int(threads))
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    seconds = []
    for file in scenes or [str(bundled_path("scene.tif"))]:
        cube = cassi.read_cube(file)[..., :size, :size]
        height, width = cube.shape[-2:]
        system = cassi.SDCassi(mask[..., :height, :width], cube.shape[1], step=2)
        y, taken = system(cube), []
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            cassi.reconstruct(y, system, json.loads(METHODS[method]))
            taken.append(time.perf_counter() - begun)
        seconds.append(median(taken[1:]))
    return seconds


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    """Let a process that never waits run meanwhile, if asked."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:4])
    parser.add_argument("--scenes", nargs="+", default=[], help="files of cubes")
    parser.add_argument("--size", type=int, default=256, help="rows and columns, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", nargs="+", default=["1", "2", "auto"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.worker is not None:
        given = told.scenes, told.size, told.rounds, told.threads[0]
        print(json.dumps(measure(told.worker, *given)))
        return
    cases = list(product(PROCESSORS, told.threads, (False, True)))
    names = [f"{p}, {t} threads, {'busy' if b else 'idle'}" for p, t, b in cases]
    table = Table("seconds", *names)
    for method in told.methods:
        cells = []
        for processor, threads, busy in cases:
            options = ["--worker", method, "--threads", threads, "--size", str(told.size)]
            options += ["--rounds", str(told.rounds)]
            options += ["--scenes", *told.scenes] if told.scenes else []
            with beside(busy):
                done = subprocess.run(
                    [sys.executable, "-m", "scripts.benchmarks.machines", *options],
                    env=os.environ | PROCESSORS[processor],
                    capture_output=True,
                    text=True,
                    check=True,
                )
            seconds = json.loads(done.stdout.splitlines()[-1])
            worst = f" ({max(seconds):.2f})" if len(seconds) > 1 else ""
            cells.append(f"{median(seconds):.2f}{worst}")
        table.print(method, *cells)


if __name__ == "__main__":
    with torch.no_grad():
        main()
