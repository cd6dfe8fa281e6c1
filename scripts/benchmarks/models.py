"""Time every network, and count its parameters, operations and memory.

    python -m scripts.benchmarks.models
    python -m scripts.benchmarks.models --models mst_s cassi_net --sizes 256 660 --rounds 5
    python -m scripts.benchmarks.models --train --models dauhst_2stg --batch 4
    python -m scripts.benchmarks.models --sizes 660 --cases bfloat16 --budget 8192
    python -m scripts.benchmarks.models --device cuda --csv models_cuda.csv

Timed is the forward pass, or with --train a step of forward, backward and Adam, of which `operator`
is the share that is spent in `cassi::` operators. Weights are random, masks too: neither changes
what is computed. Every network and precision runs in a process of its own, whose peak memory (that
of the whole process, libraries included) is what the table says. `bfloat16` is autocast with
channels_last. Networks that do not take the size, need more than the machine has, or give a cube
that is not finite, are listed with the reason; the exit status is 1 where there is one, or where
one exceeds --budget.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

import cassi
from cassi.apps.memory import keep_freed_memory
from cassi.models.load import create_model
from cassi.models.registry import list_models
from scripts.benchmarks.tables import Parser, Table, write_csv

PRECISIONS = ("float32", "bfloat16")
COLUMNS = {"parameters": 1e-6, "gflops": 1, "ms": 1, "peak_mb": 1, "operator": 100}
"""What is measured, and in which unit it is shown: M, GFLOP, ms, MiB, per cent."""
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> list[Row]:
    """Measure, print a row as soon as it is known, and write the CSV file."""
    options = make_parser().parse_args(arguments)
    known = list_models(shipped=False)
    if unknown := [name for name in options.models if name not in known]:
        raise SystemExit(f"--models: no network {unknown[0]!r}; there is {', '.join(known)}")
    table = Table("network", "size", "precision", "parameters (M)", "GFLOPs", "ms", "peak MB",
                  "operator %", "note")  # fmt: skip
    rows = []
    for size, model, precision in product(options.sizes, options.models, options.cases):
        about = {"model": model, "size": size, "precision": precision}
        row: Row = {**about, "device": options.device, "threads": options.threads}
        row |= dict.fromkeys(COLUMNS, 0.0) | measure_apart(about, options)
        if row["peak_mb"] > options.budget:
            row["note"] = f"more than {options.budget:.0f} MB"
        rows.append(row)
        shown = (f"{row[name] * factor:.4g}" for name, factor in COLUMNS.items())
        table.print(model, size, precision, *shown, row["note"])
        if options.csv:
            write_csv(options.csv, rows)
    return rows


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = Parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list_models(shipped=False), metavar="NAME")
    parser.add_argument("--train", action="store_true", help="time a training step")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256], help="rows and columns")
    parser.add_argument("--cases", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="timed passes; the median counts")
    parser.add_argument("--limit", type=float, default=900, help="seconds a network may take")
    parser.add_argument("--budget", type=float, default=float("inf"), help="MB it may take")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    return parser


def measure_apart(about: Row, options: argparse.Namespace) -> Row:
    """Measure one case in a process of its own, so that its memory is its own."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, about, options), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(options.limit):
            return {"note": f"longer than {options.limit:.0f} s"}
        row: Row = ours.recv()
        return row
    except EOFError:
        return {"note": "killed, most likely for its memory"}
    finally:
        process.kill()
        process.join()


def _work(pipe: Any, about: Row, options: argparse.Namespace) -> None:
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    try:
        pipe.send(measure(**about, options=options))
    except (ValueError, RuntimeError) as error:
        pipe.send({"note": str(error).partition("\n")[0][:90]})


def measure(model: str, size: int, precision: str, options: argparse.Namespace) -> Row:
    """Count what a network does, then time it."""
    torch.manual_seed(0)
    device, half = torch.device(options.device), precision == "bfloat16"
    system = cassi.SDCassi(torch.rand(size, size), bands=options.bands, step=2)
    system = system.to(device)
    x = torch.rand(options.batch, *system.cube_shape, device=device)
    y, net = system(x), create_model(model, bands=options.bands).to(device).train(options.train)
    if half:
        net = net.to(memory_format=torch.channels_last)
    run = make_step(net, x, y, system, half) if options.train else make_pass(net, y, system, half)

    def timed() -> float:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = timed()
    if first < 20:
        timed()
    seconds = median(timed() for _ in range(options.rounds if first < 20 else 1))
    # Before operations are counted, which takes memory itself.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "gflops": 0.0 if half else count_operations(run) / 1e9,
        "ms": 1e3 * seconds,
        "peak_mb": peak,
        "operator": operator_share(run, device.type) if options.train else 0.0,
        "note": "",
    }


def make_pass(net: Any, y: torch.Tensor, system: Any, half: bool) -> Callable[[], None]:
    """Return a function that runs the network and looks at the cube."""

    @torch.inference_mode()
    def run() -> None:
        with torch.autocast(y.device.type, torch.bfloat16, enabled=half):
            cube = net(y, system)
        if not bool(cube.isfinite().all()):
            raise ValueError("the cube is not finite")

    return run


def make_step(
    net: Any, x: torch.Tensor, y: torch.Tensor, system: Any, half: bool
) -> Callable[[], None]:
    """Return a function that takes one training step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-4)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(y.device.type, torch.bfloat16, enabled=half):
            estimate = net(y, system)
        (estimate.float() - x).square().mean().sqrt().backward()
        optimizer.step()

    return run


def count_operations(run: Callable[[], object]) -> int:
    """Count floating-point operations, two per multiply-add, of products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def operator_share(run: Callable[[], object], device: str) -> float:
    """Return the part of the time of a call that is spent in this package's operators."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities) as found:
        run()
    of = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = found.key_averages()
    total = sum(getattr(event, of) for event in events)
    ours = sum(getattr(event, of) for event in events if event.key.startswith("cassi"))
    return float(ours / max(total, 1e-9))


if __name__ == "__main__":
    sys.exit(1 if any(row["note"] for row in main()) else 0)
