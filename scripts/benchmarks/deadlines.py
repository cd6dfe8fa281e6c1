"""Measure the methods that `deadline=` chooses from, and say which one each deadline takes.

    python -m scripts.benchmarks.deadlines                        # one thread
    python -m scripts.benchmarks.deadlines --deadlines 20ms 2s
    python -m scripts.benchmarks.deadlines --device cuda

The first table has single frames: CAVE's three validation scenes (256×256×28) through the bundled
mask, with a step of 2. The second table has the third frame of a sequence, in which such a scene is
panned and zoomed; see `scripts.benchmarks.spectral_video`. `dB` is the mean PSNR without noise, and
`30 dB` that with white noise of 30 dB. `ms` is the least time of a frame, of all scenes: of the
processor, as other programs do not change it, but on a GPU that of the clock. `operations` is the
number of operations that torch dispatches for a frame, without views. On a GPU each of them is a
launch, or several; those in CUDA graphs are launched together.

A deadline takes the first method of the table with at most this time. The commands also demand a
margin; see `cassi.methods.choose_within`.
"""

import time
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import cassi
from cassi.apps.reconstructors.deadline import list_candidates
from cassi.data.bundled import bundled_path
from cassi.methods.deadline import parse_deadline
from cassi.pipeline.snapshot import Camera, Snapshot
from scripts.benchmarks.kinds import draw_scene
from scripts.benchmarks.spectral_video import draw_sequence
from scripts.benchmarks.tables import Parser, Table, write_json

N_SCENES, N_FRAMES, SIZE, BANDS = 3, 3, 256, 28
DEADLINES = ("20ms", "100ms", "500ms", "2s", "5s")


class OperationCounter(TorchDispatchMode):
    """Counts the operations that compute something."""

    n_operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.n_operations += not func.is_view
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Row:
    """The results of a method: its name, ms, mean PSNR without and with noise, operations."""

    name: str
    milliseconds: float
    psnr: float
    noisy_psnr: float
    operations: int


def read_frames(is_sequence: bool) -> list[Tensor]:
    """Return the frames `(T, C, H, W)` of each scene."""
    cubes = [
        draw_scene("scenes", k, SIZE, torch.Generator().manual_seed(k)) for k in range(N_SCENES)
    ]
    if not is_sequence:
        # The first of two runs loads weights and compiles.
        return [cube.expand(2, -1, -1, -1) for cube in cubes]
    return [draw_sequence(cube, cubes[k - 1], N_FRAMES) for k, cube in enumerate(cubes)]


@torch.no_grad()
def measure(system: Any, frames: list[Tensor], name: str, is_sequence: bool) -> Row:
    """Reconstruct the frames of all scenes by the method of a name."""
    clock = time.perf_counter if system.mask.is_cuda else time.process_time
    seconds, scores, noisy_scores = list[float](), list[float](), list[float]()
    for truth in frames:
        for noise, results in ((None, scores), ({"name": "white", "snr_db": 30}, noisy_scores)):
            ys = [cassi.simulate(x[None].to(system.mask), system, noise=noise) for x in truth]
            snapshot = Snapshot(ys[0], Camera(system))
            method = list_candidates(snapshot, is_sequence)[name]()
            for y in ys:
                start = clock()
                cube = method.run(y, system).x.cpu()
                seconds.append(clock() - start)
            results.append(float(cassi.metrics.psnr(cube, truth[-1:], preset="matlab-uint8")))
    with OperationCounter() as counter:
        method.run(ys[-1], system)
    return Row(name, 1e3 * min(seconds), mean(scores), mean(noisy_scores), counter.n_operations)


def main() -> None:
    """Print both tables, and the choices."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--deadlines", nargs="+", default=DEADLINES)
    options = parser.parse_args()
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :SIZE, :SIZE]
    system = cassi.SDCassi(mask, BANDS, step=2).to(options.device)
    figures: dict[str, Any] = {}
    for kind, is_sequence in (("one frame", False), ("sequence", True)):
        frames, rows = read_frames(is_sequence), list[Row]()
        snapshot = Snapshot(system(frames[0][:1].to(options.device)), Camera(system))
        table = Table(kind, "ms", "dB", "30 dB", "operations")
        for name in list_candidates(snapshot, is_sequence):
            row = measure(system, frames, name, is_sequence)
            rows.append(row)
            scores = (f"{score:.2f}" for score in (row.psnr, row.noisy_psnr))
            table.print(name, f"{row.milliseconds:.1f}", *scores, row.operations)
        for deadline in options.deadlines:
            limit = 1e3 * parse_deadline(deadline)
            fast_names = [row.name for row in rows if row.milliseconds <= limit]
            print(f"{deadline}: {fast_names[0] if fast_names else 'none'}")
        figures[kind] = table.rows
    write_json(options.json, "deadlines", figures)


if __name__ == "__main__":
    main()
