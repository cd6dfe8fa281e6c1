"""From the `data` node of a config to a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cassi.apps.frames import make_preprocessing
from cassi.apps.settings import given_wavelengths
from cassi.config import plain
from cassi.data.benchmarks import Benchmark
from cassi.data.bundled import bundled_path
from cassi.data.frames import STEPS
from cassi.data.manifest import read_manifest
from cassi.data.scenes import scene_name


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
    steps = {step: settings.pop(step) for step in STEPS if step in settings}
    settings |= {
        "preprocessing": make_preprocessing(steps, config.system),
        "wavelengths": given_wavelengths(config.data),
    }
    try:
        return Benchmark(**settings, names=names)
    except TypeError as error:
        raise ValueError(f"data.evaluation: {error}") from None


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
