"""From the `data` node of a config to a data set, and from its scenes to problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from cassi.apps.geometry import build_camera, draw_mask, fit_bands
from cassi.apps.settings import given_wavelengths
from cassi.config import build, plain
from cassi.data.benchmarks import Benchmark, Item
from cassi.data.bundled import bundled_path
from cassi.data.manifest import read_manifest
from cassi.data.scenes import scene_name
from cassi.evaluation import Mismatch, Problem, make_problem
from cassi.systems import System


def load_benchmark(config: DictConfig) -> Benchmark:
    """List the scenes that a config evaluates on.

    Raises:
        OSError: a folder or file is missing.
        ValueError: the node is none of evaluation, or its values do not fit.
    """
    node = config.data
    if "evaluation" not in node:
        raise ValueError("data: expected a data set to evaluate on, such as data=cave_test")
    if OmegaConf.is_missing(node, "root"):
        raise ValueError("data.root: expected a folder of cubes, got none; give data.root=DIR")
    settings: dict[str, Any] = plain(node.evaluation)
    _check_folder(config, settings)
    if settings.pop("bundled", False):
        settings["cubes"] = bundled_path("scene.tif")
        settings["mask"] = settings.get("mask") or bundled_path("mask.tif")
    if config.mask is not None and not isinstance(config.mask, DictConfig):
        settings |= {"mask": config.mask, "mask_checksum": None}
    manifest, split = settings.pop("manifest", None), settings.pop("split", "test")
    if manifest is not None:
        settings |= _listed(Path(str(settings["cubes"])).expanduser(), manifest, split)
    settings |= {
        name: _first_that_exists(name, settings[name])
        for name in ("cubes", "measurements", "mask")
        if isinstance(settings.get(name), list) and not (name == "cubes" and manifest is not None)
    }
    names = plain(config.scenes)
    names = [names] if isinstance(names, str) else names
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ValueError(f"scenes: expected a list of names, got {names!r}")
    camera = {"step": config.system.get("step", 1), "axis": config.system.get("axis", -1)}
    wavelengths = given_wavelengths(config.data)
    try:
        return Benchmark(**settings, **camera, names=names, wavelengths=wavelengths)
    except TypeError as error:
        raise ValueError(f"data.evaluation: {error}") from None


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


def _first_that_exists(name: str, candidates: Sequence[str]) -> str:
    """A published data set lies where we say, or where its authors' archives put it."""
    for path in candidates:
        if Path(path).expanduser().exists():
            return path
    raise FileNotFoundError(f"data: no {name} at {' nor at '.join(candidates)}")


def _listed(root: Path, manifest: Any, split: str) -> dict[str, Any]:
    files = read_manifest(manifest).files(split)
    absent = [name for name in files if not (root / name).exists()]
    if absent:
        raise FileNotFoundError(
            f"data: {len(absent)} of {len(files)} {split} scenes are missing in {root}: "
            f"{', '.join(absent[:3])}; set paths.data_dir=DIR or $CASSI_DATA"
        )
    return {
        "cubes": [root / name for name in files],
        "checksums": {scene_name(name): digest for name, digest in files.items()},
    }


def _check_folder(config: DictConfig, settings: dict[str, Any]) -> None:
    root = Path(str(config.paths.data_dir)).expanduser()
    used = [settings.get(name) for name in ("cubes", "measurements", "mask")]
    flat = [path for value in used for path in (value if isinstance(value, list) else [value])]
    if not root.is_dir() and any(path and str(path).startswith(str(root)) for path in flat):
        raise FileNotFoundError(
            f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA"
        )
