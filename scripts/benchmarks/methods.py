"""Reconstruct the five CAVE scenes with every method and print the table of the README.

    python scripts/benchmarks/methods.py
    python scripts/benchmarks/methods.py --methods gap_tv auto --data cave_test

Every scene runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from scripts.benchmarks.reconstruct import SCENES, reconstruct

METHODS = ["gap_tv", "admm_tv", "twist", "desci", "auto", "pnp_gap", "pnp_admm"]
COLUMNS = {"psnr": ".2f", "ssim": ".3f", "sam": ".1f", "seconds": ".1f", "peak_MiB": ".0f"}


def measure(method: str, data: str, overrides: list[str], folder: Path) -> dict[str, float | str]:
    """Return the means over the scenes."""
    rows = [
        reconstruct(f"[{data},{method}]", scene, overrides, folder / method / scene)
        for scene in SCENES[data]
    ]
    scores = " ".join(f"{row['psnr']:.2f}" for row in rows if "psnr" in row)
    means = {name: mean(row[name] for row in rows) for name in COLUMNS if name in rows[0]}
    return {
        "method": method,
        **means,
        "residual": mean(r["residual"] for r in rows),
        "each": scores,
    }


def main() -> None:
    """Print the table in Markdown, line by line, and write it as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--data", choices=sorted(SCENES), default="cave_test")
    parser.add_argument("--override", action="append", default=[], help="as for cassi-reconstruct")
    parser.add_argument("--out", type=Path, help="folder for the results; temporary if absent")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="methods-"))
    print("| method | PSNR, dB | SSIM | SAM, ° | seconds | MiB | PSNR of each scene |")
    print("|---|---|---|---|---|---|---|")
    rows: list[dict[str, float | str]] = []
    for method in arguments.methods:
        try:
            row = measure(method, arguments.data, arguments.override, folder)
        except subprocess.CalledProcessError:
            print(f"| {method} | not measured |||||| ", flush=True)
            continue
        rows.append(row)
        cells = [f"{row[name]:{form}}" if name in row else "" for name, form in COLUMNS.items()]
        print(f"| `{method}` | {' | '.join(cells)} | {row['each']} |", flush=True)
    if rows:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "methods.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
