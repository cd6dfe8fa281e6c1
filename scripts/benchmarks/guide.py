"""What a guide camera is worth: gain over `auto`, a guide out of place, one of another scene.

    python -m scripts.benchmarks.guide                     # CAVE's three validation scenes
    python -m scripts.benchmarks.guide data=cave_test      # the five test scenes
    python -m scripts.benchmarks.guide --methods self_supervised pretrained

A guide is simulated from the truth, with 1 % of noise. Out of place it is moved by 3 pixels, turned
by 0.5° and shows 2 % more of the scene; beyond the border of the truth it repeats the border.
"Known" is the same picture with its true motion. Another scene is the next one of the list.
Printed are PSNR and gain, and the time over that of the method alone.
"""

import math
import time
import warnings
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from scipy.ndimage import affine_transform
from torch import Tensor

import cassi
from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.systems import Guide, Guided, SDCassi
from cassi.viz.color import cie_response
from scripts.benchmarks.tables import Parser, Table

NOISE = 0.01
MOTION = torch.tensor([2.0, -2.24, math.radians(0.5), math.log(1 / 1.02)], dtype=torch.float64)
"""Down, right, angle, logarithm of the scale; see `cassi.guide_search.move`."""


@dataclass(frozen=True)
class Scene:
    """A scene with its snapshot."""

    name: str
    x: Tensor
    y: Tensor
    system: SDCassi
    wavelengths: tuple[float, ...]

    def response(self, kind: str) -> Tensor:
        """Return what a guide of a kind sees of the bands, `(G, C)`."""
        if kind == "RGB":
            return torch.from_numpy(cie_response(np.asarray(self.wavelengths)))
        return torch.full((1, self.x.shape[1]), 1 / self.x.shape[1])

    def picture(self, kind: str, motion: Tensor | None = None) -> Tensor:
        """Return the picture of a guide, `(1, G, H, W)`."""
        picture = Guide(self.response(kind), (self.x.shape[2], self.x.shape[3]))(self.x)
        if motion is not None:
            picture = away(picture, motion)
        size = picture.square().mean((2, 3), keepdim=True).sqrt()
        random = torch.Generator().manual_seed(0)
        return picture + NOISE * size * torch.randn(picture.shape, generator=random)

    def psnr(self, x: Tensor) -> float:
        """Return the PSNR of a cube, dB."""
        return float(cassi.metrics.psnr(x, self.x, preset="matlab-uint8").mean())


def away(picture: Tensor, motion: Tensor) -> Tensor:
    """Return the picture of which `move(…, motion)` makes this one, by splines of degree 5."""
    down, right, angle, size = motion.tolist()
    c, s = math.cos(angle) * math.exp(size), math.sin(angle) * math.exp(size)
    inverse = np.linalg.inv([[c, -s], [s, c]])
    centre = (np.array(picture.shape[2:]) - 1) / 2
    start = centre - inverse @ (centre + np.array([down, right]))
    images = picture.flatten(0, 1).double().numpy()
    moved = [affine_transform(v, inverse, start, order=5, mode="nearest") for v in images]
    return torch.from_numpy(np.stack(moved)).view_as(picture).to(picture)


def load_scenes(overrides: list[str]) -> list[Scene]:
    """Load the scenes of a data set, through its mask."""
    benchmark = load_benchmark(compose_settings(overrides, kind=Evaluate))
    scenes = []
    for name in benchmark.scenes:
        item = benchmark.load(name)
        assert item.truth is not None
        assert benchmark.wavelengths is not None
        x = item.truth[None]
        system = SDCassi(item.mask, x.shape[1], step=2)
        scenes.append(Scene(name, x, system(x), system, benchmark.wavelengths))
    return scenes


def main() -> None:
    """Print the tables of each method."""
    parser = Parser(__doc__)
    parser.add_argument("--methods", nargs="+", default=["auto"])
    parser.add_argument("overrides", nargs="*", default=["data=cave"], help="of cassi-evaluate")
    options = parser.parse_args()
    scenes = load_scenes(options.overrides)
    for method in options.methods:
        print(f"\n{method}\n")
        print_method(method, scenes)


def print_method(method: str, scenes: list[Scene]) -> None:
    """Print the table of one method."""
    table = Table("guide", "PSNR", "gain", "time", *(scene.name for scene in scenes))

    def run(scene: Scene, guide: Any = None, system: Any = None) -> tuple[float, float]:
        camera = scene.system if system is None else system
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            x = cassi.reconstruct(scene.y, camera, method, align=False, guide=guide)
        return scene.psnr(x), time.perf_counter() - start

    run(scenes[0])  # untimed
    plain = [run(scene) for scene in scenes]

    def row(name: str, results: list[tuple[float, float]]) -> None:
        scores = [score for score, _ in results]
        gain = mean(scores) - mean(score for score, _ in plain)
        ratio = median(r[1] / alone[1] for r, alone in zip(results, plain, strict=True))
        cells = (f"{mean(scores):.2f}", f"{gain:+.2f}", f"{ratio:.2f}")
        table.print(name, *cells, *(f"{score:.2f}" for score in scores))

    row("none", plain)
    for kind in ("pan", "RGB"):
        responses = [scene.response(kind) for scene in scenes]
        pictures = [scene.picture(kind) for scene in scenes]
        moved = [scene.picture(kind, MOTION) for scene in scenes]
        other = pictures[1:] + pictures[:1]
        for name, shown in (("", pictures), ("out of place", moved), ("another scene", other)):
            parts = zip(scenes, shown, responses, strict=True)
            row(f"{kind} {name}".strip(), [run(scene, (g, r)) for scene, g, r in parts])
        parts = zip(scenes, moved, responses, strict=True)
        cameras = [(scene, Guided(scene.system, g, r, motion=MOTION)) for scene, g, r in parts]
        row(f"{kind} out of place, known", [run(scene, None, camera) for scene, camera in cameras])


if __name__ == "__main__":
    main()
