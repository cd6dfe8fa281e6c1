"""Train cassi_net with a start in every step and with starts that come again; print a table.

    python scripts/benchmarks/training.py [--steps 120] [--batch 4] [--crop 64] [--threads 1]
    python scripts/benchmarks/training.py --precision bf16-mixed        # as the recipes train

Both trainings begin with the same weights and see crops of the bundled scene. They take turns, a
step of one after a step of the other, so that a busy machine slows both alike. The first has a new
batch with a start of its own in every step. The second has a pool of batches, each of which comes
`--reuse` times (`data.pool`, `data.reuse`, `task.starts`), and a fused optimizer
(`+optimizer.fused=true`). `loss` is that of the training, over the last third of its steps.
`unseen` is that of the trained networks on batches that neither has seen, the same for both, each
with its standard error.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from statistics import fmean, median, stdev
from typing import Any

import torch
from torch import Tensor

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.datasets import TrainingCrops
from cassi.data.io import load_cube
from cassi.data.scenes import load_scene
from cassi.data.simulation import MaskCrops, Simulator, WhiteNoise
from cassi.metrics import psnr
from cassi.precision import autocast
from cassi.training import MultiStage
from cassi.training.data import place_of
from cassi.training.module import begin_batch, combine_seeds
from cassi.training.starts import Starts

UNSEEN = 1_000_000
"""Number of the first batch that judges."""
JUDGES = 8


class Lesson:
    """A training of cassi_net on the bundled scene, step by step."""

    def __init__(self, told: argparse.Namespace, pool: int | None, starts: Starts | None) -> None:
        torch.manual_seed(0)
        self.net: Any = cassi.create_model("cassi_net", bands=28).train()
        self.net.to(told.device, memory_format=torch.channels_last)
        wavelengths = load_cube(bundled_path("scene.tif")).wavelengths or ()
        scene = load_scene(bundled_path("scene.tif"), wavelengths)
        self.samples = TrainingCrops([scene], size=told.crop, length=1)
        masks = MaskCrops(cassi.read_mask(str(bundled_path("mask.tif")))[0, 0])
        self.simulate = Simulator(masks, step=2, noise=WhiteNoise(snr_db=(25, 65)))
        self.loss, self.batch, self.device = MultiStage(), told.batch, told.device
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=4e-4, fused=pool is not None)
        self.precision = told.precision
        self.pool, self.reuse, self.starts = pool, told.reuse, starts

    def measure(self, place: int) -> tuple[Tensor, Tensor, Any]:
        """Return cubes, measurements and camera of a batch."""
        seed = combine_seeds(0, place)
        torch.manual_seed(seed)
        x = torch.stack([self.samples[place * self.batch + i] for i in range(self.batch)])
        x = x.to(self.device)
        return x, *self.simulate(x, torch.Generator().manual_seed(seed))

    def steps(self, count: int) -> Iterator[tuple[float, float]]:
        """Yield the seconds and the loss of every step."""
        for step in range(count):
            began = time.perf_counter()
            place = place_of(step, self.pool, None if self.pool is None else self.reuse)
            x, y, system = self.measure(place)
            start: Tensor | None = None
            known: dict[str, Tensor] = {}
            if self.starts is not None and self.pool is not None:
                begin = partial(begin_batch, self.net, y, system)
                start, noise = self.starts(str(place % self.pool), begin, place)
                start, known = start.to(y), {} if noise is None else {"noise": noise.to(y)}
            with autocast(self.precision, y.device):
                outputs = self.net.outputs(y, system, start, **known)
            loss = self.loss(outputs, x)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            value = loss.item()  # waits for a GPU
            yield time.perf_counter() - began, value

    @torch.no_grad()
    def judge(self) -> tuple[list[float], float]:
        """Return the loss of batches that no step has seen, and their mean PSNR in dB."""
        self.net.eval()
        found, quality = [], []
        for place in range(UNSEEN, UNSEEN + JUDGES):
            x, y, system = self.measure(place)
            cubes = self.net.outputs(y, system)
            found.append(float(self.loss(cubes, x)))
            quality.append(float(psnr(cubes[0], x).mean()))
        return found, fmean(quality)

    @torch.no_grad()
    def halve(self) -> None:
        """Round the weights to half precision."""
        for weight in self.net.parameters():
            weight.copy_(weight.half())


def main() -> None:
    """Train, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    for name, usual in {"steps": 120, "batch": 4, "crop": 64, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--pool", type=int, default=8, help="batches that come again")
    parser.add_argument("--reuse", type=int, default=8, help="how often each comes")
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    with tempfile.TemporaryDirectory() as folder:
        lessons = {
            "a start in every step": Lesson(told, None, None),
            f"pool {told.pool}, reuse {told.reuse}": Lesson(told, told.pool, Starts(folder)),
        }
        turns = zip(*(lesson.steps(told.steps) for lesson in lessons.values()), strict=True)
        made = list(zip(*turns, strict=True))
    print("| training | ms a step | median | loss | unseen |\n|---|---|---|---|---|")
    whole = [fmean(seconds for seconds, _ in steps) for steps in made]
    judged = {name: lesson.judge() for name, lesson in lessons.items()}
    for (name, (unseen, _)), steps, mean in zip(judged.items(), made, whole, strict=True):
        late = [loss for _, loss in steps[-(told.steps // 3) :]]
        middle = median(seconds for seconds, _ in steps)
        cells = f"{1e3 * mean:.0f} | {1e3 * middle:.0f} | {_show(late)} | {_show(unseen)}"
        print(f"| {name} | {cells} |")
    print(f"\n{whole[0] / whole[1]:.2f} times as fast, {told.steps} steps, batch {told.batch}")
    for name, lesson in lessons.items():
        lesson.halve()
        change = lesson.judge()[1] - judged[name][1]
        print(f"{name}: PSNR {judged[name][1]:.3f} dB, {change:+.4f} dB with weights in float16")


def _show(values: list[float]) -> str:
    return f"{fmean(values):.4f} ± {stdev(values) / len(values) ** 0.5:.4f}"


if __name__ == "__main__":
    main()
