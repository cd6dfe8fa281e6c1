"""Measure what the weights of the package reach, for docs/development/experiments.

    python scripts/benchmarks/pretrained.py                  # all of it
    python scripts/benchmarks/pretrained.py --parts time     # cave, kaist, tsa or time

cave: PSNR and SSIM (preset matlab-uint8) on the five CAVE test scenes, beside solver=auto, through
the TSA mask, through random masks never seen, and with noise. kaist: the relative residual of the
ten snapshots before and after refinement. tsa: seconds of the five captures. time:
seconds of a 256×256×28 cube, the least and the median. Needs `$CASSI_DATA` but for the last.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.memory import keep_freed_memory
from cassi.metrics import psnr, ssim
from cassi.models.pretrained import SIZES
from scripts.benchmarks.problems import load_problem
from scripts.benchmarks.tables import Table

BANDS, STEP = 28, 2
PARTS = ("cave", "kaist", "tsa", "time")


def random_mask(seed: int = 2026) -> Tensor:
    """Draw a binary mask, half of it open, 256×256."""
    return (torch.rand(256, 256, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


def with_noise(y: Tensor, snr_db: float, seed: int) -> Tensor:
    """Add white noise of so many dB below the mean square of y."""
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    return y + noise * y.square().mean().sqrt() * 10 ** (-snr_db / 20)


def solvers() -> dict[str, Any]:
    """Return what is compared, by name: `(y, system) -> x`."""
    auto = load_problem("experiment=auto").solver
    return {"auto": auto} | {size: cassi.create_model("pretrained", size=size) for size in SIZES}


def measure_cave(root: Path) -> None:
    """Print PSNR and SSIM on the CAVE test scenes."""
    truths = [cassi.read_cube(path) for path in sorted((root / "cave_test").glob("*.mat"))]
    mask, drawn = cassi.read_mask(root / "tsa" / "mask.mat"), random_mask()
    methods = solvers()
    table = Table("cave_test", *methods)
    cases: list[tuple[str, Tensor, float | None]]
    cases = [("TSA mask", mask, None), ("random binary mask", drawn, None)]
    cases += [("TSA mask, 30 dB", mask, 30), ("random binary mask, 30 dB", drawn, 30)]
    cases += [("TSA mask, 20 dB", mask, 20)]
    for name, chosen, snr_db in cases:
        system = cassi.SDCassi(chosen, BANDS, STEP)
        cells = []
        for method in methods.values():
            scores = []
            for k, truth in enumerate(truths):
                y = system(truth)
                y = y if snr_db is None else with_noise(y, snr_db, k)
                x = method(y, system)
                scores.append((float(psnr(x, truth).mean()), float(ssim(x, truth).mean())))
            each = " ".join(f"{p:.2f}" for p, _ in scores)
            means = [mean(column) for column in zip(*scores, strict=True)]
            cells.append(f"{means[0]:.2f} / {means[1]:.3f} ({each})")
        table.print(name, *cells)


def measure_kaist(root: Path) -> None:
    """Print the residuals of the KAIST snapshots."""
    system = cassi.SDCassi(cassi.read_mask(root / "tsa" / "mask.mat"), BANDS, STEP)
    table = Table("KAIST snapshot", "residual before", "after")
    for path in sorted((root / "kaist_meas").glob("*.npz")):
        y = cassi.read_measurement(path)
        left = [
            float(
                (y - system(cassi.create_model("pretrained", refined=refined)(y, system))).norm()
                / y.norm()
            )
            for refined in (False, True)
        ]
        table.print(path.stem, *(f"{residual:.1e}" for residual in left))


def measure_tsa(root: Path) -> None:
    """Print the seconds that the captures of the TSA camera take."""
    system = cassi.SDCassi(cassi.read_mask(root / "tsa_real" / "mask.mat"), BANDS, STEP)
    net = cassi.create_model("pretrained", noise=0.1, precision="bf16-mixed")
    table = Table("TSA capture, 660×714", "seconds")
    for path in sorted((root / "tsa_real").glob("scene*.mat")):
        y = cassi.read_measurement(path)
        begun = time.perf_counter()
        net(y, system)
        table.print(path.stem, f"{time.perf_counter() - begun:.1f}")


def measure_time(rounds: int) -> None:
    """Print the seconds of one cube, each size and precision in turn, the least of all rounds."""
    system = cassi.SDCassi(random_mask(), BANDS, STEP)
    smooth = torch.rand(1, BANDS, 16, 16, generator=torch.Generator().manual_seed(0))
    y = system(torch.nn.functional.interpolate(smooth, (256, 256), mode="bilinear"))
    cases = list(product(SIZES, ("32-true", "bf16-mixed"), (True, False)))
    nets = {
        case: cassi.create_model("pretrained", size=case[0], precision=case[1], refined=case[2])
        for case in cases
    }
    taken: dict[tuple[str, str, bool], list[float]] = {case: [] for case in cases}
    for _ in range(rounds + 1):
        for case, net in nets.items():
            begun = time.perf_counter()
            net(y, system)
            taken[case].append(time.perf_counter() - begun)
    threads = torch.get_num_threads()
    head = f"256×256×28, {threads} threads"
    table = Table(head, "precision", "refined", "least s", "median s")
    for (size, kind, refined), seconds in taken.items():
        ordered = sorted(seconds[1:])
        least, middle = ordered[0], ordered[len(ordered) // 2]
        answer = "yes" if refined else "no"
        table.print(size, kind, answer, f"{least:.2f}", f"{middle:.2f}")


def main() -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7, help="of `time`")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    parts = {"cave": measure_cave, "kaist": measure_kaist, "tsa": measure_tsa}
    for part in arguments.parts:
        if part == "time":
            measure_time(arguments.rounds)
        elif (root := os.environ.get("CASSI_DATA")) is None:
            print(f"{part}: left out, set CASSI_DATA to the folder that holds the data")
        else:
            parts[part](Path(root))
        print()


if __name__ == "__main__":
    with torch.no_grad():
        main()
