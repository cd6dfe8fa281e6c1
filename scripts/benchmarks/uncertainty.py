"""Do error bars hold: coverage, regions, sparsification, warnings and time, through five cameras.

    python scripts/benchmarks/uncertainty.py OUT [--data cave_test] [--seconds 200]

One file of numbers for each scene, camera and method goes into OUT; what is there already is not
done again, so `--seconds` cuts the work into pieces. Then the tables are printed, means and ranges
over scenes. The cameras are that of the data set, the same with white noise of 30 dB, with a random
binary mask, with 15 bands and step −1, and a twin of it whose mask lies (0.4, −0.3) pixels off,
which nobody is told. Beside σ, the gradient of the cube and the difference between two methods are
asked where errors are large.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cassi
from cassi import uncertainty
from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import Recipe, compose_settings, settings_of, understand
from cassi.apps.settings import Evaluate
from cassi.evaluation import Twin
from cassi.solvers.statistics import Statistics
from cassi.uncertainty.regions import sparsification

CAMERAS = ("nominal", "30 dB", "binary mask", "15 bands, step -1", "mask off by 0.4")
METHODS = ("auto", "pretrained")
SHIFT = (0.4, -0.3)
SIDE, PLACES = 9, 40


@dataclass(frozen=True)
class Row:
    """What one method's error bars are worth on one scene through one camera."""

    scene: str
    camera: str
    method: str
    psnr: float
    scores: dict[str, float]
    regions: float
    """Share of the 9×9 means within their 90 % interval."""
    shapes: float
    """The same of spectra divided by their mean, of regions with light."""
    gradient: float
    """AUSE of the gradient in the place of σ."""
    difference: float | None
    """AUSE of |x − x'|, x' of the other method, where that has been run."""
    seconds: float
    more: float
    """Seconds that the error bars took."""
    sources: dict[str, float]
    warnings: list[str]


def main() -> None:
    """Measure what is not there, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", default="cave_test", help="of cassi-evaluate")
    parser.add_argument("--scenes", nargs="*", default=None)
    parser.add_argument("--cameras", nargs="*", default=CAMERAS)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="then it pauses, status 3")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    benchmark = load_benchmark(compose_settings([f"data={options.data}"], kind=Evaluate))
    for camera in options.cameras:
        for scene in options.scenes or benchmark.scenes:
            for method in options.methods:
                name = f"{scene}-{CAMERAS.index(camera)}-{method}"
                path = options.folder / f"{name}.json"
                if path.exists():
                    continue
                if time.perf_counter() - began > options.seconds:
                    sys.exit(3)
                item = benchmark.load(scene)
                assert item.truth is not None
                truth, y, system = make(item.truth[None], item.mask, camera, scene)
                cube = options.folder / f"{scene}-{CAMERAS.index(camera)}.pt"
                row = measure(scene, camera, method, truth, y, system, cube)
                path.write_text(json.dumps(asdict(row), indent=1))
                print(scene, camera, method, row.scores["coverage/90"], flush=True)
    rows = [Row(**json.loads(path.read_text())) for path in sorted(options.folder.glob("*.json"))]
    print_tables(rows)


def make(truth: Tensor, mask: Any, camera: str, scene: str) -> tuple[Tensor, Tensor, cassi.SDCassi]:
    """Return truth, measurement, and the camera that methods are told of."""
    mask = torch.as_tensor(mask)
    bands, step = truth.shape[1], 2
    if camera == "binary mask":
        random = torch.Generator().manual_seed(0)
        mask = (torch.rand(mask.shape, generator=random) < 0.5).float()
    if camera == "15 bands, step -1":
        chosen = torch.linspace(0, bands - 1, 15).round().long()
        truth, bands, step = truth[:, chosen].contiguous(), 15, -1
    system = cassi.SDCassi(mask, bands, step=step)
    noise = {"name": "white", "snr_db": 30.0} if camera == "30 dB" else None
    y = cassi.simulate(truth, system, noise=noise, scene=scene)
    if camera == "mask off by 0.4":
        y = Twin(shift=SHIFT).expose(truth, system)
    return truth, y, system


def measure(
    scene: str,
    camera: str,
    method: str,
    truth: Tensor,
    y: Tensor,
    system: cassi.SDCassi,
    other: Path,
) -> Row:
    """Reconstruct with error bars, and compare them with the errors."""
    reconstructor, _ = Recipe(settings_of(understand(method)), y.device).make(system.bands)
    statistics = Statistics(lambda: [(y, system)])
    torch.manual_seed(0)
    start = time.perf_counter()
    x = reconstructor.run(y, system, statistics=statistics).checked().x
    middle = time.perf_counter()
    found = uncertainty.estimate(y, system, reconstructor, x, statistics=statistics)
    end = time.perf_counter()
    error = (x - truth).abs()
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    down[..., 1:-1, :] = (x[..., 2:, :] - x[..., :-2, :]) / 2
    right[..., 1:-1] = (x[..., 2:] - x[..., :-2]) / 2
    difference = None
    if other.exists():
        first, cube = torch.load(other, weights_only=True)
        if first != method:
            difference = sparsification(error, (x - cube).abs())
    else:
        torch.save((method, x), other)
    result = cassi.Reconstruction(x, found.std, found.pattern, [found.sources], [found.warnings])
    regions, shapes = hold(result, truth)
    return Row(
        scene=scene,
        camera=camera,
        method=method,
        psnr=float(cassi.metrics.psnr(x, truth).mean()),
        scores=uncertainty.score(x[0], found.std[0], truth[0]),
        regions=regions,
        shapes=shapes,
        gradient=sparsification(error, (down.square() + right.square()).sqrt()),
        difference=difference,
        seconds=middle - start,
        more=end - middle,
        sources=found.sources,
        warnings=list(found.warnings),
    )


def hold(result: cassi.Reconstruction, truth: Tensor) -> tuple[float, float]:
    """Return which share of the means of squares, and of their shapes, their intervals hold."""
    random = torch.Generator().manual_seed(0)
    height, width = truth.shape[-2:]
    means, shapes = [], []
    level = float(truth.mean())
    for _ in range(PLACES):
        top = int(torch.randint(0, height - SIDE + 1, (), generator=random))
        left = int(torch.randint(0, width - SIDE + 1, (), generator=random))
        where = slice(top, top + SIDE), slice(left, left + SIDE)
        found = uncertainty.region(result, where)
        true = truth[..., where[0], where[1]].mean((-2, -1))
        means.append((found.mean - true).abs() <= uncertainty.NORMAL * found.std)
        if float(true.mean()) > 0.2 * level:
            shape = true / true.mean(1, keepdim=True)
            shapes.append((found.shape - shape).abs() <= uncertainty.NORMAL * found.shape_std)
    return float(torch.cat(means).float().mean()), float(torch.cat(shapes).float().mean())


def print_tables(rows: list[Row]) -> None:
    """Print means over scenes, and the extremes where they matter."""
    print(
        "\n| camera | method | PSNR | in 50 % | 80 % | 90 % (least, most) | 95 % | 9×9 means "
        "| shapes | width | NLL | AUSE | gradient | difference | warned | time |"
    )
    print(f"|{'---|' * 16}")
    for camera in CAMERAS:
        for method in METHODS:
            own = [row for row in rows if (row.camera, row.method) == (camera, method)]
            if not own:
                continue
            score = {name: [row.scores[name] for row in own] for name in own[0].scores}
            ninety = score["coverage/90"]
            other = [row.difference for row in own if row.difference is not None]
            warned = sum(any("mask seems" in w for w in row.warnings) for row in own)
            said = sum(bool(row.warnings) for row in own)
            cells = [
                camera,
                method,
                f"{_mean([row.psnr for row in own]):.2f}",
                *(f"{100 * _mean(score[f'coverage/{level}']):.1f}" for level in (50, 80)),
                f"{100 * _mean(ninety):.1f} ({100 * min(ninety):.1f}, {100 * max(ninety):.1f})",
                f"{100 * _mean(score['coverage/95']):.1f}",
                f"{100 * _mean([row.regions for row in own]):.1f}",
                f"{100 * _mean([row.shapes for row in own]):.1f}",
                f"{_mean(score['width']):.4f}",
                f"{_mean(score['nll']):.2f}",
                f"{_mean(score['ause']):.3f}",
                f"{_mean([row.gradient for row in own]):.3f}",
                f"{_mean(other):.3f}" if other else "–",
                f"{warned} + {said - warned} of {len(own)}",
                f"{_mean([1 + row.more / row.seconds for row in own]):.2f}×",
            ]
            print(f"| {' | '.join(cells)} |")


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


if __name__ == "__main__":
    main()
