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
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.models.load import create_model
from cassi.models.registry import list_models
from scripts.benchmarks.apart import Lost, Send, answers, first_line, peak_mib
from scripts.benchmarks.tables import Table, write_csv

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
    if unknown := [name for name in options.models if name not in list_models(shipped=False)]:
        raise SystemExit(
            f"--models: no network {unknown[0]!r}; there is {', '.join(list_models(shipped=False))}"
        )
    recorded = read_vectors(options.vectors) if options.vectors else {}
    table = Table("network", "size", "precision", "parameters (M)", "GFLOPs", "ms", "× authors",
                  "peak MB", "note")  # fmt: skip
    rows = []
    for size, model, precision in product(options.sizes, options.models, options.cases):
        row = measure(Row(model, size, precision, options.device, options.threads), options)
        rows.append(row)
        compared = size == 256 and row.ms and model in recorded
        ratio = f"{recorded[model] / row.ms:.2f}" if compared else ""
        table.print(model, size, precision, f"{row.parameters / 1e6:.2f}", f"{row.gflops:.1f}",
                    f"{row.ms:.0f}", ratio, f"{row.peak_mb:.0f}", row.note)  # fmt: skip
        if options.csv:
            write_csv(options.csv, [asdict(row) for row in rows])
    return rows


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list_models(shipped=False), metavar="NAME")
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


def measure(blank: Row, options: argparse.Namespace) -> Row:
    """Measure one case in a process of its own."""
    given = (blank, options.bands, options.step, options.rounds)
    try:
        (row,) = answers(work, *given, threads=options.threads, limit=options.limit)
    except Lost as reason:
        return replace(blank, note=str(reason))
    return row


def work(send: Send, blank: Row, bands: int, step: int, rounds: int) -> None:
    """Time one network and send its row."""
    try:
        send(time_network(blank, bands, step, rounds))
    except (ValueError, RuntimeError) as error:
        send(replace(blank, note=first_line(error)))


@torch.inference_mode()
def time_network(blank: Row, bands: int, step: int, rounds: int) -> Row:
    """Count what a network does, then time it."""
    torch.manual_seed(0)
    device, half = torch.device(blank.device), blank.precision == "bfloat16"
    mask = torch.rand(blank.size, blank.size)
    system = cassi.SDCassi(mask, bands=bands, step=step).to(device)
    y = system(torch.rand(1, bands, blank.size, blank.size, device=device))
    net = create_model(blank.model, bands=bands).eval().to(device)
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
    seconds = median(run() for _ in range(rounds if first < 20 else 1))
    return replace(
        blank,
        parameters=sum(p.numel() for p in net.parameters()),
        gflops=count_operations(run) / 1e9 if not half else 0.0,
        ms=1e3 * seconds,
        peak_mb=peak_mib(blank.device),
    )


def count_operations(run: Callable[[], object]) -> int:
    """Count floating-point operations, two per multiply-add, of products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def read_vectors(folder: Path) -> dict[str, float]:
    """Read the milliseconds recorded of the authors' networks, by our names."""
    found = {}
    for file in sorted(folder.glob("*.s0.npz")):
        name = file.name.removesuffix(".s0.npz").lower().replace("++", "_plus_plus")
        with np.load(file) as vector:
            found[name.replace("-", "_")] = float(vector["forward_ms"])
    return found


if __name__ == "__main__":
    main()
