"""Measure methods on the panel of the model card: kinds of scenes, cameras, and real captures.

    python -m scripts.benchmarks.kinds                                # the weights of the package
    python -m scripts.benchmarks.kinds --weights DIR/ema.safetensors  # other weights beside them
    python -m scripts.benchmarks.kinds --rows text page laser

The table has the PSNR of `auto`, dB, and the gain of each set of weights over it. Its rows are:

- kinds of scenes, 128×128, through the bundled mask. Every second frame has noise of 35 dB. The
  scenes are synthetic (`cassi.data.synthetic.patterns`), or the validation scenes of CAVE: as they
  are, under another illuminant, projected to RGB and lifted back to a cube, or under measured
  narrow-band illuminants. Three kinds have measured spectra: pairs of metamers, printed pages, and
  laser speckle;
- cameras that take the validation scenes. They differ in mask, noise, step and number of bands.
  Some have the mask of another instrument, and some are digital twins, whose true camera differs a
  little from the nominal one;
- captures of two instruments, without a truth. Their score is −20 log₁₀ of the error at held-out
  pixels.

Every method gets the camera that the commands would give it: the nominal camera, with its mask
aligned if the alignment is certain (`cassi.pipeline.align.align`). Synthetic kinds need no data.
The other rows need `$CASSI_DATA`, and are left out without it.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.io import loadmat
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, interpolate

import cassi
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.data.augment import Augment, augmented_crop
from cassi.data.bundled import bundled_path
from cassi.data.datasets import load_split
from cassi.data.scenes import Scene
from cassi.data.synthetic.patterns import PATTERNS, draw_pattern
from cassi.data.synthetic.twin import Twin
from cassi.methods.automatic import auto
from cassi.metrics import psnr
from cassi.models.inference import prepare
from cassi.models.pretrained import WEIGHTS_FILE, load_shipped
from cassi.pipeline.align import align
from cassi.solvers.heldout import measure_heldout
from cassi.systems import System
from cassi.training.module import merge_bands
from cassi.viz.color import cie_response
from scripts.benchmarks.tables import Parser, Table, data_folder

BANDS = 28
NO_AUGMENTATION = Augment(flip=False, rotate=False, splice=0.0, scale=(0.5, 0.5))
# Kinds of recorded scenes, and how each is augmented.
RECORDED_KINDS = {
    "scenes": NO_AUGMENTATION,
    "other light": Augment(**{**vars(NO_AUGMENTATION), "illumination": 0.6}),
    "lifted": Augment(**{**vars(NO_AUGMENTATION), "lift": 1.0}),
}
KINDS = (*RECORDED_KINDS, *PATTERNS, "narrow lights", "metamers", "page", "laser")

# The truth `(1, C, H, W)` or None, the measurement, and the camera that methods get.
Problem = tuple[Tensor | None, Tensor, Any]


class Row(NamedTuple):
    """A row of the panel: scenes and the camera that takes them, or a capture.

    Attributes:
        kind: kind of the scenes, one of `KINDS`; or "EXPERIMENT/NAME", a capture of an experiment.
        mask: a file below `$CASSI_DATA`, "bundled", or "random" with the fraction of open pixels.
            The fraction 0 gives a grey mask.
        bands: number of bands. The bands of the scenes are averaged or interpolated to them.
        step: pixels per band.
        axis: axis of the dispersion.
        noise: signal to noise ratios in dB, which the scenes take in turn; None is without noise.
        twin: name of a file of `conf/twin`. The frames are taken by this digital twin.
        scenes: number of scenes.
        size: rows and columns.
    """

    kind: str
    mask: str = "bundled"
    bands: int = BANDS
    step: float = 2
    axis: int = -1
    noise: tuple[float | None, ...] = (None,)
    twin: str | None = None
    scenes: int = 3
    size: int = 256

    @property
    def is_capture(self) -> bool:
        """Whether the row is a capture of an instrument, without a truth."""
        return "/" in self.kind

    @property
    def needs_data(self) -> bool:
        """Whether the row needs a file of `$CASSI_DATA`."""
        return self.kind not in PATTERNS or self.mask != "bundled"

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of the row, which are the same in every run."""
        if self.is_capture:
            experiment, scene = self.kind.split("/")
            settings = compose_settings([f"experiment={experiment}", f"scene={scene}"])
            snapshot = load_snapshot(settings, torch.device("cpu"))
            yield None, snapshot.y, _align(snapshot.y, snapshot.camera.system)
            return
        mask = _mask(self.mask, self.size)
        mask = mask[:, : self.bands]
        system = cassi.SDCassi(mask, self.bands, self.step, axis=self.axis)
        for k in range(self.scenes):
            random = torch.Generator().manual_seed(1000 * KINDS.index(self.kind) + k)
            x = draw_scene(self.kind, k, self.size, random)[None]
            if self.bands < BANDS:
                x = merge_bands(x, self.bands)
            elif self.bands > BANDS:
                x = interpolate(x[None], (self.bands, *x.shape[2:]), mode="trilinear")[0]
            camera: System = system
            y, snr_db = system(x), self.noise[k % len(self.noise)]
            if snr_db is not None:
                noise = torch.randn(y.shape, generator=random)
                y = y + noise * y.square().mean().sqrt() * 10 ** (-snr_db / 20)
            if self.twin is not None:
                # The user knows dark level and bad pixels of the twin, as for any sensor.
                twin = _twin(self.twin)
                true_camera = twin.true_camera(system)
                y = twin.measure(x, system, random) - true_camera.dark
                camera = system.weighted(bad_pixels=true_camera.bad)
            yield x, y, _align(y, camera)


def _align(y: Tensor, system: System) -> System:
    alignment = align(y, system)
    return system if alignment is None else alignment.system


def _camera(mask: str = "tsa/mask.mat", *noise: float, **settings: Any) -> Row:
    """Return the row of a camera that takes the recorded scenes."""
    return Row("scenes", mask, noise=noise or (None,), **settings)


# The rows by name.
PANEL: dict[str, Row] = {
    **{kind: Row(kind, noise=(None, 35.0), scenes=4, size=128) for kind in KINDS},
    "TSA mask": _camera(),
    "TSA mask, 30 dB": _camera("tsa/mask.mat", 30),
    "TSA mask, 20 dB": _camera("tsa/mask.mat", 20),
    "binary mask": _camera("random 0.5"),
    "binary mask, 30 dB": _camera("random 0.5", 30),
    "binary, 20 % open": _camera("random 0.2"),
    "grey mask": _camera("random 0"),
    "binary mask of DynaSpec": _camera("masks/dynaspec_dd_binary.mat"),
    "a mask per band, of DDIP": _camera("masks/ddip_dd_mask.mat"),
    "mask of the endomicroscope": _camera("smem/mask.mat"),
    "step 1": _camera(step=1),
    "step 1.5": _camera(step=1.5),
    "step 3": _camera(step=3),
    "step -2.5": _camera(step=-2.5),
    "step -3": _camera(step=-3),
    "rows, binary": _camera("random 0.5", step=1, axis=-2),
    "40 bands": _camera(bands=40),
    "16 bands": _camera(bands=16),
    "8 bands, binary": _camera("random 0.5", bands=8),
    "4 bands": _camera(bands=4),
    "twin, mask off and blurred": _camera(twin="blurred"),
    "twin, all a little off": _camera(twin="camera"),
    "capture of TSA": Row("tsa_real/scene1"),
    "capture of the endomicroscope": Row("smem/resolution_target"),
}


def draw_scene(kind: str, k: int, size: int, random: Generator) -> Tensor:
    """Draw scene number k of a kind, `(28, size, size)`; its largest value is about 1."""
    if kind in PATTERNS:
        return draw_pattern(kind, BANDS, size, size, random)
    if kind in _FROM_SPECTRA:
        return _FROM_SPECTRA[kind](size, random)
    scene = [read_validation_scenes()[k % 3]]
    x = augmented_crop(scene, size, size, RECORDED_KINDS.get(kind, NO_AUGMENTATION), random)
    if kind in RECORDED_KINDS:
        return x
    # The 40 lamps with the narrowest spectra: their peaks are highest relative to their means.
    lamps = read_spectra("spd_houser")
    narrow_lamps = lamps[(lamps.amax(1) / lamps.mean(1)).argsort(descending=True)[:40]]
    light = x * (narrow_lamps[_random_integer(40, random)] + 0.01)[:, None, None]
    return light / light.amax()


def _metamers(size: int, random: Generator) -> Tensor:
    """Draw a chart of metamers: the halves of a patch differ in spectrum, but not in colour."""
    papers = read_spectra("sur_nickerson")
    observer = torch.from_numpy(cie_response(read_wavelengths()))
    # The projection onto spectra that the observer cannot see, Wyszecki's metameric blacks.
    black_projection = torch.eye(BANDS) - torch.linalg.pinv(observer) @ observer
    side = 16
    chart = torch.full((BANDS, size, size), 0.03)
    for top in range(0, size - side + 1, side):
        for left in range(0, size - side + 1, side):
            first, second = papers[torch.randint(len(papers), (2,), generator=random)]
            black = (second - first) @ black_projection.T
            black[black.abs() < 1e-6] = 0
            # The largest factor, at most 8, with which the sum stays a reflectance, in [0, 1].
            limits = (torch.where(black > 0, 1 - first, -first) / black).nan_to_num(8, 8, 8)
            pair = torch.stack((first, first + 0.95 * limits.min().clamp(0, 8) * black))
            patch = chart[:, top + 1 : top + side - 1, left + 1 : left + side - 1]
            patch[:, :, : side // 2 - 1] = pair[0, :, None, None]
            patch[:, :, side // 2 - 1 :] = pair[1, :, None, None]
    return chart


def _page(size: int, random: Generator) -> Tensor:
    """Draw a printed page: soft-edged letters in four inks on bright paper, in uneven light."""
    papers = read_spectra("sur_nickerson")
    order = papers.mean(1).argsort(descending=True)
    letters = draw_pattern("text", 2, 2 * size, 2 * size, random)[:1]
    letters = avg_pool2d(letters - letters.amin(), 2) / (letters.amax() - letters.amin())
    ink = letters if letters.mean() < 0.5 else 1 - letters
    inks = papers[order[-60:]][torch.randint(60, (4,), generator=random)]
    inks = inks.repeat_interleave(math.ceil(size / 4), 0)[:size].T[:, :, None]
    paper = papers[order[_random_integer(20, random)]][:, None, None]
    x = torch.lerp(paper, inks, ink)
    return x * draw_pattern("gradients", 1, size, size, random)


def _laser(size: int, random: Generator) -> Tensor:
    """Draw a scene that one to three lasers light with speckle, and a dim white lamp evenly."""
    band = torch.arange(BANDS).float()
    scene = draw_pattern("leaves", BANDS, size, size, random)
    x = 0.03 * scene
    for _ in range(1 + _random_integer(3, random)):
        speckle = draw_pattern("speckle", 1, size, size, random)
        line = torch.exp(-(((band - _random_integer(BANDS, random)) / 1.2) ** 2))
        x += line[:, None, None] * scene * speckle / speckle.mean()
    # A few speckle grains are much brighter than all others. If the scene were divided by its
    # maximum, the rest would be nearly black.
    return x / torch.quantile(x.amax(0), 0.999)


_FROM_SPECTRA = {"metamers": _metamers, "page": _page, "laser": _laser}


def _random_integer(below: int, random: Generator) -> int:
    return int(torch.randint(below, (), generator=random))


def _mask(name: str, size: int) -> Tensor:
    """Return the mask of a row; see `Row.mask`."""
    if name.startswith("random"):
        density = float(name.split()[1])
        random = torch.Generator().manual_seed(7 if density else 8)
        mask = torch.rand(1, 1, 256, 256, generator=random)
        mask = (mask < density).float() if density else mask
    else:
        path = bundled_path("mask.tif") if name == "bundled" else data_folder() / name
        mask = cassi.read_mask(path)
    return mask[..., :size, :size]


@lru_cache
def _twin(name: str) -> Twin:
    twin = compose_settings([f"twin={name}"], kind=Evaluate).twin
    assert twin is not None
    return twin


@lru_cache
def read_wavelengths() -> tuple[float, ...]:
    """Return the wavelengths of the scenes, nm."""
    nm = compose_settings(["data=cave"], kind=Evaluate).data.given_wavelengths
    assert nm is not None
    return nm


@lru_cache
def read_validation_scenes() -> list[Scene]:
    """Read the validation scenes of CAVE, at their full size."""
    return load_split(data_folder(), "validation", manifest="cave", wavelengths=read_wavelengths())


@lru_cache
def read_spectra(name: str) -> Tensor:
    """Read measured spectra, at the wavelengths of the scenes: `(N, 28)`, at most 1."""
    table = loadmat(data_folder() / "spectra" / f"{name}.mat")
    first, step, count = table[f"S_{name.partition('_')[2]}"][0]
    table_nm = first + step * np.arange(count)
    rows = [np.interp(read_wavelengths(), table_nm, spectrum) for spectrum in table[name].T]
    return torch.from_numpy(np.stack(rows)).float().clamp(0, 1)


def score(run: Any, truth: Tensor | None, y: Tensor, system: Any) -> float:
    """Return the PSNR of a reconstructor; without a truth, −20 log₁₀ of the held-out error; dB."""
    if truth is None:
        return -20 * math.log10(measure_heldout(y, system, run).error)
    return float(psnr(run(y, system), truth).mean())


def compare(row: Row, methods: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean score of every method, dB."""
    problems = list(row.problems())
    return {
        name: mean(score(run, *problem) for problem in problems) for name, run in methods.items()
    }


def select_rows(names: Sequence[str]) -> dict[str, Row]:
    """Return the rows of these names, without those whose data are missing."""
    rows = {name: PANEL[name] for name in names}
    has_data = "CASSI_DATA" in os.environ
    return {name: row for name, row in rows.items() if has_data or not row.needs_data}


def main() -> None:
    """Print the table."""
    parser = Parser(__doc__, threads=torch.get_num_threads())
    parser.add_argument("--weights", type=Path, nargs="*", default=[], help="files to compare")
    parser.add_argument("--sizes", nargs="+", default=["large"], help="sizes of the network")
    parser.add_argument("--rows", nargs="+", choices=list(PANEL), default=list(PANEL))
    arguments = parser.parse_args()
    methods: dict[str, Any] = {"auto": auto()}
    for size in arguments.sizes:
        for path in [WEIGHTS_FILE, *arguments.weights]:
            name = size if path == WEIGHTS_FILE else f"{path.parent.name} {size}"
            methods[name] = prepare(load_shipped(path, size), True, "32-true")
    baseline, *networks = methods
    table = Table("row", f"{baseline}, dB", *(f"{name} − {baseline}" for name in networks))
    for name, row in select_rows(arguments.rows).items():
        scores = compare(row, methods)
        gains = [f"{scores[network] - scores[baseline]:+.2f}" for network in networks]
        table.print(name, f"{scores[baseline]:.2f}", *gains)


if __name__ == "__main__":
    with torch.no_grad():
        main()
