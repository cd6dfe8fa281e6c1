"""From the data set that settings name to problems: scenes, cameras, noise, twins."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cassi.apps.camera.guide import read_response
from cassi.apps.camera.system import make_camera
from cassi.apps.inputs import as_taken, make_preprocessing
from cassi.apps.settings import Evaluate
from cassi.checks import did_you_mean
from cassi.config import build
from cassi.data.benchmarks import Benchmark
from cassi.data.bundled import bundled_path
from cassi.data.frames import STEPS
from cassi.data.manifest import read_manifest
from cassi.data.scenes import as_scenes, scene_name
from cassi.evaluation import Problem, make_problem

CASES = ("guide", "mask", "noise", "seed", "system", "twin")
"""Settings that a case of a benchmark may change: those that a scene is measured with."""


def find_cases(settings: Evaluate) -> dict[str, Evaluate]:
    """Return the settings of each case of a benchmark, by name; one without a name otherwise."""
    protocol = settings.benchmark
    if protocol is None:
        return {"": settings}
    if not protocol.cases:
        raise ValueError("benchmark: expected at least one case, got none; give benchmark.cases")
    if protocol.published and settings.twin is None:
        raise ValueError(
            "benchmark: expected a twin, of which the published figures are; give twin=none"
        )
    cases = {}
    for name, values in protocol.cases.items():
        place = f"benchmark.cases.{name}"
        if settings.twin is None and isinstance(values, dict) and values.get("twin") is not None:
            raise ValueError(
                f"{place}.twin: expected a twin of all cases beside it; give twin=none"
            )
        cases[name] = _changed(settings, {} if values is None else values, place, CASES)
    return cases if len(cases) > 1 else {"": next(iter(cases.values()))}


def _changed(settings: Any, values: Any, place: str, known: Sequence[str]) -> Any:
    """Return settings, or a part of them, with other values; an object is replaced whole."""
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected values of {', '.join(known)} by name, got {values!r}")
    made = {}
    for key, value in values.items():
        if key not in known:
            near = did_you_mean(key, known) or f"; there is {', '.join(known)}"
            raise ValueError(f"no config value {f'{place}.{key}'!r}{near}")
        now = getattr(settings, key)
        made[key] = (
            _changed(now, value, f"{place}.{key}", list(vars(now))) if is_dataclass(now) else value
        )
    try:
        return replace(settings, **made)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def repeated_points(
    prepare: Callable[[str, str], Problem], points: Sequence[str], scene: str
) -> list[str]:
    """Say which points give every method what an earlier point has given it.

    A point that cannot be prepared is left to its runs, which record why.
    """
    said: list[str] = []
    earlier: dict[str, str] = {}
    for point in points:
        try:
            digest = prepare(point, scene).digest
        except Exception:
            continue
        if digest in earlier:
            same = f"{point!r} changes nothing: its camera and measurement of {scene}"
            said.append(f"{same} are those of {earlier[digest]!r}")
        earlier.setdefault(digest, point)
    return said


def find_bands(prepare: Callable[[str, str], Problem], point: str, scenes: Sequence[str]) -> int:
    """Return C of the first scene that can be prepared.

    Whatever is wrong with all scenes, such as another mask or shape, is so found before anything
    runs; a single damaged one is not in the way of the others.
    """
    first: Exception | None = None
    for scene in scenes:
        try:
            return prepare(point, scene).system.cube_shape[0]
        except Exception as error:
            first = first or error
    raise first or ValueError("scenes: expected at least one, got none")


def preparation(
    points: Mapping[str, Evaluate], benchmark: Benchmark, device: torch.device
) -> Callable[[str, str], Problem]:
    """Return what makes the problem of a scene in a case of a benchmark."""
    noises = {p: build(s.noise) if s.noise else None for p, s in points.items()}
    if any(noises.values()) and benchmark.measurements is not None:
        raise ValueError(
            "noise: expected none, the measurements are not simulated; give noise=null"
        )
    for settings in points.values():
        _check_twin(settings, benchmark)
    scenes = _scenes_of(points, benchmark)

    def prepare(point: str, scene: str) -> Problem:
        settings, item = points[point], scenes[point].load(scene)
        known = None if item.wavelengths is None or item.truth is not None else item.wavelengths
        camera = make_camera(
            settings.system,
            settings.mask if isinstance(settings.mask, dict) else item.mask,
            truth=item.truth,
            measurement=item.measurement,
            bands=settings.system.get("bands") or (None if known is None else len(known)),
            wavelengths=item.wavelengths,
            stated=known,
        )
        system = camera.system
        if item.measurement is not None:
            told = settings.light, settings.photographed
            system = as_taken(system, camera.mask, item.preprocessing, *told)
        return make_problem(
            item,
            system,
            camera.mask,
            noise=noises[point],
            twin=settings.twin,
            guide=_guide(settings, camera.system.cube_shape[0], item.wavelengths),
            seed=settings.seed,
            device=device,
        )

    return prepare


def _scenes_of(points: Mapping[str, Evaluate], benchmark: Benchmark) -> dict[str, Benchmark]:
    """Return the scenes of each point, with its own mask, and frames corrected for its camera."""
    loaded: dict[str, Benchmark] = {}
    scenes = {}
    for point, settings in points.items():
        drawn, simulated = isinstance(settings.mask, dict), benchmark.measurements is None
        if settings.benchmark is None or (drawn and simulated):
            scenes[point] = benchmark
            continue
        key = repr((None if drawn else settings.mask, None if simulated else settings.system))
        if key not in loaded:
            try:
                loaded[key] = load_benchmark(settings)
            except (OSError, ValueError) as error:
                raise ValueError(f"{point}: {error}" if point else str(error)) from None
        scenes[point] = loaded[key]
    return scenes


def _guide(
    settings: Evaluate, bands: int, wavelengths: tuple[float, ...] | None
) -> tuple[torch.Tensor, float] | None:
    kind = settings.guide.response
    if kind is None:
        return None
    channels = 1 if kind == "pan" else 3
    return read_response(kind, channels, bands, wavelengths), settings.guide.noise


def _check_twin(settings: Evaluate, benchmark: Benchmark) -> None:
    if settings.twin is None:
        return
    if benchmark.measurements is not None:
        raise ValueError(
            f"twin: expected data with true cubes, which it measures, got the measurements of "
            f"data={settings.data.name}; leave twin=null"
        )
    if settings.noise and settings.twin.is_noisy:
        raise ValueError(
            "noise: expected none beside a twin with noise of its own; give noise=null, or "
            "twin.shot=null twin.read=0 twin.bits=null"
        )


def load_benchmark(settings: Evaluate) -> Benchmark:
    """List the scenes that settings evaluate on."""
    data = settings.data
    if data.evaluation is None:
        raise ValueError(
            "data: expected a data set to evaluate on, got none; give one, data=cave_test"
        )
    found = dict(data.evaluation)
    _check_folder(settings.paths.data_dir, found)
    if data.source is not None and not {"cubes", "measurements"} & found.keys():
        made = build(data.source)(found.get("split", "test"))
        if data.given_wavelengths is None:
            raise ValueError("data.wavelengths: expected a list in nm, got none")
        found["cubes"] = {s.name: s for s in as_scenes(made, data.given_wavelengths)}
        found["mask"] = found.get("mask") or bundled_path("mask.tif")
    if found.pop("bundled", False):
        found["cubes"] = bundled_path("scene.tif")
        found["mask"] = found.get("mask") or bundled_path("mask.tif")
    if settings.mask is not None and not isinstance(settings.mask, dict):
        if not isinstance(settings.mask, str):
            raise ValueError(f"mask: expected a file, or a mask to draw, got {settings.mask!r}")
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
