"""Measure time, operations, memory and parameters of every network.

    python -m scripts.benchmarks.networks --json runs/networks.json    # for scripts.docs.figures
    python -m scripts.benchmarks.networks --models mst_s cassi_net --sizes 256 660
    python -m scripts.benchmarks.networks --train --models dauhst_2stg --batch 4 --device cuda

The forward pass is timed. If --train is given, a training step is timed: forward, backward and
Adam. Weights and masks are random, because they do not change which operations are computed.
Every network and precision runs in a process of its own, and the peak memory is that of the whole
process with its libraries. `bfloat16` is autocast with channels_last. A network fails if it does
not take the size, needs more memory than the machine has, or returns a cube that is not finite. It
is then named with the reason, and the exit status is 1.
"""

import argparse
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import cassi
from cassi.apps.memory import keep_freed_memory
from cassi.models.load import create_model
from cassi.models.registry import list_models
from scripts.benchmarks.tables import Call, Parser, Table, time_calls, write_json

PRECISIONS = ("float32", "bfloat16")


def main(arguments: list[str] | None = None) -> int:
    """Measure all networks, and print each row at once; return 1 if a network did not run."""
    parser = Parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list_models(shipped=False), metavar="NAME")
    parser.add_argument("--train", action="store_true", help="time a training step")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256], help="rows and columns")
    parser.add_argument("--cases", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each network")
    options = parser.parse_args(arguments)
    table = Table("network", "size", "precision", "GFLOPs", "ms", "peak MB", "parameters (M)")
    status, cases = 0, dict[str, Any]()
    for size, model, precision in product(options.sizes, options.models, options.cases):
        # Each case has a new process, so the peak memory contains no other network. The process
        # is spawned, because a fork would begin with the memory of this process.
        process = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            with process:
                figures = process.submit(measure, model, size, precision, options).result()
        # A process that the system kills, most likely for its memory, is a RuntimeError too.
        except (ValueError, RuntimeError) as error:
            print(f"{model} {size} {precision}: {error}".partition("\n")[0], flush=True)
            status = 1
            continue
        table.print(model, size, precision, *(float(value) for value in figures.values()))
        case = cases.setdefault(f"{options.device} {size}²", {}).setdefault(model, {})
        case[precision] = figures
        write_json(options.json, "networks", {"threads": options.threads, "cases": cases})
    return status


def measure(model: str, size: int, precision: str, options: argparse.Namespace) -> dict[str, float]:
    """Time a network, then count its operations, memory and parameters."""
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device, use_bfloat16 = torch.device(options.device), precision == "bfloat16"
    system = cassi.SDCassi(torch.rand(size, size), bands=options.bands, step=2).to(device)
    x = torch.rand(options.batch, *system.cube_shape, device=device)
    y, net = system(x), create_model(model, bands=options.bands).to(device).train(options.train)
    if use_bfloat16:
        net = net.to(memory_format=torch.channels_last)
    if options.train:
        run = make_step(net, x, y, system, use_bfloat16)
    else:
        run = make_pass(net, y, system, use_bfloat16)
    milliseconds = time_calls({model: run}, options.seconds)[model]
    # The peak is read before operations are counted, because the counter takes memory itself.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    with FlopCounterMode(display=False) as counter:  # a multiply-add counts as two operations
        run()
    return {
        "gflops": counter.get_total_flops() / 1e9,
        "ms": milliseconds,
        "peak_mb": peak,
        "millions": sum(p.numel() for p in net.parameters()) / 1e6,
    }


def make_pass(net: Any, y: torch.Tensor, system: Any, use_bfloat16: bool) -> Call:
    """Return a function that runs the network and checks that the cube is finite."""

    @torch.inference_mode()
    def run() -> None:
        with torch.autocast(y.device.type, torch.bfloat16, enabled=use_bfloat16):
            cube = net(y, system)
        if not bool(cube.isfinite().all()):
            raise ValueError("the cube is not finite")

    return run


def make_step(net: Any, x: torch.Tensor, y: torch.Tensor, system: Any, use_bfloat16: bool) -> Call:
    """Return a function that takes one training step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-4)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(y.device.type, torch.bfloat16, enabled=use_bfloat16):
            estimate = net(y, system)
        (estimate.float() - x).square().mean().sqrt().backward()
        optimizer.step()

    return run


if __name__ == "__main__":
    sys.exit(main())
