"""Compare settings of the default method on the training scenes, on which they are chosen.

    python scripts/benchmarks/default_settings.py prior.rank=8,prior.energy=1e-3 prior.balance=0.75
    python scripts/benchmarks/default_settings.py --mask binary --noise 30 solver.sigma.end=0.03

Of CAVE's twenty training scenes every second one is taken at half its size, of the others the
middle, 256×256 pixels each. Prints the mean PSNR of `auto` as it is and with each list of
overrides, the least gain of a scene, and seconds. Needs `$CASSI_DATA`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.data.io import load_mask
from scripts.benchmarks.noise import disturb
from scripts.benchmarks.pretrained import random_mask
from scripts.benchmarks.tables import Table

SIDE = 256


def main() -> None:
    """Print a line per list of overrides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lists", nargs="*", help="of overrides, with commas between them")
    parser.add_argument("--mask", choices=("own", "binary"), default="own", help="TSA's, or random")
    parser.add_argument("--noise", type=float, default=math.inf, help="dB")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    root = Path(os.environ["CASSI_DATA"])
    own = load_mask(root / "tsa" / "mask.mat").data
    mask = random_mask() if options.mask == "binary" else own
    tried = ["", *options.lists]
    scores: list[list[float]] = [[] for _ in tried]
    seconds: list[list[float]] = [[] for _ in tried]
    for truth in read_scenes(root / "cave_train"):
        system = cassi.SDCassi(mask, truth.shape[1], step=2)
        y = disturb(system(truth), options.noise, shot=False)
        for k, words in enumerate(tried):
            overrides = [word for word in words.split(",") if word]
            began = time.perf_counter()
            x = cassi.reconstruct(y, system, {"method": "auto", "overrides": overrides})
            seconds[k].append(time.perf_counter() - began)
            scores[k].append(metrics.psnr(x, truth).item())
    table = Table("auto with", "PSNR, dB", "least gain", "s")
    for words, found, taken in zip(tried, scores, seconds, strict=True):
        least = min(a - b for a, b in zip(found, scores[0], strict=True))
        table.print(words or "nothing", f"{mean(found):.2f}", f"{least:.2f}", f"{mean(taken):.2f}")


def read_scenes(folder: Path) -> Iterator[Tensor]:
    """Yield the scenes of a folder, `(1, C, 256, 256)`, of greatest value 1."""
    for k, path in enumerate(sorted(folder.glob("*.tif"))):
        x = cassi.read_cube(path)
        if k % 2:
            x = functional.interpolate(x, scale_factor=0.5, mode="area")
        top, left = ((side - SIDE) // 2 for side in x.shape[-2:])
        x = x[..., top : top + SIDE, left : left + SIDE].contiguous()
        yield x / x.max()


if __name__ == "__main__":
    main()
