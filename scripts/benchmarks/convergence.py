"""Run every method for long, and see that it stays where it should.

    python scripts/benchmarks/convergence.py                         # all methods, bundled scene
    python scripts/benchmarks/convergence.py --methods gap_tv admm_tv --iterations 200
    python scripts/benchmarks/convergence.py --scenes a.mat b.tif --mask mask.mat   # own scenes

Every method experiment reconstructs every scene from its simulated measurement; by default the
bundled scene. A geometric or linear σ is stretched over all iterations; phases and stages keep
their lengths, and the last goes on. Two tables: the whole
course of residual and objective in `courses.csv`, and a line per run in `convergence.csv`, which is
also printed: first, last and least values, the largest growth over the least value before, and
whether a value was not finite. A growth of the residual above `--factor` is marked: there a method
left what it had found. An objective that changes with σ may grow without harm.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi.solvers import Iteration, Solution
from scripts.benchmarks.problems import load_problem
from scripts.benchmarks.tables import write_csv

METHODS = ("gap_tv", "admm_tv", "twist", "desci")


def run(method: str, overrides: Sequence[str], iterations: int) -> Solution:
    """Reconstruct one scene with one method experiment."""
    problem = load_problem(f"experiment={method}", f"solver.iterations={iterations}", *overrides)
    torch.manual_seed(0)
    return problem.solver.run(problem.measurement, problem.system, objective=True)


def course(values: Sequence[float | None], name: str) -> dict[str, float | None]:
    """Summarise one column: first, last, least, and the largest growth over the least before."""
    known = [value for value in values if value is not None]
    if not known:
        return {f"{name}_{part}": None for part in ("first", "last", "least", "growth")}
    growth, least = 1.0, math.inf
    for value in known:
        least = min(least, value)
        growth = max(growth, value / least if least > 0 else 1.0)
    return {
        f"{name}_first": known[0],
        f"{name}_last": known[-1],
        f"{name}_least": min(known),
        f"{name}_growth": growth,
    }


def summarize(solution: Solution, iterations: int, factor: float) -> dict[str, Any]:
    """Say in one row how a run went."""
    history = solution.history
    values = [value for s in history for value in (s.residual, s.change, s.objective or 0.0)]
    row: dict[str, Any] = {"iterations": len(history), "stopped_by": solution.reason}
    row |= course([s.residual for s in history], "residual")
    row |= course([s.objective for s in history], "objective")
    finite = all(map(math.isfinite, values)) and len(history) == iterations
    grew = (row["residual_growth"] or 1.0) > factor
    return row | {"verdict": "not finite" if not finite else "grew" if grew else "ok"}


def rows_of(key: dict[str, str], history: Sequence[Iteration]) -> list[dict[str, Any]]:
    """Turn a history into rows of a table."""
    names = ("index", "sigma", "residual", "change", "objective")
    return [key | {name: getattr(entry, name) for name in names} for entry in history]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run all, print a line each, write both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="method experiments")
    parser.add_argument("--scenes", nargs="*", type=Path, default=[], help="files of true cubes")
    parser.add_argument("--mask", type=Path, help="for --scenes")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--factor", type=float, default=2.0, help="growth of the residual to mark")
    parser.add_argument("--out", type=Path, default=Path("outputs/convergence"), help="folder")
    parser.add_argument("--set", nargs="*", default=[], help="overrides, as for cassi-reconstruct")
    chosen = parser.parse_args(arguments)
    if chosen.scenes and chosen.mask is None:
        parser.error("--scenes needs --mask")
    inputs = {scene.stem: [f"truth={scene}", f"mask={chosen.mask}"] for scene in chosen.scenes}
    summaries: list[dict[str, Any]] = []
    courses: list[dict[str, Any]] = []
    for method, (scene, files) in product(chosen.methods, (inputs or {"bundled": []}).items()):
        start = time.perf_counter()
        solution = run(method, [*files, *chosen.set], chosen.iterations)
        key = {"method": method, "scene": scene}
        row = key | summarize(solution, chosen.iterations, chosen.factor)
        summaries.append(row | {"seconds": time.perf_counter() - start})
        courses += rows_of(key, solution.history)
        print("  ".join(map(_show, summaries[-1].items())), flush=True)
        write_csv(chosen.out / "convergence.csv", summaries)
        write_csv(chosen.out / "courses.csv", courses)
    return summaries


def _show(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"


if __name__ == "__main__":
    main()
