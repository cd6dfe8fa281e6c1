"""Measure how often the camera check warns of right and of wrong random cameras.

    python -m scripts.benchmarks.verdicts --draws 24
    python -m scripts.benchmarks.verdicts --draws 24 --seed 100 --say    # and each false warning

The cameras come from two independent generators. `lab` has cameras of `lab.py` with the true
offsets. `optics` has cameras of `optics.py` with the true offsets in the middle of the mask, and
with the user's mask. Half of these masks are shifted by more than half a pixel. For them a warning
about `shift` is true. So if the camera is right, a warning counts as false if it is about mask,
step, curve, direction or detector, but not if it is about the shift.
"""

import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from cassi.calibration import check_camera
from cassi.systems import SDCassi
from scripts.benchmarks.random_cameras import GENERATORS
from scripts.benchmarks.tables import Parser, Table

STEP_FACTORS = (0.9, 0.95, 1.05, 1.1)
GEOMETRY = {"mask", "step", "curve", "direction", "detector"}


def make_cameras(camera: SDCassi) -> Iterator[tuple[str, SDCassi]]:
    """Yield the right camera, and then cameras with one error each, with their names."""
    offsets = torch.tensor(camera.offsets, dtype=torch.float64)
    middle = (offsets[0] + offsets[-1]) / 2
    cross_axis = -3 - camera.axis

    def change(mask: Tensor = camera.mask, offsets: Tensor = offsets) -> SDCassi:
        return SDCassi(
            mask,
            camera.bands,
            axis=camera.axis,
            offsets=offsets.tolist(),
            detector=camera.detector,
        )

    yield "right", camera
    yield "mirrored", change(camera.mask.flip(camera.axis))
    yield "upside down", change(camera.mask.flip(cross_axis))
    yield "2 px across", change(camera.mask.roll(2, cross_axis))
    yield "2 px along", change(offsets=offsets + 2)
    for factor in STEP_FACTORS:
        yield f"step × {factor}", change(offsets=middle + factor * (offsets - middle))


def main() -> None:
    """Print a table for each generator."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=24, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first camera")
    parser.add_argument("--say", action="store_true", help="print the warnings of right cameras")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    for generator, draw in GENERATORS.items():
        n_warned, topics, seconds = Counter[str](), dict[str, Counter[str]](), []
        for seed in seeds:
            capture = draw(seed)
            for name, camera in make_cameras(capture.true_camera):
                start = time.process_time()
                check = check_camera(capture.y, capture.system(camera))
                seconds.append(time.process_time() - start)
                camera_topics = {warning.about for warning in check.warnings}
                camera_topics &= GEOMETRY | {"shift"}
                # The user's mask may really be shifted, so a warning about `shift` may be true.
                counted_topics = GEOMETRY if name == "right" else GEOMETRY | {"shift"}
                n_warned[name] += bool(camera_topics & counted_topics)
                topics.setdefault(name, Counter()).update(camera_topics)
                if arguments.say and name == "right" and camera_topics:
                    print(f"{generator} {seed}: {check.lines()}", flush=True)
        table = Table(f"{generator}: camera", "warned", "by")
        for name, counts in topics.items():
            by = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            table.print(name, f"{n_warned[name]} of {len(seeds)}", by)
        print(f"CPU seconds: {median(seconds):.2f}, at most {max(seconds):.2f}\n", flush=True)


if __name__ == "__main__":
    main()
