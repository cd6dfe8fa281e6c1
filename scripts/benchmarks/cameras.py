"""Time the operators of every kind of camera against those of the plain one.

    python scripts/benchmarks/cameras.py
    python scripts/benchmarks/cameras.py --size 660 --batch 4 --threads 1
    python scripts/benchmarks/cameras.py --device cuda

The plain camera has one mask and a step of two pixels. Beside it: offsets with fractions, an uneven
list of whole offsets, a mask per band, several shots, a dual disperser, blur and warp. `x plain` is
the time per byte that has to be moved (cube, masks and measurement, each once) in units of the
plain camera's, in one run; `data step` is argmin ½‖Ax − y‖² + ρ/2‖x − v‖² with ρ = 0.1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.systems import System
from scripts.benchmarks.tables import Table, write_csv
from scripts.benchmarks.timing import Candidate, measure

Maker = Callable[[int, int], System]


def _mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


CAMERAS: dict[str, Maker] = {
    "plain": lambda size, bands: cassi.SDCassi(_mask(size, size), bands, 2),
    "fractional offsets": lambda size, bands: cassi.SDCassi(
        _mask(size, size), bands, offsets=[2.03 * c for c in range(bands)]
    ),
    "uneven whole offsets": lambda size, bands: cassi.SDCassi(
        _mask(size, size), bands, offsets=[c * 2 + c % 2 for c in range(bands)]
    ),
    "mask per band": lambda size, bands: cassi.SDCassi(_mask(bands, size, size), bands, 2),
    "two shots": lambda size, bands: cassi.SDCassi(_mask(2, 1, size, size), bands, 2),
    "four shots": lambda size, bands: cassi.SDCassi(_mask(4, 1, size, size), bands, 2),
    "two shots, offsets": lambda size, bands: cassi.SDCassi(
        _mask(2, 1, size, size), bands, offsets=[2.03 * c for c in range(bands)]
    ),
    "dual disperser": lambda size, bands: cassi.DDCassi(_mask(size, size), bands, 2),
    "blurred": lambda size, bands: cassi.BlurredCassi(
        _mask(size, size), bands, 2, line_spread=0.7, point_spread=0.7
    ),
    "warped": lambda size, bands: cassi.WarpedCassi(_mask(size, size), bands, 2, smile=1.5),
}


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Measure and print; return milliseconds by camera and operator."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    systems, candidates, size = {}, [], {}
    for name in options.cameras:
        system = systems[name] = CAMERAS[name](options.size, options.bands).to(device)
        x = torch.rand(options.batch, *system.cube_shape, device=device)
        y = system(x)
        size[name] = 4 * (x.numel() + system.get_buffer("mask").numel() + y.numel())
        calls: dict[str, Callable[[], object]] = {
            "forward": partial(system, x),
            "adjoint": partial(system.adjoint, y),
            "data step": partial(system.data_step, 0.9 * x, y, 0.1),
        }
        candidates += [Candidate(f"{name}/{what}", call, device) for what, call in calls.items()]
    with torch.inference_mode():
        timings = measure(candidates, options.rounds)
    table: dict[str, dict[str, float]] = {}
    for key, timing in timings.items():
        name, what = key.split("/")
        table.setdefault(name, {})[what] = timing.ms
    print(
        f"{options.batch} x {options.bands} x {options.size}², {options.threads} threads, {device}"
    )
    printed = Table("camera", "forward ms", "x plain", "adjoint ms", "x plain", "data step ms",
                    "x plain")  # fmt: skip
    for name, times in table.items():
        cells = [name]
        for what, ms in times.items():
            ratio = ms / size[name] / (table["plain"][what] / size["plain"])
            cells += [f"{ms:.2f}", f"{ratio:.2f}"]
        printed.print(*cells)
    if options.csv:
        write_csv(options.csv, [{"camera": name, **times} for name, times in table.items()])
    return table


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cameras", nargs="+", default=list(CAMERAS), choices=list(CAMERAS), metavar="NAME"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=256, help="rows and columns of the cube")
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=None, help="visits of every operator")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="milliseconds, by camera")
    return parser


if __name__ == "__main__":
    main()
