"""Time methods on this machine, with choices of device, instructions and threads.

    python -m scripts.benchmarks.methods                            # the bundled scene
    python -m scripts.benchmarks.methods --scenes DIR/*.mat         # cubes, through the same mask
    python -m scripts.benchmarks.methods --processors native avx2 --beside no yes --threads 1 2
    python -m scripts.benchmarks.methods --device cuda --batches 1 16 --trace runs/trace

Every row is measured in a process of its own. This process calls `cassi.reconstruct` once untimed,
and then in timed rounds. The time of a scene is the median of its rounds. The table has the median
and the largest time of all scenes. `--threads auto` takes as many threads as the commands do by
default. With `--beside yes`, one other process computes all the time. With --trace, the kernels
that take most time are printed for each row, and a trace of one run is written for
ui.perfetto.dev.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

import cassi
from cassi.data.bundled import bundled_path
from cassi.threads import free_cores
from scripts.benchmarks.tables import Table, write_json

# Environment variables that limit torch, oneDNN and cassi, in this order, to AVX2 instructions.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "CASSI_ISA": "avx2"}
PROCESSORS: dict[str, dict[str, str]] = {"native": {}, "avx2": AVX2}
METHODS: dict[str, Any] = {
    "auto": "auto",
    "pretrained": "pretrained",
    "small": {"model": "pretrained", "overrides": {"model.size": "small"}},
    "gap_tv": "gap_tv",
    "self_supervised": "self_supervised",
}


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the median seconds of each scene, and the mean PSNR, for the row `options.worker`."""
    max_threads, (method, threads, batch) = torch.get_num_threads(), options.worker
    torch.set_num_threads(min(max_threads, free_cores()) if threads == "auto" else int(threads))
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., : options.size, : options.size]
    seconds, scores = [], []
    for file in options.scenes or [bundled_path("scene.tif")]:
        cube = cassi.read_cube(file)[..., : options.size, : options.size].to(options.device)
        height, width = cube.shape[-2:]
        system = cassi.SDCassi(mask[..., :height, :width], cube.shape[1], step=2)
        system = system.to(options.device)
        cube = cube.expand(int(batch), -1, -1, -1).contiguous()
        call = partial(cassi.reconstruct, system(cube), system, METHODS[method])
        # The first run, which loads weights and compiles, is not timed.
        scores.append(cassi.metrics.psnr(call(), cube).mean().item())
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        seconds.append(median(timer.timeit(1).mean for _ in range(options.rounds)))
        if options.trace is not None:
            trace(call, options.trace / f"{method}-{batch}.json.gz")
    return {"seconds": seconds, "psnr": sum(scores) / len(scores)}


def trace(call: Any, file: Path) -> None:
    """Print the kernels that take most time in a run, and write the run's trace."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        call()
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=20), file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(file))


@contextmanager
def busy_process(start: bool) -> Iterator[None]:
    """Within the context, run a process that computes all the time, if `start` is true."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if start else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:4])
    parser.add_argument("--scenes", nargs="+", default=[], help="files of cubes")
    parser.add_argument("--size", type=int, default=256, help="rows and columns, at most")
    parser.add_argument("--batches", nargs="+", default=["1"], help="snapshots at once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", nargs="+", default=["auto"])
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=["native"])
    parser.add_argument("--beside", nargs="+", choices=["no", "yes"], default=["no"])
    parser.add_argument("--trace", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(measure(options)))
        return
    # A process that has measured one row would measure the next row with a warm cache. Its number
    # of threads and its instructions cannot change any more, either.
    words = sys.argv[1:] if arguments is None else arguments
    table = Table("method", "snapshots", "threads", "processor", "beside", "s", "worst", "PSNR, dB")
    axes = (options.methods, options.batches, options.threads, options.processors, options.beside)
    for method, batch, threads, processor, busy in product(*axes):
        worker = ["-m", "scripts.benchmarks.methods", *words, "--worker", method, threads, batch]
        with busy_process(busy == "yes"):
            process = subprocess.run(
                [sys.executable, *worker],
                env=os.environ | PROCESSORS[processor],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        result = json.loads(process.stdout.splitlines()[-1])
        seconds = result["seconds"]
        cells = (method, batch, threads, processor, busy, median(seconds), max(seconds))
        table.print(*cells, f"{result['psnr']:.2f}")
    write_json(options.json, "methods", table.rows)


if __name__ == "__main__":
    main()
