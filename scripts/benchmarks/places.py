"""Where masks and bands are found by a snapshot, on cameras of two independent generators.

    python -m scripts.benchmarks.places --draws 8 --seed 100
    python -m scripts.benchmarks.places --draws 8 --seed 100 --calibrate    # and PSNR by `auto`

`lab` has cameras of `lab.py`, of which the user has the mask a whole pixel or two off, a straight
line for the curve, and its shift and step roughly. `optics` has those of `optics.py` as their user
has them. Errors are those in the middle of the field; bands at the ends are the first and the last.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

import cassi
from cassi import metrics
from cassi.camera.found import find_light
from cassi.camera.names import name_bands
from cassi.pipeline.align import align
from cassi.pipeline.calibrate import calibrate_on
from cassi.systems import SDCassi, System
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.optics import draw
from scripts.benchmarks.tables import Parser, Table, data_folder

_BORDER = 4  # pixels that are not scored


class Drawn(NamedTuple):
    """A frame, its camera as the user has it, and the truth."""

    said: str
    y: Tensor
    camera: SDCassi
    good: Tensor | None
    wavelengths: tuple[float, ...]
    across: float  # of the mask, mean of first and last band, pixels
    ends: tuple[float, float]  # offsets of first and last band
    score: Callable[[Tensor], float]  # PSNR of a cube (C, H, W)

    @property
    def system(self) -> System:
        """The camera with its bad pixels left out."""
        self.camera.all_light = True
        return self.camera if self.good is None else self.camera.weighted(bad_pixels=~self.good)


def by_lab(seed: int) -> Drawn:
    """Draw a camera of `lab.py`, and how its user is wrong."""
    lab = Lab.drawn(seed)
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        scene = lab.scene(*read_scene(scenes[seed % len(scenes)]))
        lab.files(folder, scene)
        y, system = cassi.read_camera(folder / "true.yaml").read(folder / "frame.png")
    camera = system.plain
    assert isinstance(camera, SDCassi)
    true = lab.offsets().double()
    random = torch.Generator().manual_seed(1000 + seed)
    down, along, step = (0.7 * torch.randn(3, generator=random).double()).tolist()
    down = round(down)  # whole pixels: no interpolation of ours
    line = torch.linspace(float(true[0]), float(true[-1]), len(true)).double()
    nominal = (line - line.mean()) * (1 + step * 0.02 / 0.7) + line.mean() - along
    mask = camera.mask.roll(-down, -3 - camera.axis)
    given = SDCassi(
        mask,
        camera.bands,
        axis=camera.axis,
        offsets=nominal.tolist(),
        detector=camera.measurement_shape[camera.axis],
    )

    def score(x: Tensor) -> float:
        scale, truth = lab.score(x, scene)
        x = (x.mT if camera.axis == -2 else x)[..., _BORDER:-_BORDER, _BORDER:-_BORDER]
        return float(metrics.psnr((scale * x).clamp(0, 1), truth))

    ends = float(true[0]), float(true[-1])
    return Drawn(lab.said, y, given, system.good_pixels, lab.wavelengths, float(down), ends, score)


def by_optics(seed: int) -> Drawn:
    """Draw a camera of `optics.py`."""
    drawn = draw(seed)
    bands = len(drawn.nominal)
    camera = SDCassi(
        drawn.mask, bands, axis=drawn.axis, offsets=drawn.nominal, detector=drawn.detector
    )
    middle = [torch.tensor([(n - 1) / 2]) for n in drawn.mask.shape]
    row, column = middle
    outer = drawn.wavelengths[0], drawn.wavelengths[-1]
    places = [drawn.place(row, column, nm) for nm in outer]
    along = drawn.axis  # of the pair: -1 is the column
    ends = [float(place[along] - middle[along]) for place in places]
    across = sum(float(place[-3 - along] - middle[-3 - along]) for place in places) / 2

    def score(x: Tensor) -> float:
        inner = (..., slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
        x, truth = x[inner], drawn.truth[inner]
        scale = (x * truth).sum() / x.square().sum()
        return float(metrics.psnr(scale * x / truth.amax(), truth / truth.amax()))

    good = ~drawn.bad[None, None]
    y = drawn.frame[None, None].float()
    return Drawn(drawn.said, y, camera, good, drawn.wavelengths, across, (ends[0], ends[1]), score)


GENERATORS = {"lab": by_lab, "optics": by_optics}


def main() -> None:
    """Print a table for each generator, and a summary."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--draws", type=int, default=8, help="cameras of each generator")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--calibrate", action="store_true", help="and what calibration is worth")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    for generator, make in GENERATORS.items():
        columns = ("across, px", "first band", "last band", "told by", "CPU s")
        table = Table(f"{generator}: draw", "camera", *columns, "nominal", "calibrated", "CPU s")
        off: dict[str, list[tuple[float, float]]] = {"across": [], "bands": []}
        worse = []
        for seed in seeds:
            drawn = make(seed)
            start = time.process_time()
            place = find_light(drawn.y, drawn.camera, drawn.good, drawn.wavelengths)
            names = name_bands(place.offsets, place.light, drawn.camera.offsets)
            seconds = time.process_time() - start
            across = place.values["across"] - drawn.across
            off["across"].append((abs(across), place.errors["across"]))
            cells = [f"{across:+.2f} ± {place.errors['across']:.2f}"]
            for at, true in zip((0, -1), drawn.ends, strict=True):
                away, error = names.offsets[at] - true, names.errors[at]
                off["bands"].append((abs(away), error))
                cells.append(f"{away:+.2f} ± {error:.2f}")
            cells += [names.told or "nothing", f"{seconds:.1f}"]
            if arguments.calibrate:
                start = time.process_time()
                found = calibrate_on(
                    drawn.y,
                    drawn.system,
                    wavelengths=drawn.wavelengths,
                )
                seconds = time.process_time() - start
                camera: System = found.system
                if drawn.good is not None:
                    camera = found.system.weighted(bad_pixels=~drawn.good)
                aligned = align(drawn.y, drawn.system)
                default = drawn.system if aligned is None else aligned.system
                levels = [
                    drawn.score(cassi.reconstruct(drawn.y, each, align=False)[0])
                    for each in (default, camera)
                ]
                worse.append(levels[0] - levels[1])
                cells += [*(f"{level:.2f}" for level in levels), f"{seconds:.0f}"]
            table.print(seed, drawn.said[:60], *cells, *([""] * (8 - len(cells))))
        for name, errors in off.items():
            within = sum(away <= 2 * error for away, error in errors)
            print(
                f"{name}: off by {median(a for a, _ in errors):.2f} px in the median, "
                f"{max(a for a, _ in errors):.2f} at most; within twice the stated error "
                f"{within} of {len(errors)}"
            )
        if worse:
            print(
                f"calibrated worse by 0.1 dB: {sum(each > 0.1 for each in worse)} of "
                f"{len(worse)}, by {max(worse):.1f} dB at most"
            )
        print(flush=True)


if __name__ == "__main__":
    main()
