"""Find a mask by gradient, and compare it with random ones and blue noise on hidden scenes.

    python -m scripts.benchmarks.design                        # CAVE: training, validation scenes
    python -m scripts.benchmarks.design --seconds 600 --save mask.npy

A binary tile is found on crops of training scenes, by Adam through the differentiable camera and
25 iterations of the default method. It is repeated over the field. Hidden scenes are CAVE's
validation scenes, reconstructed by the default method. Printed is PSNR: of 20 random masks the mean
and the best, for the densities of the tile, 0.5 and 0.7; blue noise of the same; the tile.
"""

import time
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from cassi.methods import auto
from cassi.priors import TV, Subspace
from cassi.solvers import ADMM, Geometric
from cassi.solvers.loop import iterate
from cassi.systems import BlueNoiseMask, LearnableMask, RandomMask, SDCassi
from scripts.benchmarks.guide import Scene, load_scenes
from scripts.benchmarks.tables import Parser, Table

SIDE, CROPS, STEP = 48, 2, 2
ITERATIONS, RATE, SOFT = 25, 0.1, 0.15
"""Of the method; of Adam; the size of the first parameters, relative to those of zeros and ones."""
RANDOM = 20


def find_tile(scenes: list[Scene], seconds: float) -> Tensor:
    """Return a binary tile, `(1, 1, SIDE, SIDE)`, that reconstructs crops of scenes well."""
    mask = LearnableMask(RandomMask(0.5, seed=1).draw(SIDE, SIDE))
    with torch.no_grad():
        mask.values.mul_(SOFT)
    adam = torch.optim.Adam(mask.parameters(), lr=RATE)
    total_variation = TV(weight=1.0, iterations=3, norm="nuclear", warm=True)
    prior = Subspace(prior=total_variation, balance=1.0, energy=0.0)
    random, start, seen = torch.Generator().manual_seed(0), time.perf_counter(), []
    while time.perf_counter() - start < seconds:
        x = torch.cat([_crop(scenes, random) for _ in range(CROPS)])
        soft = mask()
        system = SDCassi((soft > 0.5).to(soft) + soft - soft.detach(), x.shape[1], step=STEP)
        found = iterate(
            ADMM(rho=0.15, relaxation=1.95),
            system(x),
            system,
            prior,
            iterations=ITERATIONS,
            sigma=Geometric(0.7, 0.03),
        )
        loss = 10 * (found.x - x).square().mean((1, 2, 3)).log10().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        seen.append(float(loss.detach()))
    print(
        f"{len(seen)} steps, PSNR of crops {-mean(seen[:10]):.2f} to {-mean(seen[-10:]):.2f} dB\n"
    )
    return (mask().detach() > 0.5).float()


def _crop(scenes: list[Scene], random: torch.Generator) -> Tensor:
    x = scenes[int(torch.randint(len(scenes), (), generator=random))].x
    i, j = (int(torch.randint(side - SIDE, (), generator=random)) for side in x.shape[2:])
    part = x[:, :, i : i + SIDE, j : j + SIDE]
    return part / part.amax().clamp_min(0.05)


def score(mask: Tensor, scenes: list[Scene]) -> float:
    """Return the mean PSNR of hidden scenes through a mask, dB."""
    found = []
    for scene in scenes:
        system = SDCassi(mask, scene.x.shape[1], step=STEP)
        found.append(scene.psnr(auto().run(system(scene.x), system).x))
    return mean(found)


def main() -> None:
    """Print the table."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="to find the tile")
    parser.add_argument("--random", type=int, default=RANDOM, help="random masks of each density")
    parser.add_argument("--save", help="file of the tile, .npy")
    told = parser.parse_args()
    hidden = load_scenes(["data=cave"])
    tile = find_tile(load_scenes(["data=cave", "data.evaluation.split=train"]), told.seconds)
    if told.save:
        np.save(told.save, tile[0, 0].numpy())
    height, width = hidden[0].x.shape[2:]
    repeated = tile.repeat(1, 1, -(-height // SIDE), -(-width // SIDE))[..., :height, :width]
    table = Table("mask", "density", "PSNR")
    density = float(tile.mean())
    table.print("tile found by gradient", f"{density:.2f}", f"{score(repeated, hidden):.2f}")
    for share in (density, 0.5, 0.7):
        blue = BlueNoiseMask(share).draw(64, 64)
        blue = blue.repeat(1, 1, -(-height // 64), -(-width // 64))[..., :height, :width]
        table.print("blue noise", f"{share:.2f}", f"{score(blue, hidden):.2f}")
        drawn = [
            score(RandomMask(share, seed=seed).draw(height, width), hidden)
            for seed in range(told.random)
        ]
        said = f"{mean(drawn):.2f}, best {max(drawn):.2f}"
        table.print(f"{told.random} random", f"{share:.2f}", said)


if __name__ == "__main__":
    main()
