"""From the data set that settings name to its scenes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cassi.apps.inputs import make_preprocessing
from cassi.apps.settings import Evaluate
from cassi.checks import did_you_mean
from cassi.data.benchmarks import Benchmark
from cassi.data.bundled import bundled_path
from cassi.data.frames import STEPS
from cassi.data.manifest import read_manifest
from cassi.data.scenes import scene_name


def load_benchmark(settings: Evaluate) -> Benchmark:
    """List the scenes that settings evaluate on.

    Raises:
        OSError: a folder or file is missing.
        ValueError: the data set is none of evaluation, or its values do not fit.
    """
    data = settings.data
    if data.evaluation is None:
        raise ValueError("data: expected a data set to evaluate on, such as data=cave_test")
    found = dict(data.evaluation)
    _check_folder(settings.paths.data_dir, found)
    if found.pop("bundled", False):
        found["cubes"] = bundled_path("scene.tif")
        found["mask"] = found.get("mask") or bundled_path("mask.tif")
    if settings.mask is not None and not isinstance(settings.mask, dict):
        found |= {"mask": settings.mask, "mask_checksum": None}
    manifest, split = found.pop("manifest", None), found.pop("split", "test")
    if manifest is not None:
        found |= _listed(Path(str(found["cubes"])).expanduser(), manifest, split)
    found |= {
        name: _first_that_exists(name, found[name])
        for name in ("cubes", "measurements", "mask")
        if isinstance(found.get(name), list) and not (name == "cubes" and manifest is not None)
    }
    names = [settings.scenes] if isinstance(settings.scenes, str) else settings.scenes
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ValueError(f"scenes: expected a list of names, got {names!r}")
    steps = {step: found.pop(step) for step in STEPS if step in found}
    found |= {
        "preprocessing": make_preprocessing(steps, settings.system),
        "wavelengths": data.given_wavelengths,
    }
    known = [*inspect.signature(Benchmark).parameters, "bundled", "manifest", "split", *STEPS]
    if unknown := sorted(found.keys() - known):
        near = did_you_mean(unknown[0], known, place="data.evaluation.")
        raise ValueError(f"no config value {f'data.evaluation.{unknown[0]}'!r}{near}")
    try:
        return Benchmark(**found, names=names)
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


def _check_folder(data_dir: str, settings: dict[str, Any]) -> None:
    root = Path(data_dir).expanduser()
    used = [settings.get(name) for name in ("cubes", "measurements", "mask")]
    flat = [path for value in used for path in (value if isinstance(value, list) else [value])]
    if not root.is_dir() and any(path and str(path).startswith(str(root)) for path in flat):
        raise FileNotFoundError(
            f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA"
        )
