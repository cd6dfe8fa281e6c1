"""Compare the reconstruction of a spectral video as a sequence with that frame by frame.

    python -m scripts.benchmarks.spectral_video  # cave_test below $CASSI_DATA
    python -m scripts.benchmarks.spectral_video --data cave_train --scenes feathers balloons

Each sequence has 16 frames of 256×256 pixels and 28 bands. The cube of a scene is panned by 2 to 4
pixels per frame, and zoomed in by 13 %. A disc that shows the next scene moves across it, in the
other direction. The table compares `auto` frame by frame with `auto` inside of
`cassi.methods.Sequence`: it has the mean PSNR (dB) and the seconds per frame of each.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

import cassi
from cassi.data.scenes import find_scenes
from scripts.benchmarks.tables import Parser, Table, data_folder

SIZE, BANDS, STEP = 256, 28, 2
# Wavelengths of the bands in nm, from which pictures get their colours.
WAVELENGTHS = np.linspace(450, 650, BANDS)


def draw_sequence(cube: Tensor, disc_cube: Tensor, frames: int = 16) -> Tensor:
    """Return a scene that is panned and zoomed, with a disc of another scene that moves.

    Args:
        cube: `(C, S, S)`, the scene.
        disc_cube: `(C, S, S)`, the scene that the disc shows.
        frames: number of frames T.

    Returns:
        `(T, C, 256, 256)`, >= 0.
    """
    side, axis = cube.shape[-1], torch.arange(SIZE) - (SIZE - 1) / 2
    images = []
    for frame in range(frames):
        progress = frame / 15
        pan = 0.03 * math.sin(2 * math.pi * progress), 0.14 * progress - 0.07
        scene = _resample(cube, axis, axis, (0.84 - 0.1 * progress) * side / SIZE, pan)
        # The position of the disc's middle relative to the middle of the frame, pixels.
        down = ((0.35 + 0.25 * progress) - 0.5) * SIZE
        right = ((0.75 - 0.45 * progress) - 0.5) * SIZE
        disc = _resample(disc_cube, axis - down, axis - right, 0.8 * side / SIZE, (0.0, 0.0))
        distance = torch.hypot(axis[:, None] - down, axis - right)
        # The border of the disc is soft over two pixels, as edges in an image are.
        alpha = (0.5 + (0.11 * SIZE - distance) / 2).clamp(0, 1)
        # Bicubic interpolation overshoots below 0 at edges.
        images.append(torch.lerp(scene, disc, alpha).clamp_min(0))
    return torch.stack(images)


def _resample(
    cube: Tensor, rows: Tensor, columns: Tensor, zoom: float, pan: tuple[float, float]
) -> Tensor:
    """Sample a cube at rows and columns relative to its middle, times `zoom` and shifted by `pan`.

    `pan` is down and right, as fractions of the cube's side.
    """
    half = (cube.shape[-1] - 1) / 2
    points = rows * zoom / half + 2 * pan[0], columns * zoom / half + 2 * pan[1]
    grid = torch.stack(torch.meshgrid(*points, indexing="ij"), -1).flip(-1)[None]
    return grid_sample(cube[None], grid, "bicubic", "reflection", align_corners=True)[0]


def read(path: Path) -> Tensor:
    """Return the middle 256×256 pixels of a cube, `(28, 256, 256)`."""
    cube = torch.as_tensor(cassi.read_cube(path)).float()
    cube = cube.reshape(-1, *cube.shape[-2:])[:BANDS]
    top, left = ((side - SIZE) // 2 for side in cube.shape[1:])
    return cube[:, top : top + SIZE, left : left + SIZE].contiguous()


def draw_camera(random: torch.Generator) -> cassi.SDCassi:
    """Return the camera of all sequences, with a random mask."""
    mask = (torch.rand(SIZE, SIZE, generator=random) > 0.5).float()
    return cassi.SDCassi(mask, bands=BANDS, step=STEP)


def first_sequence(frames: int = 16) -> tuple[Tensor, cassi.SDCassi]:
    """Return the sequence of the first two scenes of `cave_test`, and the camera."""
    first, second, *_ = find_scenes(data_folder("cave_test"))
    truth = draw_sequence(read(first), read(second), frames)
    return truth, draw_camera(torch.Generator().manual_seed(0))


def main() -> None:
    """Read the options, and print the table."""
    parser = Parser(__doc__)
    parser.add_argument("--data", default="cave_test", help="folder below $CASSI_DATA")
    parser.add_argument("--scenes", nargs="+", help="names; all of the folder if left out")
    parser.add_argument("--frames", type=int, default=16)
    options = parser.parse_args()
    paths = find_scenes(data_folder(options.data))
    stems = [path.stem for path in paths]
    camera = draw_camera(torch.Generator().manual_seed(0))
    columns = ("frame by frame, dB", "sequence, dB", "gain", "s a frame", "s, sequence")
    table = Table("scene", *columns)
    rows = []
    for name in options.scenes or stems:
        index = stems.index(name)
        disc_cube = read(paths[(index + 1) % len(paths)])
        truth = draw_sequence(read(paths[index]), disc_cube)[: options.frames]
        snapshots = [camera(frame[None]) for frame in truth]
        method = cassi.methods.auto()
        method.run(snapshots[0], camera)  # untimed: the first run loads and compiles
        row = []
        for reconstructor in (method, cassi.methods.Sequence(method).begin()):
            start = time.perf_counter()
            cubes = [reconstructor.run(y, camera).x for y in snapshots]
            seconds = (time.perf_counter() - start) / len(truth)
            scores = [float(cassi.metrics.psnr(x[0], t)) for x, t in zip(cubes, truth, strict=True)]
            row.append((sum(scores) / len(scores), seconds))
        rows.append(row)
        print_row(table, name, row)
    print_row(table, "mean", np.mean(np.array(rows), axis=0))


def print_row(table: Table, name: str, row: Sequence[Sequence[float]]) -> None:
    """Print the scores and seconds of both reconstructions, frame by frame and as a sequence."""
    (frame_psnr, frame_seconds), (sequence_psnr, sequence_seconds) = row
    gain = sequence_psnr - frame_psnr
    cells = f"{frame_psnr:.2f}", f"{sequence_psnr:.2f}", f"{gain:+.2f}"
    table.print(name, *cells, f"{frame_seconds:.2f}", f"{sequence_seconds:.2f}")


if __name__ == "__main__":
    main()
