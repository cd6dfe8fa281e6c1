"""From the scenes of a data set to problems: cameras, noise, mismatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from omegaconf import DictConfig

from cassi.apps.camera import build_camera
from cassi.apps.geometry import fit_bands
from cassi.apps.masks import draw_mask
from cassi.config import build, plain
from cassi.data.benchmarks import Benchmark, Item
from cassi.evaluation import Mismatch, Problem, make_problem
from cassi.systems import System


def find_bands(prepare: Callable[[str, str], Problem], point: str, scenes: Sequence[str]) -> int:
    """Return C of the first scene that can be prepared.

    Whatever is wrong with all scenes, such as another mask or shape, is so found before anything
    runs; a single damaged one is not in the way of the others.

    Args:
        prepare: from `preparation`.
        point: of a sweep.
        scenes: names.

    Raises:
        OSError: a file of every scene is missing.
        ValueError: no scene is fit; the message is about the first.
    """
    first: Exception | None = None
    for scene in scenes:
        try:
            return prepare(point, scene).system.cube_shape[0]
        except Exception as error:
            first = first or error
    raise first or ValueError("scenes: expected at least one, got none")


def preparation(
    points: Mapping[str, DictConfig], benchmark: Benchmark, device: torch.device
) -> Callable[[str, str], Problem]:
    """Return what makes the problem of a scene at a point of a sweep.

    Args:
        points: the config of each point.
        benchmark: the scenes.
        device: where methods run.

    Raises:
        ValueError: noise or mismatch are not fit, or the measurements are given.
    """
    noises = {p: build(c.noise) if c.get("noise") else None for p, c in points.items()}
    mismatches = {point: Mismatch(**plain(config.mismatch)) for point, config in points.items()}
    changed = any(noises.values()) or any(mismatch.exists for mismatch in mismatches.values())
    if changed and benchmark.measurements is not None:
        raise ValueError("noise, mismatch: expected none, the measurements are not simulated")

    def prepare(point: str, scene: str) -> Problem:
        config, item = points[point], benchmark.load(scene)

        wavelengths = item.wavelengths
        if isinstance(config.mask, DictConfig):
            drawn = draw_mask(config.mask, config.system, item.truth, wavelengths)
            item = replace(item, mask=drawn)
        axis = config.system.get("axis", -1)
        length = None if item.truth is None else item.truth.shape[-2 if axis == -2 else -1]

        def make_camera(mask: torch.Tensor, bands: int) -> System:
            return build_camera(config.system, mask, bands, wavelengths, length)

        return make_problem(
            item,
            make_camera,
            bands=_bands(config, item),
            noise=noises[point],
            mismatch=mismatches[point],
            seed=config.seed,
            device=device,
        )

    return prepare


def _bands(config: DictConfig, item: Item) -> int:
    stated = config.system.get("bands")
    if item.truth is not None:
        return int(stated or len(item.truth))
    known = None if item.wavelengths is None else len(item.wavelengths)
    if item.measurement is None:
        raise ValueError(f"{item.name}: expected a cube or a measurement, got neither")
    measurement = item.measurement[None]
    return fit_bands(config.system, item.mask, measurement, stated or known, item.wavelengths)
