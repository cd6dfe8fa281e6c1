"""Calibrate the curve of a prism from a straight line, and see what the cube gains.

    python scripts/benchmarks/prism.py --first 1 --draws 1

The camera is made on a grid four times as fine (`FineTwin`): 18 bands, 430 to 690 nm over 40 pixels
along the rows, longer wavelengths at either end. The given camera has a straight line between the
outermost bands. PSNR is that of cubes registered with the truth, without the outermost 4 pixels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.reconstructors import compose_settings
from cassi.camera_search import calibrate_on
from cassi.systems import SDCassi
from scripts.benchmarks.fine_twin import FINE, FineTwin, enlarged
from scripts.benchmarks.tables import Parser, Table

SHAPE, BANDS, SPAN, SHIFT = (160, 192), 18, 40, (1, -2)
INNER = (..., slice(4, -4), slice(4, -4))


def main() -> None:
    """Print a line for each draw."""
    parser = Parser(__doc__)
    parser.add_argument("--draws", type=int, default=5, help="cameras")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    arguments = parser.parse_args()
    scenes = sorted((Path(compose_settings().paths.data_dir) / "cave_train").glob("*.tif"))
    index = 0.0125 / (torch.linspace(0.43, 0.69, BANDS, dtype=torch.float64).square() - 0.015)
    curve = SPAN * (index - index[-1]) / (index[0] - index[-1])
    table = Table("draw", "line", "calibrated", "true curve", "offsets off by at most")
    for seed in range(arguments.first, arguments.first + arguments.draws):
        offsets = curve if seed % 2 else SPAN - curve
        first, last = float(offsets[0]), float(offsets[-1])
        random = torch.Generator().manual_seed(seed)
        mask = (torch.rand(*SHAPE, generator=random) < 0.5).float()
        where = {"detector": SHAPE[0] + SPAN + 2, "axis": -2}
        line = SDCassi(mask, BANDS, offsets=torch.linspace(first, last, BANDS).tolist(), **where)
        twin = FineTwin(line, SHIFT, tuple(offsets.tolist()), {})
        scene = enlarged(cassi.read_cube(scenes[seed % len(scenes)]), SHAPE, BANDS)
        y = twin.measure(scene)
        _, found = calibrate_on(y, line)
        fine = mask.repeat_interleave(FINE, 0).repeat_interleave(FINE, 1).roll(SHIFT[1], 1)
        moved = (offsets + SHIFT[0] / FINE).tolist()
        true = SDCassi(avg_pool2d(fine[None], FINE)[0], BANDS, offsets=moved, **where)
        levels = []
        for camera in (line, found, true):
            x = cassi.reconstruct(y, camera)[INNER]
            levels.append(
                max(
                    cassi.metrics.psnr(x, twin.cube(scene.roll(right, -1), down / FINE)[INNER])
                    for down in range(-FINE, FINE + 1)
                    for right in (-2, 0, 2)
                ).item()
            )
        away = torch.tensor(found.offsets, dtype=torch.float64) - offsets
        worst = float((away - away.mean()).abs().max())
        table.print(seed, *(f"{level:.2f}" for level in levels), f"{worst:.2f}")


if __name__ == "__main__":
    main()
