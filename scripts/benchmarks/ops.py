"""Time the operators against the limits of the machine and against other ways to write them.

    python scripts/benchmarks/ops.py                                   # everything on the CPU
    python scripts/benchmarks/ops.py --workload operators --batches 4 --no-large --no-compile
    python scripts/benchmarks/ops.py --device cuda --csv h200.csv
    python scripts/benchmarks/ops.py --workload original --rounds 100

Workloads: `operators` (forward, adjoint, ratio_inverse, data_step, alone and with their gradient),
`tv` (against scikit-image), `iteration` (one of GAP-TV against NumPy), `auto` (the default method,
on components and on cubes), `original` (fresh random data every round). Every implementation is
compared with ours before it is timed. Last come the goals and what was measured of them.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from scripts.benchmarks.operator_workloads import TOLERANCES, Settings, Shape, measure_operators
from scripts.benchmarks.original_workload import default_shapes, measure_original
from scripts.benchmarks.results import Results, format_goals, format_rows, to_csv
from scripts.benchmarks.solver_workloads import measure_auto, measure_iteration, measure_tv

WORKLOADS = ("operators", "tv", "iteration", "auto", "original")
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
KERNELS = ("forward", "adjoint", "ratio_inverse", "gram", "data_step", "tv_prox")
CUBE = (28, 256, 256)
LARGE: Shape = (1, 28, 660, 660)


def main(arguments: list[str] | None = None) -> Results:
    """Measure, print the tables and the goals, and write the CSV."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device")
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True  # the convolution at its best
    settings = Settings(
        device,
        DTYPES[options.dtype],
        options.channels_last,
        rounds=options.rounds,
        seconds=options.seconds or (0.2 if device.type == "cuda" else 1.0),
        compile=options.compile,
        others=options.others,
    )
    batches: list[Shape] = [(batch, *CUBE) for batch in options.batches]
    shapes: list[Shape] = options.shapes or batches + [LARGE] * options.large
    cube = shapes[0][1:] if options.shapes else CUBE

    environment = describe(settings, options.threads)
    print("\n".join(f"{name}: {value}" for name, value in environment.items()), flush=True)
    results = Results()
    for workload in WORKLOADS if options.workload == "all" else (options.workload,):
        if workload == "operators":
            measure_operators(settings, shapes, results)
        elif workload == "tv":
            measure_tv(settings, cube, results)
        elif workload == "iteration":
            measure_iteration(settings, cube, results)
        elif workload == "auto":
            large = [LARGE[1:]] * (options.large and not options.shapes)
            measure_auto(settings, [cube, *large], results)
        else:
            measure_original(settings, options.shapes or default_shapes(device), results)
        rows = [row for row in results.rows if row.workload == workload]
        print(f"\n### {workload}\n\n{format_rows(rows)}", flush=True)
    for reason, cases in results.left_out.items():
        print(f"\nnote: {reason}: {'; '.join(cases)}")
    print(f"\n### goals\n\n{format_goals(results, device.type)}")
    if options.csv is not None:
        to_csv(options.csv, results.rows, environment)
    return results


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workload", choices=[*WORKLOADS, "all"], default="all")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--threads", type=int, default=2, help="of torch on the CPU (default 2)")
    add("--csv", type=Path, help="write all rows to this file")
    add("--rounds", type=int, help="timed calls of every implementation; chosen by its speed")
    add("--seconds", type=float, help="for an implementation (default 1; 0.2 on a GPU)")
    add("--batches", type=int, nargs="*", default=[1, 4, 16], help="of 28x256x256, step 2")
    add("--no-large", dest="large", action="store_false", help="leave 1x28x660x660 out")
    add("--shapes", type=parse_shape, nargs="+", help="BxCxHxW, instead of all of these")
    add("--dtype", choices=list(DTYPES), default="float32", help="of the operators' tensors")
    add("--channels-last", action="store_true", help="lay cubes out with their bands innermost")
    add("--no-others", dest="others", action="store_false", help="time ours and the limits alone")
    add("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    return parser


def parse_shape(text: str) -> Shape:
    """Read BxCxHxW."""
    try:
        batch, bands, height, width = (int(number) for number in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected BxCxHxW, got {text!r}") from None
    return batch, bands, height, width


def describe(settings: Settings, threads: int) -> dict[str, str]:
    """Say where and how the figures were measured."""
    found = {name: cassi.ops.backend(settings.device, name) for name in KERNELS}
    same = len(set(found.values())) == 1
    return {
        "device": name_device(settings.device),
        "torch": torch.__version__,
        "threads": str(threads),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "kernels": found["forward"] if same else ", ".join(f"{k} {v}" for k, v in found.items()),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "layout": "channels_last" if settings.channels_last else "contiguous",
    }


def name_device(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name} ({os.cpu_count()} cores)"


if __name__ == "__main__":
    main()
