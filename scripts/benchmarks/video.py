"""Measure PSNR and time of methods on the video snapshots that papers use as a benchmark.

    python -m scripts.benchmarks.video
    python -m scripts.benchmarks.video --methods gap_tv auto --threads 1
    python -m scripts.benchmarks.video --json runs/video.json

The snapshots of kobe, traffic and runner (256 × 256 pixels, 8 frames in each) are read from
``$CASSI_DATA/cacti``. The table has the PSNR (dB, peak 1, cube clipped to [0, 1], mean over frames)
and the seconds of each method.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cassi
from scripts.benchmarks.tables import Parser, Table, data_folder, write_json

METHODS: dict[str, Any] = {
    "auto, of bands": cassi.methods.auto(),
    "gap_tv": "gap_tv",
    "auto": "auto",  # for a camera of a video, `auto` runs `video`
    "video, 4 passes": {"method": "video", "overrides": {"solver.passes": 4}},
}


def read(folder: Path, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return truth `(1, 8, H, W)`, snapshot `(1, 1, H, W)` and masks `(8, H, W)`."""
    truth = np.load(folder / f"{name}_ground_truth.npz")["x"]
    with np.load(folder / f"{name}_snapshot.npz") as file:
        y, masks = file["y"], file["masks"]
    x, y, masks = (torch.from_numpy(value.astype(np.float32)) for value in (truth, y, masks))
    return x[None], y[None, None], masks


def main() -> None:
    """Print the table."""
    parser = Parser(__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    folder = data_folder("cacti")
    names = sorted(path.stem for path in folder.glob("sample*.json"))
    scenes = [json.loads((folder / f"{name}.json").read_text())["scene_id"] for name in names]
    table, scores = Table("method", *scenes, "mean"), {}
    for method in options.methods:
        cells, values = [], []
        for name in names:
            truth, y, masks = read(folder, name)
            camera = cassi.SDCassi(masks, bands=len(masks), step=0)
            start = time.perf_counter()
            x = cassi.reconstruct(y, camera, METHODS[method])
            seconds = time.perf_counter() - start
            error = (x.clamp(0, 1) - truth).square().mean((-2, -1))
            values.append(float(-10 * error.log10().mean()))
            cells.append(f"{values[-1]:.2f} ({seconds:.1f} s)")
        table.print(method, *cells, f"{sum(values) / len(values):.2f}")
        scores[method] = dict(zip(scenes, (round(value, 2) for value in values), strict=True))
    write_json(options.json, "videos", scores)


if __name__ == "__main__":
    main()
