"""Compare the cubes of two installations of cassi-reconstruct bit by bit.

    python -m scripts.checks.same_bits --command OLD/bin/cassi-reconstruct --with cassi-reconstruct
    python -m scripts.checks.same_bits --command OLD/bin/cassi-reconstruct --only gap_tv pretrained

These cases are run on the bundled scene: each method by name, each solver with its default prior,
each prior that needs no file, several cameras and noises, the weights of the package, a scene in
blocks, and a folder of snapshots. Runs are shortened to a few iterations. A command is a program
with arguments, so `"python -m cassi reconstruct"` is one too. A table is printed. The exit status
is 1 if a cube differs or a run fails.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile
import yaml

import cassi
from cassi.data.bundled import bundled_path

CONF = Path(__file__).resolve().parents[2] / "conf"
OUTPUT_OPTIONS = ["output.pictures=false", "output.progress=false", "threads=1"]
FEW_ITERATIONS = ["solver.iterations=4"]
FEW_IN_PHASES = ["solver.iterations=6", "solver.sigma.counts=[3,3]"]
# For methods of several phases: options that shorten a run to a few iterations. The iterations of
# the phases must add up to `solver.iterations`.
FEW_ITERATIONS_OF = {
    "desci": [*FEW_IN_PHASES, "prior.counts=[3,3]"],
    "pnp_admm": [
        *("solver.iterations=6", "solver.sigma.schedule.counts=[3,3]"),
        "prior.prior.counts=[3,3]",
    ],
    "tv_then_non_local": [*FEW_ITERATIONS, "prior.counts=[2,2]"],
    "plug_and_play": [*FEW_ITERATIONS, "prior.prior.counts=[2,2]"],
}


def read_yaml(file: Path) -> dict[str, object]:
    """Return the content of a config file."""
    return dict(yaml.safe_load(file.read_text()) or {})


def needs_a_file(prior: str) -> bool:
    """Tell whether a prior is a network whose weights the package does not have."""
    content = read_yaml(CONF / "prior" / f"{prior}.yaml")
    return content.get("defaults") == ["_denoiser"] and content.get("weights") != "pretrained"


def list_options(group: str) -> list[str]:
    """Return the names in a config group."""
    files = sorted((CONF / group).glob("*.yaml"))
    return [file.stem for file in files if not file.stem.startswith("_")]


def make_cases(folder: Path) -> dict[str, list[str]]:
    """Write snapshots into a folder, and return the overrides of every run by its name."""

    def shorten(name: str) -> list[str]:
        return FEW_ITERATIONS_OF.get(name, FEW_ITERATIONS)

    cases: dict[str, list[str]] = {}
    for name in list_options("method"):
        cases[f"method={name}"] = [f"method={name}", *shorten(name)]
    cases["experiment=cacti method=gap_tv"] = [
        "experiment=cacti",
        "method=gap_tv",
        *shorten("gap_tv"),
    ]
    for name in list_options("solver"):
        cases[f"solver={name}"] = [f"solver={name}", *shorten(name)]
    for name in list_options("prior"):
        if not needs_a_file(name):
            cases[f"prior={name}"] = ["solver=gap", f"prior={name}", *shorten(name)]
    gap = ["method=gap_tv", *shorten("gap_tv")]
    tilt = "dispersion@system.offsets=linear"
    cases |= {
        "offsets": [*gap, tilt, "system.offsets.step=2.3"],
        "axis=-2": [*gap, "system.axis=-2"],
        "step=-1": [*gap, "system.step=-1"],
        "noise=shot": ["noise=shot", "method=auto", *shorten("auto")],
        "noise=white": ["noise=white", "method=auto", *shorten("auto")],
        "model=pretrained": ["model=pretrained"],
        "model=pretrained refine=false": ["model=pretrained", "refine=false"],
        "model=pretrained in bfloat16": ["model=pretrained", "precision=bf16-mixed"],
        "model=cassi_net": ["model=cassi_net", "model.weights=random"],
        "model=mst_s": ["model=mst_s", "model.weights=random"],
        "memory_budget=2GiB": [*gap, "memory_budget=2GiB"],
    }
    scene = cassi.read_cube(bundled_path("scene.tif"))
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :64, :64]
    system = cassi.SDCassi(mask, bands=scene.shape[1], step=2)
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    np.save(folder / "mask.npy", mask.squeeze().numpy())
    for number, corner in enumerate((0, 64, 128)):
        part = scene[..., corner : corner + 64, corner : corner + 64]
        np.save(snapshots / f"{number}.npy", system(part)[0, 0].numpy())
    files = [f"measurement={snapshots}", f"mask={folder / 'mask.npy'}", "system.step=2"]
    cases["folder"] = [*files, "system.bands=28", *gap]
    cases["folder, batch=3"] = [*files, "system.bands=28", *gap, "batch=3"]
    return cases


def run(command: str, overrides: list[str], folder: Path) -> dict[str, np.ndarray] | str:
    """Run a command; return its cubes by path, or the last line of its errors if it fails."""
    program, *arguments = shlex.split(command)
    # The command runs in another folder, where a relative path of the program would be wrong.
    program = str(Path(shutil.which(program) or program).absolute())
    words = [program, *arguments, *overrides, *OUTPUT_OPTIONS, f"hydra.run.dir={folder}"]
    # Each installation must load its own package, not the one in the folder of this check.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.run(
        words, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    cubes = {
        str(file.relative_to(folder)): tifffile.imread(file) for file in folder.rglob("cube.tif")
    }
    if process.returncode or not cubes:
        last_line = (process.stderr.strip().splitlines() or [""])[-1]
        return f"status {process.returncode}: {last_line[:150]}"
    return cubes


def compare(
    old_run: dict[str, np.ndarray] | str, new_run: dict[str, np.ndarray] | str
) -> tuple[bool, str]:
    """Tell whether two results of `run` have the same bits; also return the difference in words."""
    if isinstance(old_run, str) or isinstance(new_run, str):
        runs = (("old", old_run), ("new", new_run))
        return False, "; ".join(f"{name}: {run}" for name, run in runs if isinstance(run, str))
    if old_run.keys() != new_run.keys():
        return False, f"cubes {sorted(old_run)} and {sorted(new_run)}"
    for name, a in old_run.items():
        b = new_run[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return False, f"{name}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        if a.tobytes() != b.tobytes():
            difference = np.abs(a.astype(float) - b).max() / max(np.abs(a).max(), 1e-30)
            return (
                False,
                f"{name}: {np.mean(a != b):.1%} of the values, by {difference:.0e} of the peak",
            )
    return True, f"{len(old_run)} cubes" if len(old_run) > 1 else ""


def main() -> int:
    """Compare all cases; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--command", required=True, help="the old cassi-reconstruct")
    parser.add_argument(
        "--with",
        dest="other",
        default=str(Path(sys.executable).with_name("cassi-reconstruct")),
        help="the new cassi-reconstruct; default: the one of this Python",
    )
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of cases")
    options = parser.parse_args()
    n_different = 0
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        root = Path(name)
        cases = make_cases(root)
        names = [c for c in cases if not options.only or any(o in c for o in options.only)]
        width = max(map(len, names), default=0)
        for number, case in enumerate(names):
            start = time.perf_counter()
            results = []
            for age, command in (("old", options.command), ("new", options.other)):
                (root / f"{number}-{age}").mkdir()
                results.append(run(command, cases[case], root / f"{number}-{age}" / "out"))
            is_same, words = compare(*results)
            n_different += not is_same
            seconds = time.perf_counter() - start
            answer = "same bits" if is_same else "DIFFERENT"
            print(f"{case:{width}}  {answer}  {seconds:5.1f} s  {words}", flush=True)
    print(f"{len(names)} cases, {n_different} different")
    return 1 if n_different or not names else 0


if __name__ == "__main__":
    sys.exit(main())
