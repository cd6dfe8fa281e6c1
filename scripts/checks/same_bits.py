"""Compare the cubes of two installations of cassi-reconstruct bit by bit.

    python -m scripts.checks.same_bits --command OLD/bin/cassi-reconstruct --with cassi-reconstruct
    python -m scripts.checks.same_bits --command OLD/bin/cassi-reconstruct --only gap_tv pretrained

Every method is run on the bundled scene: each method by name, each solver with
its default prior, each prior that needs no file, each camera, the weights of the package, a scene
in blocks, and a folder of snapshots. Runs are shortened to a few iterations. A command is anything
a shell would start, so `"python -m cassi reconstruct"` is one too. Prints a table; the exit
status is 1 where a cube differs or a run fails.
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
QUIET = ["output.pictures=false", "output.progress=false", "threads=1"]
SHORT = ["solver.iterations=4"]
PHASES = ["solver.iterations=6", "solver.sigma.counts=[3,3]"]
# What a few iterations are, where the number of iterations is not all there is to shorten.
SHORTENED = {
    "desci": [*PHASES, "prior.counts=[3,3]"],
    "pnp_admm": [
        *("solver.iterations=6", "solver.sigma.schedule.counts=[3,3]"),
        "prior.prior.counts=[3,3]",
    ],
    "tv_then_non_local": [*SHORT, "prior.counts=[2,2]"],
    "plug_and_play": [*SHORT, "prior.prior.counts=[2,2]"],
}


def read_yaml(file: Path) -> dict[str, object]:
    """Return the content of a config file."""
    return dict(yaml.safe_load(file.read_text()) or {})


def needs_a_file(prior: str) -> bool:
    """Tell whether a prior is a network whose weights the package does not have."""
    content = read_yaml(CONF / "prior" / f"{prior}.yaml")
    return content.get("defaults") == ["_denoiser"] and content.get("weights") != "pretrained"


def options_of(group: str) -> list[str]:
    """Return the names in a config group."""
    files = sorted((CONF / group).glob("*.yaml"))
    return [file.stem for file in files if not file.stem.startswith("_")]


def make_cases(folder: Path) -> dict[str, list[str]]:
    """Return the overrides of every run by its name; snapshots of a folder are written first."""

    def short(name: str) -> list[str]:
        return SHORTENED.get(name, SHORT)

    cases: dict[str, list[str]] = {}
    for name in options_of("method"):
        cases[f"method={name}"] = [f"method={name}", *short(name)]
    cases["experiment=cacti method=gap_tv"] = [
        "experiment=cacti",
        "method=gap_tv",
        *short("gap_tv"),
    ]
    for name in options_of("solver"):
        cases[f"solver={name}"] = [f"solver={name}", *short(name)]
    for name in options_of("prior"):
        if not needs_a_file(name):
            cases[f"prior={name}"] = ["solver=gap", f"prior={name}", *short(name)]
    gap = ["method=gap_tv", *short("gap_tv")]
    tilt = "dispersion@system.offsets=linear"
    cases |= {
        "offsets": [*gap, tilt, "system.offsets.step=2.3"],
        "axis=-2": [*gap, "system.axis=-2"],
        "step=-1": [*gap, "system.step=-1"],
        "noise=shot": ["noise=shot", "method=auto", *short("auto")],
        "noise=white": ["noise=white", "method=auto", *short("auto")],
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
    """Return the cubes that a command made, by the path in its folder, or its last words."""
    program, *given = shlex.split(command)
    # It runs in another folder, from which a relative path would lead elsewhere.
    program = str(Path(shutil.which(program) or program).absolute())
    words = [program, *given, *overrides, *QUIET, f"hydra.run.dir={folder}"]
    # Each installation finds its own package: not the folder that this was started in.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    cubes = {
        str(file.relative_to(folder)): tifffile.imread(file) for file in folder.rglob("cube.tif")
    }
    if done.returncode or not cubes:
        return f"status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:150]}"
    return cubes


def compare(
    one: dict[str, np.ndarray] | str, other: dict[str, np.ndarray] | str
) -> tuple[bool, str]:
    """Tell whether two runs gave the same bits, and in words what differs."""
    if isinstance(one, str) or isinstance(other, str):
        failed = [f"{who}: {r}" for who, r in (("old", one), ("new", other)) if isinstance(r, str)]
        return False, "; ".join(failed)
    if one.keys() != other.keys():
        return False, f"cubes {sorted(one)} and {sorted(other)}"
    for name, a in one.items():
        b = other[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return False, f"{name}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        if a.tobytes() != b.tobytes():
            far = np.abs(a.astype(float) - b).max() / max(np.abs(a).max(), 1e-30)
            return (
                False,
                f"{name}: {np.mean(a != b):.1%} of the values, by {far:.0e} of the peak",
            )
    return True, f"{len(one)} cubes" if len(one) > 1 else ""


def main() -> int:
    """Compare all cases; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--command", required=True, help="the old cassi-reconstruct")
    parser.add_argument(
        "--with",
        dest="other",
        default=str(Path(sys.executable).with_name("cassi-reconstruct")),
        help="the new one; default: that of this Python",
    )
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names hold these")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        root = Path(name)
        cases = make_cases(root)
        chosen = [c for c in cases if not options.only or any(o in c for o in options.only)]
        width = max(map(len, chosen), default=0)
        for number, case in enumerate(chosen):
            begun = time.perf_counter()
            results = []
            for who, command in (("old", options.command), ("new", options.other)):
                (root / f"{number}-{who}").mkdir()
                results.append(run(command, cases[case], root / f"{number}-{who}" / "out"))
            same, words = compare(*results)
            bad += not same
            seconds = time.perf_counter() - begun
            answer = "same bits" if same else "DIFFERENT"
            print(f"{case:{width}}  {answer}  {seconds:5.1f} s  {words}", flush=True)
    print(f"{len(chosen)} cases, {bad} different")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
