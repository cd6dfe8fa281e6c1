"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.calibrate.results import camera_values, write_calibration
from cassi.apps.command import Run, announce, choose_device, prepare_process, run_command
from cassi.apps.inputs import Inputs, good_pixels, load_inputs
from cassi.apps.reconstructors import build_solver
from cassi.apps.results import environment, say_estimates, summarize_calibration
from cassi.apps.settings import Calibrate
from cassi.calibration import Calibration, Frame
from cassi.camera_search import find_camera
from cassi.data.synthetic.twin import Twin
from cassi.evaluation import scene_generator
from cassi.systems import SDCassi, WideCassi
from cassi.systems.photographed import is_design


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
    if (
        settings.white is None
        and settings.photographed == "auto"
        and is_design(problem.system.mask)
    ):
        settings = replace(settings, photographed=False)  # its values are grey once it is moved
    result = {
        **summarize_calibration(found),
        "gain": gain,
        "offsets": {"nominal": problem.system.offsets, "calibrated": system.offsets},
        "seconds": time.perf_counter() - start,
    }
    write_calibration(
        run.folder,
        system.mask.clamp(0, 1),  # more contrast may pass 1
        camera_values(settings, system, gain, problem.wavelengths),
        lambda path: _draw(path, found, problem.system),
        result | environment(device, ops.backend(device)) | {"inputs": problem.notes},
    )
    print(say(result), f"-> {run.folder}", sep="\n")
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


def _draw(path: Path, found: Calibration, nominal: SDCassi) -> None:
    from cassi.viz.calibration import save_calibration

    models = [
        (entry.model[-1] if entry.model else "nominal", entry.error, entry.taken)
        for entry in found.stages
    ]
    save_calibration(path, models, found.standings(nominal))


def say(numbers: dict[str, Any]) -> str:
    """Say before and after in a table."""
    lines = [say_estimates(numbers)]
    if numbers["gain"] is None:
        lines.append("gain: unknown, brightness is the scene's; give white=FILE")
    else:
        lines.append(f"gain: {numbers['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{numbers['seconds']:.1f} s"])
