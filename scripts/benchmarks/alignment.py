"""Measure what moving the mask to where a snapshot shows it is worth (guides/calibration.md).

    python scripts/benchmarks/alignment.py              # cameras that are off
    python scripts/benchmarks/alignment.py --right      # is anything moved where nothing is off?

PSNR in dB, mean over CAVE's validation scenes (matlab-uint8), of `auto` and of the weights of the
package: with the nominal camera, with the mask where `cassi.calibration.align` finds it, and of
`auto` with the true camera. With --right CAVE's training scenes are measured by cameras that are
what they are taken for, and scenes of ten kinds (scripts/benchmarks/kinds.py), and those in which a
mask is moved are counted. Needs `$CASSI_DATA`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from hydra import compose, initialize_config_module
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.reconstructors import build_solver, compose_settings, store_models
from cassi.camera_search import align
from cassi.data.datasets import WholeScenes, load_split
from cassi.data.synthetic.twin import Twin
from cassi.metrics import psnr
from scripts.benchmarks.kinds import KINDS, draw_scenes, read_scenes
from scripts.benchmarks.tables import Table
from scripts.release.weights import PANEL, load_scenes, make_panel, measure

SHOT: dict[str, Any] = {"shot": "binomial", "bits": 11}
OFF = {
    "`twin=blurred`": ("TSA mask", None),
    "`twin=camera`": ("TSA mask", None),
    "0.2 down, 0.1 right, 11 bits": ("TSA mask", Twin(shift=[0.2, 0.1], **SHOT)),
    "0.1 down": ("TSA mask", Twin(shift=[0.1, 0.0])),
    "1 down, 0.6 left, 11 bits": ("TSA mask", Twin(shift=[1.0, -0.6], **SHOT)),
    "turned by 0.1°, 11 bits": ("TSA mask", Twin(rotation=0.1, **SHOT)),
    "lens blur of 0.6": ("TSA mask", Twin(lens_blur=0.6)),
    "binary mask, 0.3 up and right, 10 bits": (
        "binary mask",
        Twin(shift=[-0.3, 0.3], shot="binomial", bits=10),
    ),
    "binary mask, blur of 0.4": ("binary mask", Twin(mask_blur=0.4)),
    "binary mask, 0.3 right alone, 11 bits": ("binary mask", Twin(shift=[0.0, 0.3], **SHOT)),
    "dispersion 0.02 off, curve 0.3, 11 bits": (
        "TSA mask",
        Twin(dispersion=0.02, curvature=0.3, **SHOT),
    ),
}
"""Cameras that are off, by what is off: pixels."""
TWINS = {
    "`twin=blurred`": "twin, mask off and blurred",
    "`twin=camera`": "twin, all a little off",
}


def measure_off(scenes: list[Tensor], mask: Tensor, first: int) -> None:
    """Print what every camera that is off comes to, from one of `OFF` on."""
    auto = build_solver(compose_settings())
    nets = [cassi.create_model("pretrained", align=align) for align in (False, True)]
    methods = ("auto", "aligned", "true camera", "pretrained", "aligned", "seconds to align")
    table, panel = Table("camera", *methods), make_panel()
    for name, (base, twin) in list(OFF.items())[first:]:
        case = panel[TWINS[name]] if twin is None else PANEL[base]._replace(twin=twin)
        rows: list[list[float]] = []
        for k, cube in enumerate(scenes):
            truth, y, system = measure(case, cube, mask, k)
            assert case.twin is not None
            told = case.twin.true_camera(case.camera(mask)).system
            told = told.weighted(bad_pixels=~system.good)
            begun = time.perf_counter()
            found = align(y, system)
            seconds = time.perf_counter() - begun
            cameras = (system, system if found is None else found.system, told)
            cubes = [auto(y, camera) for camera in cameras] + [net(y, system) for net in nets]
            rows.append([*(float(psnr(x, truth).mean()) for x in cubes), seconds])
        table.print(name, *(f"{mean(column):.2f}" for column in zip(*rows, strict=True)))


def count_right(root: str, mask: Tensor) -> None:
    """Print how often a mask is moved that is where it should be."""
    with initialize_config_module("cassi.conf", version_base="1.3"):
        waves = compose("train", overrides=["data=cave"]).data.wavelengths
    loaded = load_split(root, "train", manifest="cave", wavelengths=list(waves))
    train = WholeScenes(loaded, downsample=2)
    table = Table("right cameras", "snapshots", "moved")
    for name in ("TSA mask", "binary mask", "binary, 20 % open"):
        system = PANEL[name].camera(mask)
        moved = [align(system(train[k][None]), system) for k in range(len(train))]
        table.print(name, str(len(moved)), str(sum(found is not None for found in moved)))
    scenes = read_scenes(root)
    for kind in KINDS:
        drawn = [each for size in (128, 256) for each in draw_scenes(kind, 4, size, scenes)]
        moved = [align(y, system) for _, y, system in drawn]
        table.print(kind, str(len(moved)), str(sum(found is not None for found in moved)))


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--right", action="store_true", help="cameras that are what they should be")
    parser.add_argument("--first", type=int, default=0, help="camera to begin with")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if (root := os.environ.get("CASSI_DATA")) is None:
        raise SystemExit("set CASSI_DATA to the folder that holds cave_raw, cave_train and tsa")
    store_models()
    mask = cassi.read_mask(Path(root) / "tsa" / "mask.mat")
    if arguments.right:
        count_right(root, mask)
        return
    with initialize_config_module("cassi.conf", version_base="1.3"):
        scenes = load_scenes(root)
    measure_off(scenes, mask, arguments.first)


if __name__ == "__main__":
    with torch.no_grad():
        main()
