"""A sensor's frame with one line of light per band: what calibration is worth.

    python -m scripts.benchmarks.lines --scenes 6

Each camera has 16 bands of 2 pixels along the rows, upwards, a curve of 0.45 pixels, and a mask of
cells of 2×2 pixels, half a pixel lower and a quarter farther right than its user has it. A fine
grid of four parts a pixel is summed by a sensor of 12 bits with highlights and a dark column.
"""

import time
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

import cassi
from cassi import metrics
from cassi.pipeline.align import align
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import SDCassi, System
from scripts.benchmarks.lab import read_scene
from scripts.benchmarks.tables import Parser, Table, data_folder

SIDE, BANDS, STEP, CURVE, FINE = 256, 16, 2.0, 0.45, 4
WAVELENGTHS = torch.linspace(460, 640, BANDS).tolist()
_BORDER = 4  # pixels that are not scored


class Bench(NamedTuple):
    """A frame, its camera as the user has it, and the truth."""

    x: Tensor
    y: Tensor
    good: Tensor
    camera: SDCassi
    true: SDCassi

    def system(self, camera: SDCassi) -> System:
        """Return a camera with its bad pixels left out."""
        return camera.weighted(bad_pixels=~self.good)

    def score(self, system: System) -> float:
        """Return the PSNR of what `auto` makes of the frame, in one unit."""
        inner = (..., slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
        found, truth = cassi.reconstruct(self.y, system, align=False)[0][inner], self.x[inner]
        scale = (found * truth).sum() / found.square().sum()
        return float(metrics.psnr((scale * found).clamp(0, 1), truth))


def draw(number: int) -> Bench:
    """Draw a camera that looks at one of the training scenes."""
    random = torch.Generator().manual_seed(number)
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    cube, known = read_scene(scenes[number % len(scenes)])
    at = torch.tensor(
        [min(range(len(known)), key=lambda k: abs(known[k] - nm)) for nm in WAVELENGTHS]
    )
    x = interpolate(cube[:, at].float(), size=(SIDE, SIDE), mode="area")[0]
    x = x / x.max()
    cells = (torch.rand(SIDE // 2, SIDE // 2, generator=random) > 0.5).float()
    fine = cells.repeat_interleave(2 * FINE, 0).repeat_interleave(2 * FINE, 1)
    fine = fine.roll((FINE // 2, FINE // 4), (0, 1))
    z = torch.linspace(-1, 1, BANDS, dtype=torch.float64)
    offsets = (STEP * torch.arange(BANDS) + CURVE * (1 - z.square())).flip(0)
    rows = SIDE + int(offsets.max().ceil())
    light = fine * interpolate(x[None], scale_factor=FINE, mode="bilinear")[0]
    y = torch.zeros(rows * FINE, SIDE * FINE)
    for band, offset in zip(light, (offsets * FINE).tolist(), strict=True):
        first, share = int(offset), offset % 1
        for start, weight in ((first, 1 - share), (first + 1, share)):
            seen = y[start : start + len(band)]
            seen += weight * band[: len(seen)]
    y = avg_pool2d(y[None, None], FINE)
    y = y / y.quantile(0.995)
    y = y + 0.003 * torch.randn(y.shape, generator=random) * y.clamp_min(0.02).sqrt()
    good = y < 1
    dead = int(torch.randint(40, SIDE - 40, (1,), generator=random))
    good[..., dead], y[..., dead] = False, 0
    y = (y.clamp(0, 1) * 4095).round() / 4095
    mask = cells.repeat_interleave(2, 0).repeat_interleave(2, 1)
    line = (STEP * torch.arange(BANDS)).flip(0).tolist()
    camera = SDCassi(mask, BANDS, axis=-2, offsets=line, detector=rows)
    seen_mask = avg_pool2d(fine[None, None], FINE)[0, 0]
    true = SDCassi(seen_mask, BANDS, axis=-2, offsets=offsets.tolist(), detector=rows)
    return Bench(x, y, good, camera, true)


def main() -> None:
    """Print a table."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--scenes", type=int, default=6, help="how many")
    arguments = parser.parse_args()
    columns = ("nominal", "default", "calibrated", "true camera, dB")
    table = Table("scene", *columns, "curve beside the true one, px", "CPU s")
    middle = BANDS // 2
    for number in range(arguments.scenes):
        bench = draw(number)
        bench.camera.all_light = True  # as a sensor's frame is taken
        system = bench.system(bench.camera)
        aligned = align(bench.y, system)
        start = time.process_time()
        found = calibrate_on(bench.y, system, wavelengths=WAVELENGTHS).system
        seconds = time.process_time() - start
        assert isinstance(found, SDCassi)
        off = [a - b for a, b in zip(found.offsets, bench.true.offsets, strict=True)]
        bent = off[middle] - (off[0] + off[-1]) / 2
        systems = (
            system,
            system if aligned is None else aligned.system,
            bench.system(found),
            bench.system(bench.true),
        )
        levels = [f"{bench.score(each):.2f}" for each in systems]
        table.print(number, *levels, f"{bent:+.2f}", f"{seconds:.0f}")


if __name__ == "__main__":
    main()
