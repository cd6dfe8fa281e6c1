"""Make the problems of an evaluation: scenes of a data set with camera, noise and twin."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cassi.apps.camera.guide import read_response
from cassi.apps.camera.system import make_camera
from cassi.apps.inputs import adapt_camera_to_frame, make_preprocessing
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
"""Settings that a case of a benchmark may change. They decide how a scene is measured."""


def find_cases(settings: Evaluate) -> dict[str, Evaluate]:
    """Return the settings of each case of a benchmark, by the name of the case.

    Without a benchmark, or with a single case, there is one entry, named "".

    Raises:
        ValueError: the benchmark has no cases, or a case changes a setting that it may not change.
    """
    protocol = settings.benchmark
    if protocol is None:
        return {"": settings}
    if not protocol.cases:
        raise ValueError("benchmark: expected at least one case, got none; give benchmark.cases")
    if protocol.published and settings.twin is None:
        raise ValueError(
            "benchmark: expected a twin, because its published figures are of twins; give twin=none"
        )
    cases = {}
    for name, values in protocol.cases.items():
        place = f"benchmark.cases.{name}"
        if settings.twin is None and isinstance(values, dict) and values.get("twin") is not None:
            raise ValueError(
                f"{place}.twin: expected a twin of all cases, which a case changes; give twin=none"
            )
        cases[name] = _change_settings(settings, {} if values is None else values, place, CASES)
    return cases if len(cases) > 1 else {"": next(iter(cases.values()))}


def _change_settings(settings: Any, values: Any, path: str, allowed_keys: Sequence[str]) -> Any:
    """Return settings, or a part of them, with the values of a case in place of their own.

    Args:
        settings: a dataclass.
        values: new values by name, or by the names of a part.
        path: name of these settings in messages.
        allowed_keys: names that a case may change.
    """
    if not isinstance(values, dict):
        raise ValueError(
            f"{path}: expected values of {', '.join(allowed_keys)} by name, got {values!r}"
        )
    new_values = {}
    for key, value in values.items():
        if key not in allowed_keys:
            hint = did_you_mean(key, allowed_keys) or f"; there is {', '.join(allowed_keys)}"
            raise ValueError(f"no config value {f'{path}.{key}'!r}{hint}")
        # A part such as `twin` keeps its other values. A node that describes an object, such as
        # `noise`, is a dict and is replaced as a whole.
        old_value = getattr(settings, key)
        if is_dataclass(old_value):
            value = _change_settings(old_value, value, f"{path}.{key}", list(vars(old_value)))
        new_values[key] = value
    try:
        return replace(settings, **new_values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def describe_repeated_points(
    prepare: Callable[[str, str], Problem], points: Sequence[str], scene: str
) -> list[str]:
    """Return a warning for each point whose camera and measurement an earlier point has too."""
    messages: list[str] = []
    point_by_digest: dict[str, str] = {}
    for point in points:
        try:
            digest = prepare(point, scene).digest
        except Exception:
            continue  # the runs of this point record the error
        if digest in point_by_digest:
            subject = f"{point!r} changes nothing: its camera and measurement of {scene}"
            messages.append(f"{subject} are those of {point_by_digest[digest]!r}")
        point_by_digest.setdefault(digest, point)
    return messages


def find_bands(prepare: Callable[[str, str], Problem], point: str, scenes: Sequence[str]) -> int:
    """Return the number of bands of the first scene that can be prepared.

    Raises:
        Exception: the error of the first scene, if none can be prepared.
    """
    # If all scenes have an error, such as a mask of another size, the command ends before any run.
    # A single damaged scene does not keep the other scenes from being evaluated.
    first_error: Exception | None = None
    for scene in scenes:
        try:
            return prepare(point, scene).system.cube_shape[0]
        except Exception as error:
            first_error = first_error or error
    raise first_error or ValueError("scenes: expected at least one, got none")


def preparation(
    points: Mapping[str, Evaluate], benchmark: Benchmark, device: torch.device
) -> Callable[[str, str], Problem]:
    """Return a function that makes the problem of a scene: `prepare(point, scene)`.

    Raises:
        ValueError: the settings of a point do not fit the data set.
    """
    noises = {
        point: build(point_settings.noise) if point_settings.noise else None
        for point, point_settings in points.items()
    }
    if any(noises.values()) and benchmark.measurements is not None:
        raise ValueError(
            "noise: expected none, the measurements are not simulated; give noise=null"
        )
    for settings in points.values():
        _check_twin(settings, benchmark)
    scenes = _load_benchmarks(points, benchmark)

    def prepare(point: str, scene: str) -> Problem:
        settings, item = points[point], scenes[point].load(scene)
        # The wavelengths of a simulated scene belong to its truth, which gives the number of bands.
        # Only the wavelengths of a measured scene state the bands of the camera.
        stated_wavelengths = (
            None if item.wavelengths is None or item.truth is not None else item.wavelengths
        )
        camera = make_camera(
            settings.system,
            settings.mask if isinstance(settings.mask, dict) else item.mask,
            truth=item.truth,
            measurement=item.measurement,
            bands=settings.system.get("bands")
            or (None if stated_wavelengths is None else len(stated_wavelengths)),
            wavelengths=item.wavelengths,
            user_wavelengths=stated_wavelengths,
        )
        system = camera.system
        if item.measurement is not None:
            system = adapt_camera_to_frame(
                system, camera.mask, item.preprocessing, settings.light, settings.measured_mask
            )
        return make_problem(
            item,
            system,
            camera.mask,
            noise=noises[point],
            twin=settings.twin,
            guide=_make_guide(settings, camera.system.cube_shape[0], item.wavelengths),
            seed=settings.seed,
            device=device,
        )

    return prepare


def _load_benchmarks(points: Mapping[str, Evaluate], benchmark: Benchmark) -> dict[str, Benchmark]:
    """Return the benchmark of each point.

    Points need different benchmarks if they differ in the mask, or in the camera for which frames
    are corrected.
    """
    benchmarks_by_key: dict[str, Benchmark] = {}
    scenes = {}
    for point, settings in points.items():
        is_mask_drawn, is_simulated = (
            isinstance(settings.mask, dict),
            benchmark.measurements is None,
        )
        if settings.benchmark is None or (is_mask_drawn and is_simulated):
            scenes[point] = benchmark
            continue
        key = repr(
            (None if is_mask_drawn else settings.mask, None if is_simulated else settings.system)
        )
        if key not in benchmarks_by_key:
            try:
                benchmarks_by_key[key] = load_benchmark(settings)
            except (OSError, ValueError) as error:
                raise ValueError(f"{point}: {error}" if point else str(error)) from None
        scenes[point] = benchmarks_by_key[key]
    return scenes


def _make_guide(
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
            f"twin: expected data with true cubes, which a twin measures, got the measurements of "
            f"data={settings.data.name}; leave twin=null"
        )
    if settings.noise and settings.twin.is_noisy:
        raise ValueError(
            "noise: expected none beside a twin with noise of its own; give noise=null, or "
            "twin.shot=null twin.read=0 twin.bits=null"
        )


def load_benchmark(settings: Evaluate) -> Benchmark:
    """Return the data set that settings name, with its scenes, mask and steps for frames.

    Raises:
        ValueError: the data set has no scenes, or a value of it cannot be used.
        FileNotFoundError: its files are missing.
    """
    data = settings.data
    if data.evaluation is None:
        raise ValueError(
            "data: expected a data set to evaluate on, got none; give one, data=cave_test"
        )
    options = dict(data.evaluation)
    _check_folder(settings.paths.data_dir, options)
    if data.source is not None and not {"cubes", "measurements"} & options.keys():
        dataset = build(data.source)(options.get("split", "test"))
        if data.given_wavelengths is None:
            raise ValueError("data.wavelengths: expected a list in nm, got none")
        options["cubes"] = {
            scene.name: scene for scene in as_scenes(dataset, data.given_wavelengths)
        }
        options["mask"] = options.get("mask") or bundled_path("mask.tif")
    if options.pop("bundled", False):
        options["cubes"] = bundled_path("scene.tif")
        options["mask"] = options.get("mask") or bundled_path("mask.tif")
    if settings.mask is not None and not isinstance(settings.mask, dict):
        if not isinstance(settings.mask, str):
            raise ValueError(f"mask: expected a file, or a mask to draw, got {settings.mask!r}")
        options |= {"mask": settings.mask, "mask_checksum": None}
    manifest, split = options.pop("manifest", None), options.pop("split", "test")
    if manifest is not None:
        options |= _list_manifest_files(Path(str(options["cubes"])).expanduser(), manifest, split)
    options |= {
        name: _find_existing_path(name, options[name])
        for name in ("cubes", "measurements", "mask")
        if isinstance(options.get(name), list) and not (name == "cubes" and manifest is not None)
    }
    # `scenes=scene01` is one name; Hydra makes a list only of `scenes=[scene01]`.
    names = [settings.scenes] if isinstance(settings.scenes, str) else settings.scenes
    if names is not None and not all(isinstance(name, str) for name in names):
        raise ValueError(f"scenes: expected a list of names, got {names!r}")
    steps = {step: options.pop(step) for step in STEPS if step in options}
    options |= {
        "preprocessing": make_preprocessing(steps, settings.system),
        "wavelengths": data.given_wavelengths,
    }
    allowed_keys = [
        *inspect.signature(Benchmark).parameters,
        "bundled",
        "manifest",
        "split",
        *STEPS,
    ]
    if unknown := sorted(options.keys() - allowed_keys):
        hint = did_you_mean(unknown[0], allowed_keys, place="data.evaluation.")
        raise ValueError(f"no config value {f'data.evaluation.{unknown[0]}'!r}{hint}")
    try:
        return Benchmark(**options, names=names)
    except TypeError as error:
        raise ValueError(f"data.evaluation: {error}") from None


def _find_existing_path(name: str, candidates: Sequence[str]) -> str:
    # A published data set is in the folder that our pages name, or in the folder into which the
    # archives of its authors are unpacked.
    for path in candidates:
        if Path(path).expanduser().exists():
            return path
    raise FileNotFoundError(f"data: no {name} at {' nor at '.join(candidates)}")


def _list_manifest_files(root: Path, manifest: Any, split: str) -> dict[str, Any]:
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
    # If the folder of all data sets is missing, one message names its setting. Without this check,
    # each missing file would have a message of its own.
    root = Path(data_dir).expanduser()
    values = [settings.get(name) for name in ("cubes", "measurements", "mask")]
    paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
    if not root.is_dir() and any(path and str(path).startswith(str(root)) for path in paths):
        raise FileNotFoundError(
            f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA"
        )
