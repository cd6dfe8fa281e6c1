"""Reconstruct the scenes of an experiment and print one table: the figures the README quotes.

    python scripts/benchmarks/reconstruct.py                       # GAP-TV on the five CAVE scenes
    python scripts/benchmarks/reconstruct.py solver=admm
    python scripts/benchmarks/reconstruct.py experiment=tsa_real  # no truth: residual, time, memory
    python scripts/benchmarks/reconstruct.py "experiment=[cave_test,desci]"    # data and a method

Arguments are overrides of `cassi-reconstruct`. Every scene runs in a process of its own, so that
its peak memory is its own; the results of each run stay in the folder that is printed first.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

SCENES = {
    "cave_test": [f"scene{index:02d}" for index in range(1, 6)],
    "kaist_snapshot": [f"scene{index:02d}" for index in range(1, 11)],
    "tsa_real": [f"scene{index}" for index in range(1, 6)],
}


def reconstruct(
    experiment: str, scene: str, overrides: list[str], folder: Path
) -> dict[str, float]:
    """Run one scene and return its row of the table."""
    command = [sys.executable, "-m", "cassi.apps.reconstruct", f"experiment={experiment}"]
    command += [f"scene={scene}", f"hydra.run.dir={folder}", "output.progress=false", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = json.loads((folder / "metrics.json").read_text())
    scores = results.get("metrics", {}).get("matlab-uint8", {})
    return {
        **{name: value for name, value in scores.items() if value is not None},
        "residual": results["relative_residual"],
        "iterations": results["iterations"],
        "seconds": results["seconds"],
        "peak_MiB": results["peak_memory_bytes"] / 2**20,
    }


def main() -> None:
    """Print the table and write it as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, help="folder for the results; a temporary one if absent"
    )
    parser.add_argument("overrides", nargs="*", help="as for cassi-reconstruct")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="benchmark-"))
    experiment = "cave_test"
    overrides = []
    for override in arguments.overrides:
        if override.startswith("experiment="):
            experiment = override.partition("=")[2]
        else:
            overrides.append(override)
    named = experiment.strip("[]").replace(" ", "").split(",")
    data = next((name for name in named if name in SCENES), None)
    if data is None:
        parser.error(f"experiment: expected one of {', '.join(SCENES)}, got {experiment}")

    print(f"results in {folder}")
    rows: list[dict[str, float | str]] = []
    for scene in SCENES[data]:
        row = reconstruct(experiment, scene, overrides, folder / scene)
        rows.append({"scene": scene, **row})
        if len(rows) == 1:
            print("  ".join(f"{name:>10}" for name in rows[0]))
        print(format_row(rows[-1]), flush=True)
    numbers = [name for name in rows[0] if name != "scene"]
    average = {name: mean(float(row[name]) for row in rows) for name in numbers}
    print(format_row({"scene": "mean", **average}))
    with (folder / f"{'-'.join(named)}.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def format_row(row: dict[str, float | str]) -> str:
    """Lay out one line of the table."""
    return "  ".join(
        f"{value:>10}" if isinstance(value, str) else f"{value:>10.4g}" for value in row.values()
    )


if __name__ == "__main__":
    main()
