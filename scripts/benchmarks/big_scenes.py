"""Reconstruct scenes from small to larger than the memory and print one table.

    python -m scripts.benchmarks.big_scenes                            # 256² to 1024², 28 bands
    python -m scripts.benchmarks.big_scenes --sizes 4096 --bands 100 --iterations 100 --budget 4GiB
    python -m scripts.benchmarks.big_scenes --check                    # blocked against whole

The scene is made of the bundled one, tiled, turned and brightened; nothing of its size is ever in
memory: the measurement is made by rows. Every reconstruction is a process of its own, so
that its peak memory is its own (getrusage of the child). Two times are given, because a busy
machine lengthens the one on the clock: seconds of the clock and of the processor, preparation
included; "per Mpx·band" divides the latter by megapixels times bands. A size of budget 0
is reconstructed whole. What follows `--` goes to cassi-reconstruct.

`--check` reconstructs each size whole and in blocks, with halos of several sizes, and prints the
largest and the root mean square difference over the signal level.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

import cassi
from cassi import solvers
from cassi.data.bundled import bundled_path
from cassi.data.formats.stacks import open_stack
from scripts.benchmarks.tables import Parser, Table

STRIP = 128  # rows at a time; the bundled scene has 256


def make_scene(folder: Path, size: int, bands: int) -> dict[str, Path]:
    """Write measurement and mask of a scene of size × size pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {role: folder / f"{role}-{size}-{bands}.npy" for role in ("measurement", "mask")}
    if all(name.exists() for name in names.values()):
        return names
    scene, random = bundled_scene(bands), np.random.default_rng(0)
    mask = (random.random((size, size)) > 0.5).astype(np.float32)
    rows = []
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        camera = cassi.SDCassi(mask[start:stop], bands=bands, step=2)
        rows.append(camera(tile_rows(scene, start, stop, size)[None])[0, 0].numpy())
    np.save(names["mask"], mask)
    np.save(names["measurement"], np.concatenate(rows))
    return names


def bundled_scene(bands: int) -> torch.Tensor:
    """Return the bundled scene with so many bands, `(bands, 256, 256)`."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[0]
    spectra = scene.flatten(1).T[None]
    resampled = interpolate(spectra, size=bands, mode="linear", align_corners=True)
    return resampled[0].T.reshape(bands, *scene.shape[1:]).contiguous()


def tile_rows(scene: torch.Tensor, start: int, stop: int, width: int) -> torch.Tensor:
    """Return rows of a big scene: tiles, mirrored so that they join, each of its brightness."""
    side = scene.shape[1]
    rows = torch.arange(start, stop)
    down = (rows // side) % 2
    inside = torch.where(down == 0, rows % side, side - 1 - rows % side)
    strip = scene[:, inside]
    tiles = []
    for column in range(-(-width // side)):
        bright = 0.6 + 0.4 * torch.cos(1.7 * (rows // side) + 0.9 * column).abs()
        tiles.append((strip if column % 2 == 0 else strip.flip(-1)) * bright[:, None])
    return torch.cat(tiles, -1)[..., :width].contiguous()


def reconstruct(
    files: dict[str, Path], folder: Path, budget: str, overrides: list[str]
) -> dict[str, Any]:
    """Run cassi-reconstruct in a process of its own and return metrics.json and its peak memory."""
    settings = [f"{role}={path}" for role, path in files.items()]
    settings += ["output.progress=false", f"hydra.run.dir={folder}", *overrides]
    if budget != "0":
        settings.append(f"memory_budget={budget}")
    program = (
        "import resource, subprocess, sys; "
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    command = [sys.executable, "-m", "cassi", "reconstruct", *settings]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    results: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    peak = int(done.stdout.split()[-1]) / 2**20
    return results | {"peak_GiB": peak, "wall_seconds": time.perf_counter() - start}


def print_table(options: argparse.Namespace) -> None:
    """Print one line a size."""
    table = Table("size", "blocks", "seconds", "cpu s", "per Mpx·band", "peak GiB", "residual")
    for size in options.sizes:
        files = make_scene(options.scratch, size, options.bands)
        folder = options.scratch / f"run-{size}-{options.bands}-{options.budget}"
        results = reconstruct(files, folder, options.budget, options.overrides)
        work = size * size / 1e6 * options.bands
        cpu = results.get("cpu_seconds", float("nan"))
        table.print(
            f"{size}²",
            len(results.get("blocks", [0])),
            f"{results['seconds']:.1f}",
            f"{cpu:.1f}",
            f"{cpu / work:.3f}",
            f"{results['peak_GiB']:.2f}",
            f"{results['relative_residual']:.2e}",
        )


def print_check(options: argparse.Namespace) -> None:
    """Print how far blocks are from the whole, for halos of several sizes."""
    table = Table("size", "halo", "blocks", "largest", "rms", "at seams")
    for size in options.sizes:
        files = make_scene(options.scratch, size, options.bands)
        whole = options.scratch / f"whole-{size}-{options.bands}"
        reconstruct(files, whole, "0", options.overrides)
        level = signal_level(files, options.bands)
        for halo in options.halos:
            folder = options.scratch / f"halo-{size}-{options.bands}-{halo}"
            overrides = [*options.overrides, f"halo={halo}"]
            results = reconstruct(files, folder, options.budget, overrides)
            stops = [block["lines"][1] for block in results["blocks"][:-1]]
            largest, mean, seams = compare(whole / "cube.tif", folder / "cube.tif", stops)
            shown = (f"{value / level:.1e}" for value in (largest, mean, seams))
            table.print(f"{size}²", halo, len(stops) + 1, *shown)


def signal_level(files: dict[str, Path], bands: int) -> float:
    """Return the signal level of a measurement."""
    mask, y = (np.load(files[role]) for role in ("mask", "measurement"))
    system = cassi.SDCassi(mask, bands=bands, step=2)
    return float(solvers.signal_level(torch.from_numpy(y)[None, None], system))


def compare(one: Path, other: Path, seams: list[int]) -> tuple[float, float, float]:
    """Return the largest difference of two cubes, the root mean square, the largest at seams."""
    stacks = [open_stack(path) for path in (one, other)]
    assert stacks[0] is not None
    assert stacks[1] is not None
    first, second = stacks[0][0], stacks[1][0]
    largest = square = near = 0.0
    for band in range(first.shape[0]):
        chosen = slice(band, band + 1)
        gap = np.abs(first.read(chosen)[0] - second.read(chosen)[0])
        largest, square = max(largest, float(gap.max())), square + float((gap**2).mean())
        for seam in seams:
            near = max(near, float(gap[max(0, seam - 16) : seam + 32].max()))
    return largest, (square / first.shape[0]) ** 0.5, near


def main() -> None:
    """Print the table that is asked for."""
    parser = Parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--iterations", type=int, help="of the solver")
    parser.add_argument("--budget", default="4GiB", help="memory_budget; 0 for none")
    parser.add_argument("--check", action="store_true", help="compare blocks with the whole")
    parser.add_argument("--halos", type=int, nargs="+", default=[16, 32, 40, 64])
    parser.add_argument("--scratch", type=Path, default=Path("outputs/big_scenes"))
    parser.add_argument("overrides", nargs="*", help="for cassi-reconstruct, after --")
    options = parser.parse_args()
    options.overrides = options.overrides or ["method=gap_tv"]
    if options.iterations is not None:
        options.overrides.append(f"solver.iterations={options.iterations}")
    print(f"{options.bands} bands, budget {options.budget}, {' '.join(options.overrides)}")
    print_check(options) if options.check else print_table(options)


if __name__ == "__main__":
    main()
