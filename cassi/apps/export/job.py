"""The job of cassi-export: write a method for one camera as a file."""

import json
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from cassi.apps.command import Run, compile_privately, prepare_process
from cassi.apps.results import write_numbers
from cassi.apps.settings import Export
from cassi.apps.snapshot import make_recipe, prepare
from cassi.data.atomic import atomic_folder
from cassi.methods.along_dispersion import AlongDispersion
from cassi.models.export import (
    Method,
    export,
    export_compiled,
    export_onnx,
    export_operators,
    export_plain,
    export_torch,
)
from cassi.systems import System

TIMED_RUNS = 5
"""Timed runs of the method, and of the exported file. The fastest run of each counts."""


@torch.no_grad()
def export_method(settings: Export, run: Run) -> float:
    """Write the method of the settings for their camera, and compare the file with the method.

    Returns:
        The largest absolute difference between the cubes of method and file, for sweeps.
    """
    prepare_process(settings)
    settings = replace(settings, precision="32-true", device="cpu")
    recipe = make_recipe(settings)
    snapshot, method = prepare(settings, recipe)
    # The spectral grid depends on the frame. So an exported method works on the camera's bands.
    if isinstance(method, AlongDispersion):
        method, _ = recipe.make(snapshot.camera.system.cube_shape[0])
    y, system = snapshot.y, snapshot.camera.system
    print(*snapshot.notes, sep="\n")

    def run_method() -> Tensor:
        torch.manual_seed(0)  # a network may draw random numbers
        x: Tensor = method.run(y, system).x
        return x

    description = {
        "format": settings.format,
        "method": json.dumps(settings.model or settings.solver),
        "measurement_shape": " ".join(map(str, y.shape)),
        "system": json.dumps(settings.system),
        "example": "noise, iterations, ranks and branches are those of snapshot.f32",
    }
    with atomic_folder(run.folder) as stage:
        file = stage / ("network.onnx" if settings.format == "onnx" else "network.pt2")
        start_time = time.perf_counter()
        run_file = write_file(settings.format, method, system, y, file, description)
        export_seconds = time.perf_counter() - start_time
        x = run_method()
        difference = float((run_file() - x).abs().max())
        fastest_seconds = {"ours": time_fastest(run_method), "exported": time_fastest(run_file)}
        y.numpy().tofile(stage / "snapshot.f32")
        x.numpy().tofile(stage / "cube.f32")
        _copy_programs(settings.format, stage)
        numbers = description | {
            "measurement_shape": list(y.shape),
            "cube_shape": list(x.shape),
            "wavelengths": snapshot.camera.wavelengths,
            "largest_difference": difference,
            "largest_value": float(x.abs().max()),
            "ms": {name: 1e3 * value for name, value in fastest_seconds.items()},
            "frames_per_second": {name: 1 / value for name, value in fastest_seconds.items()},
            "threads": torch.get_num_threads(),
            "seconds_to_export": export_seconds,
            "bytes": sum(path.stat().st_size for path in stage.glob("network.*")),
        }
        write_numbers(stage / "export.json", numbers)
    for name, value in fastest_seconds.items():
        print(f"{name}: {1e3 * value:.4g} ms a frame, {1 / value:.3g} frames/s")
    print(f"largest difference: {difference:.1e}, of values up to {float(x.abs().max()):.3g}")
    print(f"-> {run.folder}")
    return difference


def write_file(
    format: str, method: Method, system: System, y: Tensor, file: Path, description: dict[str, str]
) -> Callable[[], Tensor]:
    """Write a method for a camera in a format.

    Args:
        format: onnx, torch_export, torch_operators or aotinductor.
        method: the method.
        system: the camera A.
        y: measurement `(1, K, H', W')`, an example for the exporters.
        file: path of the new file.
        description: texts that the file keeps.

    Returns:
        A function that reconstructs y with the file.

    Raises:
        ValueError: the method cannot be written in this format, or a package is missing.
    """
    with warnings.catch_warnings():
        # The exporters of torch print warnings about their internals, which no user can act on.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            if format == "onnx":
                export_onnx(method, system, file, y, description)
                return _run_onnx(file, y)
            if format == "aotinductor":
                compile_privately()
                export_compiled(export_plain(method, system, y), file, description)
                model: Callable[[Tensor], Tensor] = torch._inductor.aoti_load_package(str(file))
            else:
                if format == "torch_export":
                    export_torch(export_plain(method, system, y), file, description)
                else:
                    export_operators(export(method, system, y), file, description)
                model = torch.export.load(file).module()
        except (RuntimeError, ImportError) as error:
            # These errors have many lines. The first line names the cause.
            hint = f"; pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
            raise ValueError(f"format={format}: {str(error).splitlines()[0]}{hint}") from error
        finally:
            logging.disable(logging.NOTSET)
    return lambda: model(y)


def _run_onnx(file: Path, y: Tensor) -> Callable[[], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(file, options)
    return lambda: torch.from_numpy(session.run(["x"], {"y": y.numpy()})[0])


def _copy_programs(format: str, folder: Path) -> None:
    """Copy the programs that run a file of this format, as run.py and run.cpp."""
    for program in resources.files(__package__).joinpath("programs").iterdir():
        name, _, suffix = program.name.removesuffix(".txt").partition(".")
        if name == format:
            (folder / f"run.{suffix}").write_bytes(program.read_bytes())


def time_fastest(run: Callable[[], Tensor]) -> float:
    """Return the time of the fastest of `TIMED_RUNS` runs, seconds."""
    # Other programs can only slow a run down, so the fastest run was disturbed least.
    seconds = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
