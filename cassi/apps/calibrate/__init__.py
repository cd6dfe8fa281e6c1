"""cassi-calibrate: measurements and the nominal camera in, the camera as it is out."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.calibrate.results import camera_values, write_calibration
from cassi.apps.command import Run, announce, choose_device, prepare_process, run_command
from cassi.apps.inputs import load_snapshot
from cassi.apps.results import environment, say_estimates, summarize_calibration
from cassi.apps.settings import Calibrate
from cassi.apps.snapshot import calibrating
from cassi.calibration import Calibration, Frame
from cassi.data.simulation import scene_generator
from cassi.data.synthetic.twin import Twin
from cassi.pipeline.snapshot import Snapshot
from cassi.systems import SDCassi, System
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
    snapshot, known = load_frames(settings, device)
    print(*snapshot.notes, sep="\n")
    nominal = _single(snapshot.camera.system)
    watch = announce("calibrate")
    taken = calibrating(settings, watch, known=known, radius=settings.radius)(snapshot)
    made = taken.camera.calibration
    assert made is not None
    found = made.found
    gain = None if settings.white is None else found.levels[0]
    if settings.photographed == "auto" and is_design(nominal.mask):
        settings = replace(settings, photographed=False)  # its values are grey once it is moved
    if snapshot.camera.system.all_light and not taken.camera.system.all_light:
        settings = replace(settings, light="lines")  # as the frame shows
    result = {**summarize_calibration(made), "gain": gain}
    said = say_estimates(result)
    write_calibration(
        run.folder,
        found.system.mask.clamp(0, 1),  # more contrast may pass 1
        camera_values(settings, found.system, gain, snapshot.camera.wavelengths),
        lambda path: _draw(path, found),
        result | environment(device, ops.backend(device)) | {"inputs": list(snapshot.notes)},
        said,
    )
    level = "unknown, brightness is the scene's; give white=FILE"
    level = level if gain is None else f"{gain:.5g}, divided out by camera.yaml's scale"
    print(said, f"gain: {level}", f"{result['seconds']:.1f} s", f"-> {run.folder}", sep="\n")
    return found.after


def load_frames(settings: Calibrate, device: torch.device) -> tuple[Snapshot, list[Frame]]:
    """Return the snapshots with the nominal camera; and the frames of known light."""
    files = settings.measurement

    def read_file(file: str | list[str] | None) -> Snapshot:
        return load_snapshot(replace(settings, measurement=file), device)

    several = files if isinstance(files, list) else [files]
    if isinstance(settings.mask, list) and all(isinstance(file, str) for file in several):
        several = [files]  # a mask each: the shots of one snapshot
    if not several:
        raise ValueError("measurement: expected at least one file, got an empty list")
    first, *others = (read_file(file) for file in several)
    system, notes = first.camera.system, [*first.notes, *(each.notes[0] for each in others)]
    nominal, every = _single(system), (first, *others)
    y = torch.cat([each.y for each in every])
    if settings.twin is not None:
        if files is not None or first.truth is None or settings.noise is not None:
            raise ValueError(
                "twin: expected a truth alone, without measurement and noise; give truth=FILE"
            )
        random = scene_generator(settings.seed, "calibration")
        y = settings.twin.measure(first.truth.to(device), nominal, random)
        notes.append(f"measurement: simulated by a camera that is off: {_defects(settings.twin)}")
    elif others:
        goods = [each.good for each in every]
        if any(good is not None for good in goods):
            whole = torch.ones_like(y[:1], dtype=torch.bool)
            bad = ~torch.cat([whole if each is None else each for each in goods])
            system = system.unweighted.weighted(bad_pixels=bad)
    known = []

    def read(role: str, file: str) -> tuple[Tensor, Tensor | None]:
        found = read_file(file)
        notes.append(f"{role}: {found.notes[0]}")
        return found.y, found.good

    if settings.white is not None:
        light, good = read("white", settings.white)
        known.append(Frame.snapshot(light, system.cube_shape[0], good))
    for single in settings.filters:
        place = _place(single.wavelength, first.camera.wavelengths)
        light, good = read("monochromatic", single.file)
        known.append(Frame.monochromatic(light, place, good))
    camera = replace(first.camera, system=system)
    return replace(first, camera=camera, y=y, notes=tuple(notes)), known


def _single(system: System) -> SDCassi:
    """Return the camera with all its pixels; ValueError for one that no calibration can write."""
    camera = system.plain
    if type(camera) is not SDCassi:
        raise ValueError(f"system: expected SDCassi, got {type(camera).__name__}")
    return camera


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


def _draw(path: Path, found: Calibration) -> None:
    from cassi.viz.calibration import save_calibration

    off = [
        (each.key, (each.value - each.nominal) * each.pixels, each.standard_error * each.pixels)
        for each in found.estimates
    ]
    light = found.place.offsets.tolist(), found.place.light.tolist()
    save_calibration(path, (found.before, found.after), off, light, found.system.offsets)
