"""Put every network through what a user does with it, and see that it stays within a memory budget.

    python scripts/checks/models.py
    python scripts/checks/models.py --models mst_s dauhst_2stg --budget 8
    python scripts/checks/models.py --capture capture.mat mask.mat --precision float32

For each network, in a process of its own: one training step (forward, backward, Adam) on a camera
of another size, number of bands and direction, 96 x 120 x 15 and step -1; a reconstruction there;
and one of a real capture, 660 x 714 and 28 bands, in bfloat16 unless told otherwise. Weights are
random: what counts is that it runs, that the cube is finite, and the peak of the resident memory of
the whole process. The exit status is 1 if a network fails or exceeds the budget. Captures lie in
$CASSI_DATA/tsa_real unless given.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.models.load import create_model
from cassi.models.registry import list_models
from scripts.benchmarks.apart import Lost, Send, answers, first_line, peak_mib
from scripts.benchmarks.tables import Table

SMALL = {"bands": 15, "step": -1, "height": 96, "width": 120}


def main(arguments: list[str] | None = None) -> int:
    """Check all networks; return the number of those that fail."""
    options = make_parser().parse_args(arguments)
    table, failed = Table("network", "training step s", "96x120x15 s", "capture s", "peak GB",
                          "verdict"), 0  # fmt: skip
    for name in options.models:
        times, peak, verdict = [], 0.0, ""
        try:
            for seconds, memory, wrong in answers(
                work, name, options, threads=options.threads, limit=options.limit
            ):
                times.append("-" if wrong else f"{seconds:.1f}")
                peak, verdict = max(peak, memory), verdict or wrong
        except Lost as reason:
            verdict = str(reason)
        verdict = verdict or ("ok" if peak <= options.budget else "over budget")
        failed += verdict != "ok"
        table.print(name, *times, *["-"] * (3 - len(times)), f"{peak:.1f}", verdict)
    return failed


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    data = Path(os.environ.get("CASSI_DATA", "data")) / "tsa_real"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list_models(shipped=False), metavar="NAME")
    parser.add_argument("--budget", type=float, default=8.0, help="GB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=900, help="seconds for one of the three")
    parser.add_argument("--precision", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--capture",
        nargs=2,
        type=Path,
        default=[data / "scene1.mat", data / "mask.mat"],
        metavar=("MEASUREMENT", "MASK"),
    )
    return parser


def work(send: Send, name: str, options: argparse.Namespace) -> None:
    """Do the three things; send seconds, peak memory (GB), and what went wrong with each."""
    for task in (train, reconstruct_small, reconstruct_capture):
        start, wrong = time.perf_counter(), ""
        try:
            task(name, options)
        except (ValueError, RuntimeError, AssertionError) as error:
            wrong = f"{task.__name__}: {first_line(error, 80)}"
        send((time.perf_counter() - start, peak_mib() / 2**10, wrong))


def small_camera() -> tuple[torch.Tensor, torch.Tensor, cassi.SDCassi]:
    """Return a cube, its measurement and the camera."""
    torch.manual_seed(0)
    mask = torch.rand(SMALL["height"], SMALL["width"])
    system = cassi.SDCassi(mask, bands=SMALL["bands"], step=SMALL["step"])
    x = torch.rand(1, *system.cube_shape)
    return x, system(x), system


def train(name: str, options: argparse.Namespace) -> None:
    """Take one training step."""
    x, y, system = small_camera()
    net = create_model(name, bands=SMALL["bands"]).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    (net(y, system) - x).square().mean().sqrt().backward()
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in net.parameters()), "weights are not finite"


@torch.inference_mode()
def reconstruct_small(name: str, options: argparse.Namespace) -> None:
    """Reconstruct the small scene."""
    x, y, system = small_camera()
    cube = create_model(name, bands=SMALL["bands"]).eval()(y, system)
    assert cube.shape == x.shape, f"expected {tuple(x.shape)}, got {tuple(cube.shape)}"
    assert bool(cube.isfinite().all()), "the cube is not finite"


@torch.inference_mode()
def reconstruct_capture(name: str, options: argparse.Namespace) -> None:
    """Reconstruct the real capture."""
    measurement, mask = options.capture
    y, system = cassi.read_measurement(measurement), cassi.SDCassi(cassi.read_mask(mask), 28, 2)
    side = max(system.cube_shape[1:])
    size: dict[str, Any] = {"size": (side, side)} if name.startswith("mijun") else {}  # bound
    net = create_model(name, bands=28, **size).eval()
    half = options.precision == "bfloat16"
    if half:
        net = net.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        cube = net(y, system)
    assert tuple(cube.shape[1:]) == system.cube_shape
    assert bool(cube.isfinite().all()), "the cube is not finite"


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
