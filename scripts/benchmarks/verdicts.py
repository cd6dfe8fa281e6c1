"""How often right and wrong cameras are warned of, drawn by two independent generators.

    python -m scripts.benchmarks.verdicts --draws 24
    python -m scripts.benchmarks.verdicts --draws 24 --seed 100 --say    # and each false warning

`lab` has frames of cameras by `lab.py` with the true offsets. `optics` has those by `optics.py`,
with offsets that fit the middle of the mask and the mask as its user has it: half of these masks
lie more than half a pixel off, and `shift` is then a true warning. So a right camera counts as
warned of where anything else is said of its mask, step, curve, direction or detector.
"""

import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from cassi.calibration import check_camera
from cassi.systems import SDCassi
from scripts.benchmarks.drawn import GENERATORS
from scripts.benchmarks.tables import Parser, Table

STEPS = (0.9, 0.95, 1.05, 1.1)
GEOMETRY = {"mask", "step", "curve", "direction", "detector"}


def cameras(right: SDCassi) -> Iterator[tuple[str, SDCassi]]:
    """Yield the camera, and others that are wrong in one way each."""
    offsets = torch.tensor(right.offsets, dtype=torch.float64)
    middle = (offsets[0] + offsets[-1]) / 2
    across = -3 - right.axis

    def like(mask: Tensor = right.mask, places: Tensor = offsets) -> SDCassi:
        return SDCassi(
            mask, right.bands, axis=right.axis, offsets=places.tolist(), detector=right.detector
        )

    yield "right", right
    yield "mirrored", like(right.mask.flip(right.axis))
    yield "upside down", like(right.mask.flip(across))
    yield "2 px across", like(right.mask.roll(2, across))
    yield "2 px along", like(places=offsets + 2)
    for factor in STEPS:
        yield f"step × {factor}", like(places=middle + factor * (offsets - middle))


def main() -> None:
    """Print a table for each generator."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=24, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--say", action="store_true", help="print what is said of right cameras")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    for generator, draw in GENERATORS.items():
        warned, kinds, seconds = Counter[str](), dict[str, Counter[str]](), []
        for seed in seeds:
            drawn = draw(seed)
            for name, camera in cameras(drawn.right):
                start = time.process_time()
                found = check_camera(drawn.y, drawn.system(camera))
                seconds.append(time.process_time() - start)
                about = {each.about for each in found.warnings} & (GEOMETRY | {"shift"})
                warned[name] += bool(about & GEOMETRY if name == "right" else about)
                kinds.setdefault(name, Counter()).update(about)
                if arguments.say and name == "right" and about:
                    print(f"{generator} {seed}: {found.lines()}", flush=True)
        table = Table(f"{generator}: camera", "warned", "by")
        for name, said in kinds.items():
            by = ", ".join(f"{kind} {many}" for kind, many in sorted(said.items()))
            table.print(name, f"{warned[name]} of {len(seeds)}", by)
        print(f"CPU seconds: {median(seconds):.2f}, at most {max(seconds):.2f}\n", flush=True)


if __name__ == "__main__":
    main()
