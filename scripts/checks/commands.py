"""Run every target of the Makefile and every command of README and docs, at small size.

    python -m scripts.checks.commands                       # all: half an hour
    python -m scripts.checks.commands README.md docs/guides/sensor.md
    python -m scripts.checks.commands Makefile              # a quarter of an hour on one core
    python -m scripts.checks.commands --list                # run nothing, print the commands

The commands come from the shell blocks of the pages. They run in a folder with small files, which
have the names that the pages use. `SHORTENING_OPTIONS` makes the commands short, but the output
shows them as the pages have them. Data sets of the literature are looked for in $CASSI_DATA. One
line is printed per command: ok, failed, or skipped with the reason. The exit status is 1 if a
command failed. The check takes too long for `make release-check`, so run it before a release.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
import torch
from PIL import Image
from scipy.io import savemat

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^ *```(\w*)")
SHELLS = ("", "bash", "sh")
STARTS = re.compile(r"(?:[A-Z_]+=\S* )*(cassi-\w+|python|make|pip|srun|git|cp|mkdir|\.)\s")
LIMIT_SECONDS = 1200

# First: the commands that need the data sets. Second: the folders that must be there for them.
NEEDS_DATA = re.compile(r"cave_test|kaist|tsa_real|CASSI_DATA|data=cave|recipe=")
DATA_FOLDERS = ("cave_test", "cave_train", "kaist_meas", "tsa", "tsa_real")

# Patterns of commands that are not run, with the reason. The first pattern that matches counts.
SKIP_REASONS = {
    r"^make release": "needs a tree without changes and a dated version",
    r"^pip |^git |^cp |^mkdir |^\. ": "installs or downloads",
    r"^make (install|demo)": "sets up the environment in which this check runs",
    r"^cassi-view|^cassi-live|outputs/view": "is a server, or needs what was saved there",
    r"srun|slurm|/shared": "needs a cluster",
    r"trainer\.devices=4": "needs four GPUs",
    r"NAME|FILE\b|OPTIONS|ICVL|OLD": "names files that only the reader has",
    r"outputs/calibrate.*tsa_real": "needs the calibration of that camera",
    r"data=kaist ": "needs cubes that we may not distribute",
}
# Patterns that are replaced in every command. They stand for values that a page leaves to the
# reader, and for values that take too long.
REPLACEMENTS = {
    r"^python": sys.executable,
    r"=\[METHODS\]": "=[gap_tv]",
    r"outputs/calibrate/…/": "calibrated/",
    r"cassi-reconstruct … ": "cassi-reconstruct truth=four.npz mask=mask.mat ",
    r"measurement=…": "measurement=snapshot.mat mask=mask.mat",
    r"data\.root=DIR": "",
    r"(dauhst_3stg .*)runs/first": r"\1runs/second",
    r"y.mat(.*axis=-2)": r"tall.mat\1",
    r"(step=0 .*)y.mat": r"\1frame.mat",
    r"window=\S+": "window=[0,0,64,118]",
    r"processes=4": "processes=2",
    r"scene03,scene04,scene05": "scene03",
    r"--count 10000": "--count 300",
    r"trainer\.max_steps=20": "",
}
# Options that are appended to the commands that match a pattern, so that these take few iterations
# and little data.
TRAIN = "trainer.max_steps=2 trainer.enable_progress_bar=false data.batch_size=2"
PYTEST = "PYTEST='pytest -q tests/metrics'"
SHORTENING_OPTIONS = {
    r"cassi[-.](apps.)?reconstruct(?!.*model=)": "solver.iterations=2",
    r"cassi[-.](apps.)?reconstruct": "output.progress=false",
    r"evaluate": "progress=false figures=false",
    r"evaluate(?!.*data=)": "'reconstructors=[gap_tv]'",
    r"evaluate.*data=cave_test(?!.*scenes)": "'scenes=[scene01]'",
    r"^cassi-calibrate": "radius=1 solver.iterations=2",
    r"^cassi-export": "measurement=snapshot.mat mask=mask.mat",
    r"^cassi-train(?!.*ckpt=)": TRAIN,
    r"^cassi-train(?!.*(ckpt=|data=cave))": "data.crop=32",
    r"^cassi-train(?!.*(ckpt=|data=cave|recipe=))": "data.validation.crop=32",
    r"^cassi-train.*recipe=cassi_net": "scheduler.warmup=0",
    r"^cassi-train.*recipe=cassi_net ": "data.pool=2",
    r"^make (fuzz|sanitize)$": "FUZZ=300",
    r"^make (test|test-fast|coverage)$": PYTEST,
    r"^make coverage$": "COVERED=--fail-under=0",
    r"^make wheel$": "FORCE_CUDA=0",
}


def find_commands(page: Path) -> Iterator[str]:
    """Yield the commands of the shell blocks of a page, each as one line without comment."""
    language: str | None = None  # of the block that contains the line; None outside of blocks
    command = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if (fence := BLOCK.match(line)) is not None:
            language = fence[1] if language is None else None
        elif language in SHELLS:
            command += line.strip()
            if command.endswith("\\"):
                command = command[:-1]
                continue
            if STARTS.match(command + " "):
                yield re.sub(r"\s{2,}#\s.*$", "", command)
            command = ""


# These targets would start this check again, or delete its files.
OMITTED_TARGETS = ("clean", "commands", "release-check", "test-all")


def list_targets() -> list[str]:
    """Return `make TARGET` for every target of the Makefile but `OMITTED_TARGETS`."""
    match = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = match[1].split() if match else []
    return [f"make {name}" for name in names if name not in OMITTED_TARGETS]


def shorten(command: str) -> str:
    """Return the command that runs here in place of a command of a page."""
    words = command
    for pattern, replacement in REPLACEMENTS.items():
        words = re.sub(pattern, replacement, words)
    options = [text for p, text in SHORTENING_OPTIONS.items() if re.search(p, command)]
    return " ".join([words, *options])


def write_files(folder: Path) -> None:
    """Write the files that pages name: a camera of 64 x 64 pixels and 28 bands, and snapshots."""
    scene_file = load_cube(bundled_path("scene.tif"))
    scene, wavelengths = scene_file.data, list(scene_file.wavelengths or ())
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :64, :64].contiguous()
    system = cassi.SDCassi(mask, bands=28, step=2)
    cubes = [scene[..., 60 * k : 60 * k + 64, 60 * k : 60 * k + 64] for k in range(3)]
    plane, truth = mask.squeeze().numpy(), cubes[0][0].numpy()
    y = [system(cube)[0, 0].numpy() for cube in cubes]
    for name in ("snapshot", "y", "a", "b", "c"):
        savemat(folder / f"{name}.mat", {"y": y[0]})
    savemat(folder / "mask.mat", {"mask": plane})
    savemat(folder / "tall.mat", {"y": np.pad(y[0], ((0, 54), (0, 0)))[:, :64]})
    masks = (np.random.default_rng(0).random((64, 64, 8)) > 0.5).astype(float)
    savemat(folder / "masks.mat", {"mask": masks})
    savemat(folder / "frame.mat", {"y": (masks * truth[:8].transpose(1, 2, 0)).sum(-1)})
    np.save(folder / "mask.npy", plane)
    np.save(folder / "y.npy", y[0])
    frames = {"snapshot": y[0] / y[0].max(), "dark": 0 * y[0], "flat": 0 * y[0] + 1, "mask": plane}
    for name, frame in frames.items():
        tifffile.imwrite(folder / f"{name}.tif", frame.astype(np.float32))
        counts = np.round(4000 * frame).astype(np.uint16)  # of 12 bits
        Image.fromarray(counts).save(folder / f"{name}.png")
    cassi.write_cube(folder / "four.npz", cubes[0][0, ::9], [450, 500, 550, 600])
    (folder / "questions.yaml").write_text("patch: {kind: region, window: [20, 40, 9, 9]}\n")
    (folder / "calibration.csv").write_text("wavelength,pixel\n440,0\n520,3\n610,6\n")
    for part in ("day", "truths", "cubes", "captures", "masks", "scenes/train", "scenes/validation",
                 "mine", "calibration", "snapshots"):  # fmt: skip
        (folder / part).mkdir(parents=True)
    for name, cube, frame in zip(("0001", "0002", "0005"), cubes, y, strict=True):
        tifffile.imwrite(folder / f"day/{name}.tif", frame)
        cassi.write_cube(folder / f"truths/{name}.npz", cube[0])
        pixels = np.moveaxis(cube[0].numpy(), 0, -1)
        savemat(folder / f"cubes/{name}.mat", {"cube": pixels})
        savemat(folder / f"captures/{name}.mat", {"y": frame, "mask": plane})
        savemat(folder / f"masks/{name}.mat", {"mask": plane})
        split = "validation" if name == "0005" else "train"
        variables = {"cube": pixels, "wavelengths": wavelengths}
        savemat(folder / f"scenes/{split}/{name}.mat", variables)
    write_toolbox(folder / "MST" / "datasets", cubes)
    # The camera of the pages on snapshots and cameras: 96 x 120, 15 bands, step -1.
    camera = cassi.SDCassi((torch.rand(96, 120) > 0.5).float(), bands=15, step=-1)
    np.save(folder / "calibration/mask.npy", camera.mask.squeeze().numpy())
    np.save(folder / "snapshots/0001.npy", camera(scene[:, :15, :96, :120])[0, 0].numpy())
    text = (ROOT / "docs/guides/snapshot.md").read_text().partition("```yaml\n")[2]
    (folder / "mine/my_camera.yaml").write_text(text.partition("```")[0])


def write_toolbox(root: Path, cubes: list[torch.Tensor]) -> None:
    """Write a small folder of the MST toolbox: scenes of 40 x 40, masks and tests of 32 x 32."""
    (root / "cave_1024_28").mkdir(parents=True)
    (root / "TSA_simu_data" / "Truth").mkdir(parents=True)
    for number, cube in enumerate(cubes, 1):
        values = np.moveaxis(cube[0].numpy(), 0, -1)
        counts = (values[:40, :40] * 65535).astype(np.uint16)
        savemat(root / f"cave_1024_28/scene{number}.mat", {"img_expand": counts})
        savemat(root / f"TSA_simu_data/Truth/scene{number:02}.mat", {"img": values[-32:, -32:]})
    mask = np.random.default_rng(0).random((32, 32))
    savemat(root / "TSA_simu_data/mask.mat", {"mask": mask})


def run(command: str, folder: Path, data: Path) -> tuple[str, str]:
    """Run a command; return "ok" or "failed", and the last line that a failed command printed."""
    at_root = re.match(r"make |\S*python\S* -m scripts\.", command)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"CASSI_DATA": str(data), "PATH": path}
    try:
        process = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT if at_root else folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "failed", f"longer than {LIMIT_SECONDS} s"
    if process.returncode == 0:
        return "ok", ""
    lines = (process.stderr.strip() or process.stdout.strip()).splitlines()
    return "failed", f"status {process.returncode}: {lines[-1] if lines else ''}"


# These run first, because commands of other pages read their results.
FIRST = (
    "cassi-train model=gap_net model.stages=1 hydra.run.dir=runs/first",
    "cassi-calibrate measurement=snapshot.mat mask=mask.mat hydra.run.dir=calibrated",
)


def main() -> int:
    """Run the commands of the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", help="pages, or Makefile; default: all")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    data = Path(os.environ.get("CASSI_DATA") or ROOT.parent / "shared/data")
    pages = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").rglob("*.md"))]
    if options.pages:
        pages = [(Path.cwd() / page).resolve() for page in options.pages]
    page_of: dict[str, str] = {}  # the first page of each command
    for page in pages:
        name = str(page.relative_to(ROOT))
        commands = list_targets() if name == "Makefile" else find_commands(page)
        page_of |= {command: name for command in commands if command not in page_of}
    has_data = all((data / name).is_dir() for name in DATA_FOLDERS)
    results = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="commands-") as folder:
        if not options.list:
            write_files(Path(folder))
        for command in [*(() if options.list else FIRST), *page_of]:
            reason = next((text for p, text in SKIP_REASONS.items() if re.search(p, command)), "")
            if not reason and NEEDS_DATA.search(command) and not has_data:
                reason = f"needs the data sets, which are not in {data}"
            start = time.perf_counter()
            if reason:
                result, words = "skipped", reason
            elif options.list:
                result, words = "", shorten(command)
            else:
                result, words = run(shorten(command), Path(folder), data)
            results[result] += 1
            seconds = f"{time.perf_counter() - start:.0f}"
            page_name = page_of.get(command, "first")
            print(f"{result:8} {seconds:>4} s  {page_name}: {command[:110]}  {words}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in results.items()))
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
