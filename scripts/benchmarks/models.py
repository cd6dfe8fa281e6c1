"""Time the forward pass of every network, and count its parameters, operations and memory.

    python scripts/benchmarks/models.py
    python scripts/benchmarks/models.py --models mst_s cassi_net --sizes 256 660 --rounds 5
    python scripts/benchmarks/models.py --models cassi_net --sizes 660 --cases float32
    python scripts/benchmarks/models.py --device cuda --csv models_cuda.csv
    python scripts/benchmarks/models.py --vectors VECTORS  # beside the times recorded there

Weights are random, masks too: neither changes what is computed. Every network and precision runs in
a process of its own, whose peak memory (that of the whole process, libraries included) is what the
table says. `bfloat16` is autocast with channels_last. Networks that do not take the size, or need
more than the machine has, are listed with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

import cassi
from cassi.apps.memory import keep_freed_memory
from cassi.models.registry import create_model, list_models

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Row:
    """What was measured of one network at one size in one precision."""

    model: str
    size: int
    precision: str
    device: str
    threads: int
    parameters: int = 0
    gflops: float = 0.0
    ms: float = 0.0
    peak_mb: float = 0.0
    note: str = ""


def main(arguments: list[str] | None = None) -> list[Row]:
    """Measure, print a row as soon as it is known, and write the CSV file."""
    options = make_parser().parse_args(arguments)
    if unknown := [name for name in options.models if name not in list_models()]:
        raise SystemExit(
            f"--models: no network {unknown[0]!r}; there is {', '.join(list_models())}"
        )
    recorded = read_vectors(options.vectors) if options.vectors else {}
    print(
        "| network | size | precision | parameters (M) | GFLOPs | ms | × authors | peak MB | note |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for row in measure_all(options):
        rows.append(row)
        ratio = ""
        if row.size == 256 and row.ms and row.model in recorded:
            ratio = f"{recorded[row.model] / row.ms:.2f}"
        print(
            f"| {row.model} | {row.size} | {row.precision} | {row.parameters / 1e6:.2f} | "
            f"{row.gflops:.1f} | {row.ms:.0f} | {ratio} | {row.peak_mb:.0f} | {row.note} |",
            flush=True,
        )
        if options.csv:
            write_csv(options.csv, rows)
    return rows


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list_models(), metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256], help="rows and columns")
    parser.add_argument("--cases", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--step", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="timed passes; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=900, help="seconds a network may take")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="of recorded networks")
    return parser


def measure_all(options: argparse.Namespace) -> Iterator[Row]:
    """Measure one case after the other, each in a process of its own."""
    context = get_context("spawn")
    for size in options.sizes:
        for model in options.models:
            for precision in options.cases:
                blank = Row(model, size, precision, options.device, options.threads)
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, blank, options), daemon=True)
                process.start()
                theirs.close()
                try:
                    note = f"longer than {options.limit:.0f} s"
                    if ours.poll(options.limit):
                        yield ours.recv()
                        continue
                except EOFError:
                    note = "killed, most likely for its memory"
                finally:
                    process.kill()
                    process.join()
                yield Row(**{**asdict(blank), "note": note})


def work(pipe: Connection, blank: Row, options: argparse.Namespace) -> None:
    """Time one network and send its row."""
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    try:
        pipe.send(time_network(blank, options))
    except (ValueError, RuntimeError) as error:
        line = str(error).partition("\n")[0][:90]
        pipe.send(Row(**{**asdict(blank), "note": line}))


@torch.inference_mode()
def time_network(blank: Row, options: argparse.Namespace) -> Row:
    """Count what a network does, then time it."""
    torch.manual_seed(0)
    device, half = torch.device(blank.device), blank.precision == "bfloat16"
    mask = torch.rand(blank.size, blank.size)
    system = cassi.SDCassi(mask, bands=options.bands, step=options.step).to(device)
    y = system(torch.rand(1, options.bands, blank.size, blank.size, device=device))
    net = create_model(blank.model, bands=options.bands).eval().to(device)
    if half:
        net = net.to(memory_format=torch.channels_last)

    def run() -> float:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            net(y, system)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = run()
    if first < 20:
        run()
    seconds = median(run() for _ in range(options.rounds if first < 20 else 1))
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return Row(
        **{
            **asdict(blank),
            "parameters": sum(p.numel() for p in net.parameters()),
            "gflops": count_operations(run) / 1e9 if not half else 0.0,
            "ms": 1e3 * seconds,
            "peak_mb": peak,
        }
    )


def count_operations(run: object) -> int:
    """Count floating-point operations, two per multiply-add, of products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return int(counter.get_total_flops())


def read_vectors(folder: Path) -> dict[str, float]:
    """Read the milliseconds recorded of the authors' networks, by our names."""
    import numpy as np

    found = {}
    for file in sorted(folder.glob("*.s0.npz")):
        name = file.name.removesuffix(".s0.npz").lower().replace("++", "_plus_plus")
        with np.load(file) as vector:
            found[name.replace("-", "_")] = float(vector["forward_ms"])
    return found


def write_csv(path: Path, rows: list[Row]) -> None:
    """Write all rows."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
