"""Compare self_supervised with its start on simulated scenes, iteration by iteration.

    python scripts/benchmarks/self_supervised.py                        # CAVE's validation scenes
    python scripts/benchmarks/self_supervised.py --data cave_test --start auto pretrained
    python scripts/benchmarks/self_supervised.py --noise 30 -- solver.iterations=50

Prints, for each scene and start, PSNR of the start's cube and of the result, and seconds of both.
With --mask binary the mask is a random one, half open, as in scripts/benchmarks/pretrained.py.
With --noise white noise of so many dB below the measurement's root mean square is added. What
follows `--` are overrides of cassi-reconstruct.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from statistics import mean

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from scripts.benchmarks.noise import disturb
from scripts.benchmarks.pretrained import random_mask
from scripts.benchmarks.tables import Table


def main() -> None:
    """Print a line per scene and start, and the means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="cave", help="with scenes and a mask")
    parser.add_argument("--scenes", nargs="+", help="of them; all")
    parser.add_argument("--start", nargs="+", default=["auto"], help="methods or networks")
    parser.add_argument("--mask", choices=("own", "binary"), default="own", help="of the data")
    parser.add_argument("--noise", type=float, default=math.inf, help="dB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("overrides", nargs="*", help="as for cassi-reconstruct")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    benchmark = load_benchmark(compose_settings([f"data={options.data}"], kind=Evaluate))
    table = Table("scene", "start", "PSNR of the start, dB", "s", "PSNR, dB", "s")
    for start in options.start:
        rows = []
        for scene in options.scenes or benchmark.scenes:
            item = benchmark.load(scene)
            assert item.truth is not None
            truth = item.truth[None]
            mask = random_mask() if options.mask == "binary" else item.mask
            system = cassi.SDCassi(mask, truth.shape[1], step=2)
            y = disturb(system(truth), options.noise, shot=False)
            own = [f"solver.start={start}", *options.overrides]
            row: list[float] = []
            for method in (start, {"method": "self_supervised", "overrides": own}):
                began = time.perf_counter()
                x = cassi.reconstruct(y, system, method)
                row += [metrics.psnr(x, truth).item(), time.perf_counter() - began]
            rows.append(row)
            table.print(scene, start, *(f"{value:.2f}" for value in row))
        table.print("mean", start, *(f"{mean(column):.2f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
