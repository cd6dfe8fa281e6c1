"""Reconstruct the scenes of a data set with every method and print the table of the documentation.

    python scripts/benchmarks/methods.py                              # the five CAVE scenes
    python scripts/benchmarks/methods.py --methods gap_tv auto --data tsa_real
    python scripts/benchmarks/methods.py --methods gap_tv --each      # a row for each scene
    python scripts/benchmarks/methods.py --methods gap_tv -- solver.iterations=50

What follows `--` are overrides of cassi-reconstruct. Every scene runs in a process of its own, so
that its peak memory is its own. Captures without a truth have residual, time and memory. The
results of each run stay in the folder that is printed last, with the tables as CSV.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from scripts.benchmarks.problems import CAVE, TSA
from scripts.benchmarks.tables import Table, write_csv

SCENES = {"cave_test": CAVE, "tsa_real": TSA}
SCENES["kaist_snapshot"] = [f"scene{index:02d}" for index in range(1, 11)]
METHODS = ["gap_tv", "admm_tv", "twist", "desci", "auto", "pnp_gap", "pnp_admm"]
COLUMNS = {
    "psnr": ".2f",
    "ssim": ".3f",
    "sam": ".1f",
    "seconds": ".1f",
    "peak_MiB": ".0f",
    "residual": ".2e",
    "iterations": ".0f",
}


def reconstruct(experiment: str, scene: str, more: list[str], folder: Path) -> dict[str, float]:
    """Run one scene and return what was measured of it."""
    command = [sys.executable, "-m", "cassi.apps.reconstruct", f"experiment={experiment}"]
    command += [f"scene={scene}", f"hydra.run.dir={folder}", "output.progress=false", *more]
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
    """Print the table in Markdown, line by line, and write it as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="experiments")
    parser.add_argument("--data", choices=sorted(SCENES), default="cave_test")
    parser.add_argument("--each", action="store_true", help="a row for each scene too")
    parser.add_argument("--out", type=Path, help="folder for the results; temporary if absent")
    parser.add_argument("overrides", nargs="*", help="as for cassi-reconstruct")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="methods-"))
    table = Table("method", "PSNR, dB", "SSIM", "SAM, °", "seconds", "MiB", "residual",
                  "iterations", "PSNR of each scene")  # fmt: skip

    def show(name: str, row: dict[str, float], last: str = "") -> None:
        cells = [f"{row[key]:{form}}" if key in row else "" for key, form in COLUMNS.items()]
        table.print(name, *cells, last)

    rows: list[dict[str, object]] = []
    for method in options.methods:
        scenes = []
        try:
            for scene in SCENES[options.data]:
                experiment, place = f"[{options.data},{method}]", folder / method / scene
                scenes.append(reconstruct(experiment, scene, options.overrides, place))
                rows.append({"method": method, "scene": scene, **scenes[-1]})
                if options.each:
                    show(f"{method}, {scene}", scenes[-1])
        except subprocess.CalledProcessError:
            table.print(method, "not measured", *[""] * 7)
            continue
        means = {key: mean(row[key] for row in scenes) for key in COLUMNS if key in scenes[0]}
        show(
            f"`{method}`", means, " ".join(f"{row['psnr']:.2f}" for row in scenes if "psnr" in row)
        )
    if rows:
        keys = dict.fromkeys(key for row in rows for key in row)
        write_csv(folder / "methods.csv", [{key: row.get(key) for key in keys} for row in rows])
    print(f"\nresults in {folder}")


if __name__ == "__main__":
    main()
