"""Measure what docs/reference/leaderboard.md shows: cassi-evaluate under each of its conditions.

    python scripts/benchmarks/leaderboard.py --folder runs/leaderboard
    python scripts/benchmarks/leaderboard.py --folder runs/try --data cave --more scenes=[paints]
    python scripts/docs/leaderboard.py runs/leaderboard/*

Each condition has a folder of its own and resumes where it was stopped, scene by scene.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BINARY = "mask={_target_: cassi.systems.RandomMask, density: 0.5, seed: 0}"
NOISE = ("noise=white", "noise.snr_db=30")
CONDITIONS: dict[str, tuple[str, ...]] = {
    "grey": (),
    "grey_30db": NOISE,
    "binary": (BINARY,),
    "binary_30db": (BINARY, *NOISE),
    "inversenet": ("benchmark=inversenet", "knowledge=[nominal,told,calibrated]"),
}
METHODS = ("gap_tv", "auto", "pretrained")


def main(arguments: list[str] | None = None) -> None:
    """Run cassi-evaluate once for each condition."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default="cave_test", metavar="NAME")
    parser.add_argument("--reconstructors", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--more", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    for name in options.conditions:
        command = [
            *(sys.executable, "-m", "cassi.apps.evaluate", f"data={options.data}"),
            f"reconstructors=[{','.join(options.reconstructors)}]",
            *("figures=false", "report=false", "cubes=false", "progress=false"),
            *(f"hydra.run.dir={options.folder / name}", *CONDITIONS[name], *options.more),
        ]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
