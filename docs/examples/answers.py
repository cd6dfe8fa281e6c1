"""Questions about a scene: an index, abundances and a mean spectrum, each with an interval."""

import torch
from torch.nn.functional import avg_pool2d

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS as NM
from cassi.uncertainty import Abundance, Index, RegionMean, answer, estimate


def main(size: int = 256, count: int = 16) -> float:
    """Return the share of the answers of a map whose true value is in the 90 % interval."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    camera = cassi.SDCassi(mask, bands=28, step=2)
    y = cassi.simulate(scene, camera, noise="shot")
    method = cassi.methods.auto()
    x = method.run(y, camera).x
    samples = estimate(y, camera, method, x, samples=count).samples
    assert samples is not None

    index = Index("(w640 - w550) / (w640 + w550)", NM)
    abundance = Abundance(make_library(scene[0]), ("blue", "green", "red"))
    middle = torch.zeros(size, size, dtype=torch.bool)
    middle[size // 2 - 8 : size // 2 + 8, size // 2 - 8 : size // 2 + 8] = True
    mean = RegionMean(middle, tuple(f"{nm:g} nm" for nm in NM))
    answers = answer(samples, {"redness": index, "pigments": abundance, "middle": mean})

    redness = answers["redness"]
    is_answered, truth = ~redness.abstained, index(scene[0])
    is_inside = (redness.low[-1] <= truth) & (truth <= redness.high[-1])
    coverage = float(is_inside[is_answered].float().mean())
    print(f"redness: an answer at {float(is_answered.float().mean()):.1%} of the pixels,")
    print(f"    and the true value in the 90 % interval at {coverage:.1%} of them")
    for name, expected in (("pigments", abundance(scene[0])), ("middle", mean(scene[0]))):
        part = answers[name]
        for row in range(0, len(part.labels), 9 if name == "middle" else 1):
            place = (row, size // 3, size // 3) if name == "pigments" else (row,)
            low, high = float(part.low[-1][place]), float(part.high[-1][place])
            note = "no answer, " if part.abstained[place] else ""
            print(f"{name}, {part.labels[row]}: {low:.3f} to {high:.3f}", end="; ")
            print(f"{note}true {float(expected[place]):.3f}")
    return coverage


def make_library(scene: torch.Tensor) -> torch.Tensor:
    """Return three spectra of a scene (C, H, W): of its bluest, greenest and reddest square."""
    squares = avg_pool2d(scene, 8).flatten(1)
    light = squares.sum(0)
    color = squares / light * (light > light.median())
    return torch.stack([squares[:, color[band].argmax()] for band in (2, 14, 25)])


if __name__ == "__main__":
    main()
