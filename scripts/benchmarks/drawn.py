"""Frames of cameras that two independent generators draw, and the cameras as their users have them.

Of `lab.py` the user has the mask a whole pixel or two off, a straight line for the curve, and its
shift and step roughly. Cameras of `optics.py` are as that script says.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import cassi
from cassi import metrics
from cassi.systems import SDCassi, System
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.optics import draw
from scripts.benchmarks.tables import data_folder

_BORDER = 4  # pixels that are not scored


class Drawn(NamedTuple):
    """A frame, its camera, and the truth.

    Attributes:
        said: what was drawn.
        y: measurement.
        right: the camera with the true offsets.
        camera: as the user has it.
        good: pixels that count.
        wavelengths: nm.
        across: pixels by which the user's mask is off, the mean of the first and the last band.
        ends: true offsets of the first and the last band in the middle of the field.
        score: PSNR of a cube `(C, H, W)`.
    """

    said: str
    y: Tensor
    right: SDCassi
    camera: SDCassi
    good: Tensor | None
    wavelengths: tuple[float, ...]
    across: float
    ends: tuple[float, float]
    score: Callable[[Tensor], float]

    def system(self, camera: SDCassi) -> System:
        """Return a camera in light of all wavelengths, with the bad pixels left out."""
        camera.all_light = True
        return camera if self.good is None else camera.weighted(bad_pixels=~self.good)


def write_lab(lab: Lab, folder: Path) -> Tensor:
    """Write the files of a camera of `lab.py`, and return the scene before it."""
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    scene = lab.scene(*read_scene(scenes[lab.seed % len(scenes)]))
    lab.files(folder, scene)
    return scene


def by_lab(seed: int) -> Drawn:
    """Draw a camera of `lab.py`, and how its user is wrong."""
    lab = Lab.drawn(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        scene = write_lab(lab, folder)
        y, system = cassi.read_camera(folder / "true.yaml").read(folder / "frame.png")
    right = system.plain
    assert isinstance(right, SDCassi)
    true = lab.offsets().double()
    random = torch.Generator().manual_seed(1000 + seed)
    down, along, step = (0.7 * torch.randn(3, generator=random).double()).tolist()
    down = round(down)  # whole pixels: no interpolation of ours
    line = torch.linspace(float(true[0]), float(true[-1]), len(true)).double()
    nominal = (line - line.mean()) * (1 + step * 0.02 / 0.7) + line.mean() - along
    given = SDCassi(
        right.mask.roll(-down, -3 - right.axis),
        right.bands,
        axis=right.axis,
        offsets=nominal.tolist(),
        detector=right.measurement_shape[right.axis],
    )

    def score(x: Tensor) -> float:
        scale, truth = lab.score(x, scene)
        x = (x.mT if right.axis == -2 else x)[..., _BORDER:-_BORDER, _BORDER:-_BORDER]
        return float(metrics.psnr((scale * x).clamp(0, 1), truth))

    ends = float(true[0]), float(true[-1])
    where = float(down), ends, score
    return Drawn(lab.said, y, right, given, system.good_pixels, lab.wavelengths, *where)


def by_optics(seed: int) -> Drawn:
    """Draw a camera of `optics.py`."""
    drawn = draw(seed)
    right, given = (
        SDCassi(
            drawn.mask,
            len(offsets),
            axis=drawn.axis,
            offsets=[float(each) for each in offsets],
            detector=drawn.detector,
        )
        for offsets in (drawn.offsets(), drawn.nominal)
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

    y, good = drawn.frame[None, None].float(), ~drawn.bad[None, None]
    where = across, (ends[0], ends[1]), score
    return Drawn(drawn.said, y, right, given, good, drawn.wavelengths, *where)


GENERATORS = {"lab": by_lab, "optics": by_optics}
