"""What it is worth to reconstruct along the dispersion, on cameras of two independent generators.

    python -m scripts.benchmarks.dispersion --draws 20
    python -m scripts.benchmarks.dispersion --draws 20 --methods auto

Cameras are those of `lab.py` and `optics.py` in light of all wavelengths, with the true offsets and
the mask where it lies. `points` has the light of a band at its offset alone (`light=lines`),
`along` is the default. `curve` is `along` with a straight line between the outermost bands in place
of the true curve: the cube along the dispersion is read at the true offsets, and compared with that
of `along`. PSNR in dB.
"""

import itertools
import time
from collections.abc import Iterator
from statistics import mean

import torch
from torch import Tensor

import cassi
from cassi.camera.ends import find_grid
from cassi.methods import auto
from cassi.methods.along_dispersion import AlongDispersion
from cassi.systems import SDCassi, System
from cassi.systems.grid import Grid
from cassi.systems.masks import move_mask
from cassi.systems.photographed import is_design
from scripts.benchmarks.drawn import GENERATORS, Drawn
from scripts.benchmarks.tables import Parser, Table

CONTINUOUS = ("halogen", "daylight", "white LED", "LEDs")


def draw(generator: str, seed: int) -> tuple[Drawn, SDCassi] | None:
    """Return a frame and its camera; None where its light comes in lines."""
    drawn = GENERATORS[generator](seed)
    camera = drawn.right
    if generator == "lab":
        return None if ", lines," in drawn.said else (drawn, camera)
    if not any(f", {lamp};" in drawn.said for lamp in CONTINUOUS):
        return None
    shift = [0.0, 0.0]
    shift[-3 - camera.axis] = drawn.across
    return drawn, like(camera, camera.offsets, move_mask(camera.mask, shift, 0.0))


def like(camera: SDCassi, offsets: tuple[float, ...], mask: Tensor | None = None) -> SDCassi:
    """Return a camera with other bands, or another mask."""
    mask = camera.mask if mask is None else mask
    return camera.like(mask=mask, bands=len(offsets), offsets=offsets)


def system_of(drawn: Drawn, camera: SDCassi, all_light: bool) -> System:
    """Return the camera as a frame is reconstructed by it."""
    system: System = camera.like(photographed=not is_design(drawn.camera.mask))
    system.all_light = all_light
    return system if drawn.good is None else system.weighted(bad_pixels=~drawn.good)


def rows(generator: str, first: int, count: int) -> Iterator[tuple[int, Drawn, SDCassi]]:
    """Yield so many cameras in light of all wavelengths."""
    found = ((seed, draw(generator, seed)) for seed in itertools.count(first))
    lit = ((seed, *each) for seed, each in found if each is not None)
    yield from itertools.islice(lit, count)


def main() -> None:
    """Print a table for each generator."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=20, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--methods", nargs="+", default=["auto", "pretrained"])
    arguments = parser.parse_args()
    for generator in GENERATORS:
        columns = [f"{each}, {how}" for each in arguments.methods for how in ("points", "along")]
        more = ("curve", "bands", "beyond, px", "CPU s")
        table = Table(f"{generator}: draw", "camera", *columns, *more)
        gains: dict[str, list[float]] = {each: [] for each in arguments.methods}
        for seed, drawn, camera in rows(generator, arguments.seed, arguments.draws):
            start = time.process_time()
            points, along = (system_of(drawn, camera, light) for light in (False, True))
            cells = []
            for method in arguments.methods:
                levels = [
                    drawn.score(cassi.reconstruct(drawn.y, each, method, align=False)[0])
                    for each in (points, along)
                ]
                gains[method].append(levels[1] - levels[0])
                cells += [f"{levels[0]:.2f}", f"{levels[1] - levels[0]:+.2f}"]
            line = torch.linspace(camera.offsets[0], camera.offsets[-1], camera.bands).double()
            straight = system_of(drawn, like(camera, tuple(line.tolist())), True)
            levels, grid = [], None
            for system in (along, straight):
                grid = find_grid(drawn.y, system)
                assert grid is not None
                found = AlongDispersion(auto(), grid).run(drawn.y, system).along
                assert found is not None
                named = Grid(grid.offsets, camera.offsets).read(found.x)
                levels.append(drawn.score(named[0]))
            assert grid is not None
            beyond = abs(grid.offsets[0] - grid.named[0])
            cells += [f"{levels[1] - levels[0]:+.2f}", str(len(grid.offsets)), f"{beyond:.1f}"]
            table.print(seed, drawn.said[:60], *cells, f"{time.process_time() - start:.0f}")
        for method, each in gains.items():
            print(
                f"{generator}: {method} along the dispersion {mean(each):+.2f} dB in the mean of "
                f"{len(each)}, at worst {min(each):+.2f}, "
                f"worse by .1 dB {sum(gain < -0.1 for gain in each)}"
            )
        print(flush=True)


if __name__ == "__main__":
    main()
