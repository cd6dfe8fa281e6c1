"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.calibrate.results import HEADER, camera_values
from cassi.apps.command import Run, announce, choose_device, prepare_process, run_command
from cassi.apps.inputs import Inputs, good_pixels, load_inputs
from cassi.apps.reconstructors import build_solver
from cassi.apps.results import environment, say_estimates, summarize_calibration, write_json
from cassi.apps.settings import Calibrate, to_yaml
from cassi.calibration import Calibration, Frame
from cassi.camera_search import find_camera
from cassi.data.atomic import atomic_folder
from cassi.data.synthetic.twin import Twin
from cassi.evaluation import scene_generator
from cassi.systems import SDCassi, TiltedCassi, WideCassi


def main() -> None:
    """Run the command."""
    run_command("cassi-calibrate", Calibrate, calibrate_camera)


def calibrate_camera(settings: Calibrate, run: Run) -> float:
    """Calibrate what the settings name and write the results.

    Returns:
        The held-out error with the calibrated camera, for sweeps.
    """
    if isinstance(settings.monochromatic, list):
        return calibrate_by_filters(settings, run)
    device = choose_device(settings.device)
    prepare_process(settings)
    torch.manual_seed(settings.seed)
    solver = build_solver(settings)
    problem = load_frames(settings, device)
    print(*problem.notes, sep="\n")
    start = time.perf_counter()
    names = ("radius", "degree", "gain", "seed")
    numbers = {name: getattr(settings, name) for name in names}
    found, system, lights = find_camera(
        problem.frames, problem.system, solver, watch=announce("calibrate"), **numbers
    )
    gain = None if settings.white is None else lights[0].level
    seconds = time.perf_counter() - start
    result = Result(settings, problem.frames, problem.system, found, system, gain, seconds)
    more = environment(device, ops.backend(device)) | {"inputs": problem.notes}
    written = write_results(run.folder, result, more, problem.wavelengths)
    print(say(written), f"-> {run.folder}", sep="\n")
    return found.after


@dataclass(frozen=True)
class Problem:
    """What a calibration starts from."""

    frames: list[Frame]
    """Snapshots first, then a white and a monochromatic frame where they are given."""
    system: SDCassi
    wavelengths: tuple[float, ...] | None
    notes: list[str]


def load_frames(settings: Calibrate, device: torch.device) -> Problem:
    """Read everything that settings name.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: files and camera do not fit each other.
    """
    files = settings.measurement

    def read_inputs(file: str | list[str] | None) -> Inputs:
        return load_inputs(replace(settings, measurement=file), device)

    several = files if isinstance(files, list) else [files]
    if isinstance(settings.mask, list) and all(isinstance(file, str) for file in several):
        several = [files]  # a mask each: the shots of one snapshot
    if not several:
        raise ValueError("measurement: expected at least one file, got an empty list")
    inputs = [read_inputs(file) for file in several]
    first = inputs[0]
    system, notes = first.system.plain, list(first.notes)
    if isinstance(system, WideCassi):  # where the bands lie does not depend on their width
        system = system.narrow()
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"system: expected SDCassi, got {type(system).__name__}")
    if settings.twin is not None:
        if files is not None or first.truth is None or settings.noise is not None:
            raise ValueError(
                "twin: expected a truth alone, without measurement and noise; give truth=FILE"
            )
        random = scene_generator(settings.seed, "calibration")
        y = settings.twin.measure(first.truth.to(device), system, random)
        good = good_pixels(first)
        notes.append(f"measurement: simulated by a camera that is off: {_defects(settings.twin)}")
    else:
        y = torch.cat([each.measurement for each in inputs])
        goods = [good_pixels(each) for each in inputs]
        whole = torch.ones_like(y[:1], dtype=torch.bool)
        found = [whole if good is None else good for good in goods]
        good = torch.cat(found) if any(good is not None for good in goods) else None
    for each in inputs[1:]:
        notes.append(each.notes[0])
    frames = [Frame.snapshot(y, system.bands, good)]

    def read(role: str, file: str) -> tuple[Tensor, Tensor | None]:
        found = read_inputs(file)
        notes.append(f"{role}: {found.notes[0]}")
        return found.measurement, good_pixels(found)

    if settings.white is not None:
        y, good = read("white", settings.white)
        frames.append(Frame.snapshot(y, system.bands, good))
    for single in settings.filters:
        place = _place(single.wavelength, first.wavelengths)
        y, good = read("monochromatic", single.file)
        frames.append(Frame.monochromatic(y, place, good))
    return Problem(frames, system, first.wavelengths, notes)


def _defects(twin: Twin) -> str:
    usual = vars(Twin())
    return ", ".join(
        f"{name} {value}" for name, value in vars(twin).items() if value != usual[name]
    )


def _place(wavelength: float | None, wavelengths: tuple[float, ...] | None) -> float:
    """Return where in the spectrum a wavelength is, in bands."""
    if wavelengths is None or len(wavelengths) < 2:
        raise ValueError(
            "monochromatic: expected wavelengths=[…] in nm, one per band, with it, got none"
        )
    if not isinstance(wavelength, int | float) or not (
        wavelengths[0] <= wavelength <= wavelengths[-1]
    ):
        raise ValueError(
            f"monochromatic.wavelength: expected {wavelengths[0]:g} to {wavelengths[-1]:g} nm, "
            f"got {wavelength!r}"
        )
    above = next(k for k in range(1, len(wavelengths)) if wavelengths[k] >= wavelength)
    low, high = wavelengths[above - 1], wavelengths[above]
    return above - 1 + (wavelength - low) / (high - low)


@dataclass(frozen=True)
class Result:
    """A calibration and what it was made from."""

    settings: Calibrate
    frames: list[Frame]
    nominal: SDCassi
    found: Calibration
    system: SDCassi | TiltedCassi
    """With the refined mask, where there is one."""
    gain: float | None
    seconds: float


def write_results(
    folder: Path,
    result: Result,
    more: dict[str, Any],
    wavelengths: tuple[float, ...] | None,
) -> dict[str, Any]:
    """Write mask, camera, picture and numbers, all or none; return the numbers."""
    from cassi.viz.calibration import save_calibration

    found = result.found
    numbers = summarize(result)
    mask = result.system.mask.clamp(0, 1).cpu().numpy()  # more contrast may pass 1
    while mask.ndim > 2 and len(mask) == 1:
        mask = mask[0]
    with atomic_folder(folder) as stage:
        np.save(stage / "mask.npy", mask)
        camera = HEADER.format(folder=folder) + to_yaml(describe_camera(result, wavelengths))
        (stage / "camera.yaml").write_text(camera)
        models = [
            (entry.model[-1] if entry.model else "nominal", entry.error, entry.taken)
            for entry in found.stages
        ]
        save_calibration(stage / "calibration.png", models, found.standings(result.nominal))
        files = sorted(file.name for file in stage.iterdir())
        write_json(stage / "calibration.json", numbers | more | {"files": files})
    return numbers


def describe_camera(result: Result, wavelengths: tuple[float, ...] | None) -> dict[str, Any]:
    """Return what the file of the calibrated camera holds, which lies beside `mask.npy`."""
    return camera_values(result.settings, result.system, result.gain, wavelengths)


def summarize(result: Result) -> dict[str, Any]:
    """Return what calibration.json holds of the calibration itself."""
    return {
        **summarize_calibration(result.found),
        "gain": result.gain,
        "offsets": {"nominal": result.nominal.offsets, "calibrated": result.system.offsets},
        "seconds": result.seconds,
    }


def say(numbers: dict[str, Any]) -> str:
    """Say before and after in a table."""
    lines = [say_estimates(numbers)]
    if numbers["gain"] is None:
        lines.append("gain: unknown, brightness is the scene's; give white=FILE")
    else:
        lines.append(f"gain: {numbers['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{numbers['seconds']:.1f} s"])
