"""Calibrate a camera from one snapshot, and see what that is worth.

    python scripts/benchmarks/calibration.py                 # five CAVE scenes
    python scripts/benchmarks/calibration.py --real          # the TSA camera, from five captures

The camera that measures has its mask moved by (0.6, -0.4) pixels and turned by 0.1 degrees, and
disperses by 2.03 pixels per band. The same solver reconstructs with the nominal, the calibrated and
the true camera. Of the real captures the relative residuals are compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import mean

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi import metrics
from cassi.calibration import Frame, Geometry, calibrate, moved_camera
from cassi.evaluation import Mismatch
from cassi.systems import SDCassi
from scripts.benchmarks.problems import CAVE, TSA, load_problem

SHIFT, ROTATION, DISPERSION = (0.6, -0.4), 0.1, 0.03


def simulated(method: str, more: list[str]) -> None:
    """Print what calibration regains on each scene."""
    shares, times = [], []
    print(
        "nominal | calibrated | true | regained | seconds | CPU s | down, right, degrees, per band"
    )
    for index, scene in enumerate(CAVE, 1):
        problem = load_problem(f"experiment=[cave_test,{method}]", f"scene={scene}", *more)
        truth, system, solver = problem.truth, problem.system, problem.solver
        assert isinstance(system, SDCassi)
        y = Mismatch(SHIFT, ROTATION, DISPERSION).measure(truth, system)

        def residual(camera: SDCassi, y: torch.Tensor = y, solver=solver) -> float:  # type: ignore[no-untyped-def]
            return float(solver.run(y, camera).history[-1].residual)

        start, used = time.perf_counter(), time.process_time()
        found = calibrate([Frame.snapshot(y, system.bands)], system, residual)
        times.append(time.perf_counter() - start)
        used = time.process_time() - used
        right = moved_camera(system, Geometry(SHIFT, ROTATION, (DISPERSION,)))
        nominal, calibrated, best = (
            metrics.psnr(solver(y, camera), truth).item()
            for camera in (system, found.system, right)
        )
        shares.append((calibrated - nominal) / (best - nominal))
        numbers = zip(found.fit.geometry.values(), found.fit.errors, strict=True)
        print(
            f"{index} | {nominal:.2f} | {calibrated:.2f} | {best:.2f} | {shares[-1]:.1%} | "
            f"{times[-1]:.1f} | {used:.1f} | " + "  ".join(f"{v:.4f}±{e:.4f}" for v, e in numbers),
            "| residuals " + " ".join(f"{stage.residual:.4f}" for stage in found.stages),
            flush=True,
        )
    print(f"mean regained {mean(shares):.1%}, least {min(shares):.1%}, longest {max(times):.1f} s")


def real(method: str, more: list[str]) -> None:
    """Calibrate the TSA camera from all its captures; print the residual of each."""
    named = f"experiment=[{method},tsa_real]"
    problems = [load_problem(named, f"scene={scene}", *more) for scene in TSA]
    snapshots = [problem.measurement for problem in problems]
    solver, system = problems[-1].solver, problems[-1].system
    assert isinstance(system, SDCassi)
    tried: list[list[float]] = []

    def residual(camera: SDCassi) -> float:
        tried.append([solver.run(y, camera).history[-1].residual for y in snapshots])
        print(f"model {len(tried) - 1}: " + " ".join(f"{r:.4f}" for r in tried[-1]), flush=True)
        return mean(tried[-1])

    start = time.perf_counter()
    found = calibrate([Frame.snapshot(torch.cat(snapshots), system.bands)], system, residual)
    seconds = time.perf_counter() - start
    for name, value, error in zip(
        found.fit.geometry.names(), found.fit.geometry.values(), found.fit.errors, strict=True
    ):
        print(f"{name}: {value:.4f} ± {error:.4f}")
    print("scene | nominal | calibrated")
    for index, (before, after) in enumerate(zip(tried[0], tried[found.chosen], strict=True), 1):
        print(f"{index} | {before:.4f} | {after:.4f}")
    print(f"model {found.chosen}, {seconds:.0f} s")


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--real", action="store_true", help="the captures of the TSA camera")
    parser.add_argument("--method", default="auto", help="experiment that reconstructs")
    parser.add_argument("overrides", nargs="*", help="of cassi-reconstruct: solver.iterations=40")
    arguments = parser.parse_args()
    (real if arguments.real else simulated)(arguments.method, arguments.overrides)


if __name__ == "__main__":
    main()
