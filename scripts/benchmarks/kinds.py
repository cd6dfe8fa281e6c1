"""Measure a method against `solver=auto` on scenes of many kinds, for docs/development/experiments.

    python scripts/benchmarks/kinds.py                                # the weights of the package
    python scripts/benchmarks/kinds.py --weights DIR/ema.safetensors  # others beside them
    python scripts/benchmarks/kinds.py --kinds text speckle --size 256

PSNR in dB of auto, and how much more each set of weights reaches, by kind: drawn scenes
(`cassi.data.synthetic.patterns`), and the validation scenes of CAVE as they are, under another
light, and as a photograph of them would be lifted to; the latter need `$CASSI_DATA`. The camera is
a crop of the bundled mask, half of whose frames have noise of 35 dB. The last column counts frames
in which `cassi.calibration.align` would move the mask, which is where it should be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from hydra import initialize_config_module
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.reconstructors import store_models
from cassi.camera_search import align
from cassi.data.augment import Augment, augmented_crop
from cassi.data.bundled import bundled_path
from cassi.data.datasets import load_split
from cassi.data.scenes import Scene
from cassi.data.synthetic.patterns import PATTERNS, draw_pattern
from cassi.metrics import psnr
from cassi.models.inference import prepare
from cassi.models.pretrained import FILE, load_shipped
from scripts.benchmarks.tables import Parser, Table

BANDS, STEP, SNR_DB = 28, 2, 35.0
PLAIN = Augment(flip=False, rotate=False, splice=0.0, scale=(0.5, 0.5))
TAKEN = {
    "scenes": PLAIN,
    "other light": Augment(**{**vars(PLAIN), "illumination": 0.6}),
    "lifted": Augment(**{**vars(PLAIN), "lift": 1.0}),
}
"""Kinds that begin with a scene that was taken, and how it is varied."""
KINDS = (*TAKEN, *PATTERNS)


def draw_scenes(
    kind: str, count: int, size: int, scenes: Sequence[Scene]
) -> Iterator[tuple[Tensor, Tensor, cassi.SDCassi]]:
    """Yield truths, measurements and cameras of a kind: always the same ones."""
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    system = cassi.SDCassi(mask, BANDS, STEP)
    for k in range(count):
        random = torch.Generator().manual_seed(1000 * KINDS.index(kind) + k)
        if kind in TAKEN:
            x = augmented_crop([scenes[k % len(scenes)]], size, size, TAKEN[kind], random)
        else:
            x = draw_pattern(kind, BANDS, size, size, random)
        y = system(x[None])
        if k % 2:
            noise = torch.randn(y.shape, generator=random)
            y = y + noise * y.square().mean().sqrt() * 10 ** (-SNR_DB / 20)
        yield x[None], y, system


def compare_kinds(
    methods: Mapping[str, Any],
    scenes: Sequence[Scene],
    *,
    kinds: Sequence[str] | None = None,
    count: int = 4,
    size: int = 128,
) -> dict[str, dict[str, float]]:
    """Return the mean PSNR of every method, `(y, system) -> x`, by kind; print each as it is known.

    The first method is what the others are compared with. Without scenes the kinds that begin with
    one are left out. By default all `KINDS` are compared.
    """
    first, *others = methods
    gains_of = (f"{name} − {first}" for name in others)
    table = Table("kind", f"{first}, dB", *gains_of, "masks moved")
    found: dict[str, dict[str, float]] = {}
    for kind in kinds or KINDS:
        if kind in TAKEN and not scenes:
            continue
        problems = list(draw_scenes(kind, count, size, scenes))
        found[kind] = scores = {
            name: mean(float(psnr(run(y, system), x).mean()) for x, y, system in problems)
            for name, run in methods.items()
        }
        gains = (f"{scores[name] - scores[first]:+.2f}" for name in others)
        moved = sum(align(y, system) is not None for _, y, system in problems)
        table.print(kind, f"{scores[first]:.2f}", *gains, f"{moved} of {len(problems)}")
    return found


def main() -> None:
    """Print the table."""
    parser = Parser(__doc__, threads=torch.get_num_threads())
    parser.add_argument("--weights", type=Path, nargs="*", default=[], help="further files")
    parser.add_argument("--sizes", nargs="+", default=["large"], help="of the network")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--count", type=int, default=4, help="scenes of each kind")
    parser.add_argument("--size", type=int, default=128, help="rows and columns")
    arguments = parser.parse_args()
    methods: dict[str, Any] = {"auto": lambda y, system: cassi.reconstruct(y, system)}
    for size in arguments.sizes:
        for path in [FILE, *arguments.weights]:
            name = size if path == FILE else f"{path.parent.name} {size}"
            methods[name] = prepare(load_shipped(path, size))
    store_models()
    scenes: list[Scene] = []
    if (root := os.environ.get("CASSI_DATA")) is not None:
        scenes = read_scenes(root)
    compare_kinds(
        methods, scenes, kinds=arguments.kinds, count=arguments.count, size=arguments.size
    )


def read_scenes(root: str) -> list[Scene]:
    """Read the validation scenes of CAVE, at their full size."""
    from hydra import compose

    with initialize_config_module("cassi.conf", version_base="1.3"):
        wavelengths = compose("train", overrides=["data=cave"]).data.wavelengths
    return load_split(root, "validation", manifest="cave", wavelengths=list(wavelengths))


if __name__ == "__main__":
    with torch.no_grad():
        main()
