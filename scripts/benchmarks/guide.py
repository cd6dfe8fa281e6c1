"""Measure how much a guide camera improves reconstructions.

    python -m scripts.benchmarks.guide                     # CAVE's three validation scenes
    python -m scripts.benchmarks.guide data=cave_test      # the five test scenes
    python -m scripts.benchmarks.guide --methods self_supervised pretrained

The picture of a guide is simulated from the truth, with 1 % of noise. The rows `pan` and `RGB` have
a picture that lies on the cube. In the rows `out of place` the picture is shifted by 3 pixels,
rotated by 0.5° and shows 2 % more of the scene; beyond the border of the truth it repeats the
border. In the rows `known` the method gets the true motion of such a picture. In the rows `another
scene` it gets the picture of the next scene of the list. The table has the PSNR, the gain over the
method without a guide, and the time relative to that method.
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
# Shift down (pixels), shift to the right (pixels), angle (rad), logarithm of the scale; see
# `find_motion` of `cassi.guide_search`. Both shifts together are 3 pixels.
MOTION = torch.tensor([2.0, -2.24, math.radians(0.5), math.log(1 / 1.02)], dtype=torch.float64)


@dataclass(frozen=True)
class Scene:
    """A scene with its snapshot."""

    name: str
    x: Tensor
    y: Tensor
    system: SDCassi
    wavelengths: tuple[float, ...]

    def response(self, kind: str) -> Tensor:
        """Return the response of a guide of a kind ("RGB" or "pan") to the bands, `(G, C)`."""
        if kind == "RGB":
            return torch.from_numpy(cie_response(np.asarray(self.wavelengths)))
        return torch.full((1, self.x.shape[1]), 1 / self.x.shape[1])

    def picture(self, kind: str, motion: Tensor | None = None) -> Tensor:
        """Return the picture of a guide, `(1, G, H, W)`."""
        picture = Guide(self.response(kind), (self.x.shape[2], self.x.shape[3]))(self.x)
        if motion is not None:
            picture = undo_motion(picture, motion)
        rms = picture.square().mean((2, 3), keepdim=True).sqrt()
        random = torch.Generator().manual_seed(0)
        return picture + NOISE * rms * torch.randn(picture.shape, generator=random)

    def psnr(self, x: Tensor) -> float:
        """Return the PSNR of a cube, dB."""
        return float(cassi.metrics.psnr(x, self.x, preset="matlab-uint8").mean())


def undo_motion(picture: Tensor, motion: Tensor) -> Tensor:
    """Return the picture that the motion turns into this one, by splines of degree 5."""
    down, right, angle, log_scale = motion.tolist()
    c, s = math.cos(angle) * math.exp(log_scale), math.sin(angle) * math.exp(log_scale)
    inverse = np.linalg.inv([[c, -s], [s, c]])
    centre = (np.array(picture.shape[2:]) - 1) / 2
    start = centre - inverse @ (centre + np.array([down, right]))
    images = picture.flatten(0, 1).double().numpy()
    guides = [affine_transform(v, inverse, start, order=5, mode="nearest") for v in images]
    return torch.from_numpy(np.stack(guides)).view_as(picture).to(picture)


def load_scenes(overrides: list[str]) -> list[Scene]:
    """Load the scenes of a data set, and simulate their snapshots through its mask."""
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
    parser.add_argument("overrides", nargs="*", default=["data=cave"], help="for cassi-evaluate")
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
        # A refused guide gives a warning. The table shows it as a gain of 0, so it is not printed.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            x = cassi.reconstruct(scene.y, camera, method, align=False, guide=guide)
        return scene.psnr(x), time.perf_counter() - start

    run(scenes[0])  # untimed: the first run loads and compiles
    without_guide = [run(scene) for scene in scenes]

    def print_row(name: str, results: list[tuple[float, float]]) -> None:
        scores = [score for score, _ in results]
        gain = mean(scores) - mean(score for score, _ in without_guide)
        pairs = zip(results, without_guide, strict=True)
        ratio = median(seconds / baseline for (_, seconds), (_, baseline) in pairs)
        cells = (f"{mean(scores):.2f}", f"{gain:+.2f}", f"{ratio:.2f}")
        table.print(name, *cells, *(f"{score:.2f}" for score in scores))

    print_row("none", without_guide)
    for kind in ("pan", "RGB"):
        responses = [scene.response(kind) for scene in scenes]
        in_place = [scene.picture(kind) for scene in scenes]
        out_of_place = [scene.picture(kind, MOTION) for scene in scenes]
        pictures_of = {
            "": in_place,
            " out of place": out_of_place,
            " another scene": in_place[1:] + in_place[:1],
        }
        for name, pictures in pictures_of.items():
            guides = zip(scenes, pictures, responses, strict=True)
            print_row(f"{kind}{name}", [run(scene, (g, r)) for scene, g, r in guides])
        guides = zip(scenes, out_of_place, responses, strict=True)
        cameras = [(scene, Guided(scene.system, g, r, motion=MOTION)) for scene, g, r in guides]
        results = [run(scene, None, camera) for scene, camera in cameras]
        print_row(f"{kind} out of place, known", results)


if __name__ == "__main__":
    main()
