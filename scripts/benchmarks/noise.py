"""Compare solver=auto with fixed settings of gap_tv on noisy snapshots.

    python scripts/benchmarks/noise.py                       # five CAVE scenes, 20 and 30 dB
    python scripts/benchmarks/noise.py --levels 10 40 --shot

White noise of the given level below the measurement's root mean square; with --shot its variance
follows the brightness. The settings of gap_tv are all combinations of a last σ and a ρ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi import metrics
from scripts.benchmarks.problems import CAVE, load_problem

LAST_SIGMAS, RHOS = (0.1, 0.3, 1.0), (0.0, 1.0, 10.0)


def disturb(y: Tensor, decibels: float, shot: bool) -> Tensor:
    """Add noise, the same for every method."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(y.shape, generator=generator)
    if shot:
        noise *= (y / y.mean()).clamp_min(0).sqrt()
    return y + noise * (10 ** (-decibels / 20) * y.norm() / noise.norm())


def score(overrides: list[str], decibels: float, shot: bool) -> float:
    """Return the mean PSNR over the scenes."""
    values = []
    for scene in CAVE:
        problem = load_problem("experiment=cave_test", f"scene={scene}", *overrides)
        x = problem.solver(disturb(problem.measurement, decibels, shot), problem.system)
        values.append(metrics.psnr(x, problem.truth).item())
    return mean(values)


def main() -> None:
    """Print a line per level and setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--levels", nargs="+", type=float, default=[20.0, 30.0], help="dB")
    parser.add_argument("--shot", action="store_true", help="variance follows the brightness")
    options = parser.parse_args()
    for level in options.levels:
        auto = score(["solver=auto"], level, options.shot)
        print(f"{level:g} dB: auto {auto:.2f} dB", flush=True)
        for sigma, rho, fast in itertools.product(LAST_SIGMAS, RHOS, (True, False)):
            fixed = ["solver=gap", "prior=tv", "solver.noise=0", f"solver.sigma.end={sigma}"]
            fixed += [f"solver.algorithm.rho={rho}", f"solver.sigma.start={max(0.4, sigma)}"]
            value = score([*fixed, f"solver.algorithm.accelerated={fast}"], level, options.shot)
            name = f"gap_tv sigma {sigma:g} rho {rho:g} {'accelerated' if fast else 'plain'}"
            print(f"{level:g} dB: {name} {value:.2f} dB", flush=True)


if __name__ == "__main__":
    main()
