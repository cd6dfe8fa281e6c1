"""Measure time and memory of reconstructions of large scenes, as a whole and in blocks.

    python -m scripts.benchmarks.big_scenes                            # 256² to 1024², 28 bands
    python -m scripts.benchmarks.big_scenes --sizes 4096 --bands 100 --budget 4GiB
    python -m scripts.benchmarks.big_scenes --halos 0 16 40            # blocks against the whole

The scene repeats the bundled scene in tiles. Every second tile is mirrored, and each tile has
another brightness. The scene is measured in strips of rows, so it is never in memory as a whole and
may be larger than the memory. Every reconstruction runs in a process of its own, whose peak memory
is measured. The table has wall-clock seconds, and CPU seconds, which a busy machine does not
lengthen. Options after `--` go to cassi-reconstruct. With --halos each size is also reconstructed
without blocks. The table then has the largest and the root mean square difference of both cubes,
relative to the signal level.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import cassi
from cassi.data.bundled import bundled_path
from cassi.solvers import signal_level
from scripts.benchmarks.tables import Parser, Table

STRIP_ROWS = 128  # half of the bundled scene
# This program runs a command and prints its peak memory. The system only tells the largest peak of
# all children of a process, so the command needs a parent without other children.
PROGRAM = (
    "import resource, subprocess, sys; "
    "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


def make_scene(folder: Path, size: int, bands: int) -> list[str]:
    """Write measurement and mask of a scene of size × size pixels; return the options for them."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[0]
    scene = interpolate(scene.flatten(1).T[None], size=bands, mode="linear", align_corners=True)
    scene = scene[0].T.reshape(bands, 256, 256).contiguous()
    mask = (np.random.default_rng(0).random((size, size)) > 0.5).astype(np.float32)
    rows = []
    for start in range(0, size, STRIP_ROWS):
        strip = slice(start, min(start + STRIP_ROWS, size))
        camera = cassi.SDCassi(mask[strip], bands=bands, step=2)
        rows.append(camera(tile_rows(scene, strip, size)[None])[0, 0].numpy())
    np.save(folder / f"mask-{size}.npy", mask)
    np.save(folder / f"measurement-{size}.npy", np.concatenate(rows))
    return [f"{role}={folder}/{role}-{size}.npy" for role in ("measurement", "mask")]


def tile_rows(scene: Tensor, strip: slice, width: int) -> Tensor:
    """Return rows of the big scene `(C, rows, width)`.

    Every second tile is mirrored, so that neighbouring tiles join without an edge.
    """
    side = scene.shape[1]
    rows = torch.arange(strip.start, strip.stop)
    tile_row = torch.where((rows // side) % 2 == 0, rows % side, side - 1 - rows % side)
    tiles = []
    for column in range(math.ceil(width / side)):
        brightness = 0.6 + 0.4 * torch.cos(1.7 * (rows // side) + 0.9 * column).abs()
        tile = scene[:, tile_row] if column % 2 == 0 else scene[:, tile_row].flip(-1)
        tiles.append(tile * brightness[:, None])
    return torch.cat(tiles, -1)[..., :width].contiguous()


def reconstruct(folder: Path, *settings: str) -> dict[str, Any]:
    """Run cassi-reconstruct; return the content of its metrics.json, and its peak memory in GiB."""
    words = ["cassi", "reconstruct", "output.progress=false", f"hydra.run.dir={folder}", *settings]
    command = [sys.executable, "-c", PROGRAM, sys.executable, "-m", *words]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    results: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return results | {"peak": int(process.stdout.split()[-1]) / 2**20}


def compare(cube: Path, reference: Path, settings: list[str], bands: int) -> tuple[float, float]:
    """Return the largest and the root mean square difference, relative to the signal level.

    `settings` are the options of measurement and mask that `make_scene` returns.
    """
    y, mask = (np.load(word.partition("=")[2]) for word in settings)
    system = cassi.SDCassi(mask, bands=bands, step=2)
    level = float(signal_level(torch.from_numpy(y)[None, None], system))
    difference = np.abs(tifffile.imread(reference) - tifffile.imread(cube)) / level
    return float(difference.max()), float(np.sqrt((difference**2).mean()))


def main() -> None:
    """Print a row for each size and halo."""
    parser = Parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--budget", default="4GiB", help="memory_budget of the commands")
    parser.add_argument("--halos", nargs="+", default=[], help="compare blocks with the whole")
    parser.add_argument("overrides", nargs="*", default=["method=gap_tv"], help="after --")
    options = parser.parse_args()
    columns = ("size", "halo", "blocks", "seconds", "cpu s", "peak GiB", "largest", "rms")
    table = Table(*columns)
    with tempfile.TemporaryDirectory(dir=".") as name:
        for size in options.sizes:
            scene = make_scene(Path(name).resolve(), size, options.bands)
            reference = Path(name, f"whole-{size}").resolve()
            if options.halos:
                reconstruct(reference, *scene, *options.overrides)
            for halo in options.halos or [None]:
                folder = Path(name, f"{size}-{halo}").resolve()
                blocks = [f"memory_budget={options.budget}", *([f"halo={halo}"] if halo else [])]
                results = reconstruct(folder, *scene, *options.overrides, *blocks)
                cells = (results["seconds"], results.get("cpu_seconds", "–"), results["peak"])
                differences: tuple[object, ...] = ("", "")
                if halo:
                    files = folder / "cube.tif", reference / "cube.tif"
                    differences = compare(*files, scene, options.bands)
                n_blocks = len(results.get("blocks", [0]))
                table.print(f"{size}²", halo or "", n_blocks, *cells, *differences)


if __name__ == "__main__":
    main()
