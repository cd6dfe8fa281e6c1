"""The job of cassi-calibrate: estimate the true camera from measurements and the nominal one."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.calibrate.filters import calibrate_by_filters
from cassi.apps.calibrate.results import make_camera_values, write_calibration
from cassi.apps.command import (
    Run,
    choose_device,
    make_progress_printer,
    prepare_process,
)
from cassi.apps.inputs import load_snapshot
from cassi.apps.results import environment, format_estimates, summarize_calibration
from cassi.apps.settings import Calibrate
from cassi.apps.snapshot import make_calibration
from cassi.calibration import Calibration, Frame
from cassi.data.simulation import scene_generator
from cassi.data.synthetic.twin import Twin
from cassi.pipeline.snapshot import Snapshot
from cassi.systems import SDCassi, System
from cassi.systems.mask_kind import is_design


def calibrate_camera(settings: Calibrate, run: Run) -> float:
    """Calibrate a camera and write its file.

    Returns:
        The held-out error with the calibrated camera, for sweeps.
    """
    if isinstance(settings.monochromatic, list):
        return calibrate_by_filters(settings, run)
    device = choose_device(settings.device)
    prepare_process(settings)
    snapshot, known_light = load_frames(settings, device)
    print(*snapshot.notes, sep="\n")
    nominal = _require_sd_cassi(snapshot.camera.system)
    callback = make_progress_printer("calibrate")
    calibrated_snapshot = make_calibration(
        settings, callback, light_frames=known_light, radius=settings.radius
    )(snapshot)
    outcome = calibrated_snapshot.camera.calibration
    assert outcome is not None
    calibration = outcome.calibration
    gain = None if settings.white is None else calibration.levels[0]
    # A mask of two values becomes grey when it is moved by a part of a pixel. Without this setting
    # later commands would treat it as a measured mask.
    if settings.measured_mask == "auto" and is_design(nominal.mask):
        settings = replace(settings, measured_mask=False)
    if snapshot.camera.system.is_broadband and not calibrated_snapshot.camera.system.is_broadband:
        settings = replace(settings, light="lines")  # the calibration found narrow-band light
    result = {**summarize_calibration(outcome), "gain": gain}
    estimate_table = format_estimates(result)
    write_calibration(
        run.folder,
        calibration.system.mask.clamp(0, 1),  # an estimated contrast may lead to values above 1
        make_camera_values(settings, calibration.system, gain, snapshot.camera.wavelengths),
        lambda path: _save_figure(path, calibration),
        result | environment(device, ops.backend(device)) | {"inputs": list(snapshot.notes)},
        estimate_table,
    )
    if gain is None:
        gain_text = "unknown, because the brightness of the scene is; give white=FILE"
    else:
        gain_text = f"{gain:.5g}, divided out by camera.yaml's scale"
    print(
        estimate_table,
        f"gain: {gain_text}",
        f"{result['seconds']:.1f} s",
        f"-> {run.folder}",
        sep="\n",
    )
    return calibration.after


def load_frames(settings: Calibrate, device: torch.device) -> tuple[Snapshot, list[Frame]]:
    """Read the measurements and the frames of known light.

    Returns:
        All measurements as one snapshot `(B, K, H', W')` with the nominal camera, and the frames
        of white and of monochromatic light.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file does not fit, or settings contradict each other.
    """
    files = settings.measurement

    def read_file(file: str | list[str] | None) -> Snapshot:
        return load_snapshot(replace(settings, measurement=file), device)

    file_groups = files if isinstance(files, list) else [files]
    # If there is a mask for each file, the files are the shots of a single snapshot.
    if isinstance(settings.mask, list) and all(isinstance(file, str) for file in file_groups):
        file_groups = [files]
    if not file_groups:
        raise ValueError("measurement: expected at least one file, got an empty list")
    first_snapshot, *other_snapshots = (read_file(file) for file in file_groups)
    system = first_snapshot.camera.system
    notes = [*first_snapshot.notes, *(snapshot.notes[0] for snapshot in other_snapshots)]
    nominal, snapshots = _require_sd_cassi(system), (first_snapshot, *other_snapshots)
    y = torch.cat([snapshot.y for snapshot in snapshots])
    if settings.twin is not None:
        if files is not None or first_snapshot.truth is None or settings.noise is not None:
            raise ValueError(
                "twin: expected a truth alone, without measurement and noise; give truth=FILE"
            )
        random = scene_generator(settings.seed, "calibration")
        y = settings.twin.measure(first_snapshot.truth.to(device), nominal, random)
        notes.append(
            f"measurement: simulated by a camera with defects: {_describe_defects(settings.twin)}"
        )
    elif other_snapshots and any(snapshot.good_pixels is not None for snapshot in snapshots):
        # The first snapshot's camera has only the bad pixels of that snapshot.
        all_good = torch.ones_like(y[:1], dtype=torch.bool)
        good_frames = [all_good if s.good_pixels is None else s.good_pixels for s in snapshots]
        system = system.unweighted.weighted(bad_pixels=~torch.cat(good_frames))
    known_light = []

    def read_known_light(role: str, file: str) -> tuple[Tensor, Tensor | None]:
        snapshot = read_file(file)
        notes.append(f"{role}: {snapshot.notes[0]}")
        return snapshot.y, snapshot.good_pixels

    if settings.white is not None:
        frame, good_pixels = read_known_light("white", settings.white)
        known_light.append(Frame.snapshot(frame, system.cube_shape[0], good_pixels))
    for filter_settings in settings.filters:
        band_position = _find_band_position(
            filter_settings.wavelength, first_snapshot.camera.wavelengths
        )
        frame, good_pixels = read_known_light("monochromatic", filter_settings.file)
        known_light.append(Frame.monochromatic(frame, band_position, good_pixels))
    camera = replace(first_snapshot.camera, system=system)
    return replace(first_snapshot, camera=camera, y=y, notes=tuple(notes)), known_light


def _require_sd_cassi(system: System) -> SDCassi:
    """Return the camera without bad pixels; ValueError if it is no SDCassi."""
    camera = system.base_camera
    if type(camera) is not SDCassi:
        raise ValueError(f"system: expected SDCassi, got {type(camera).__name__}")
    return camera


def _describe_defects(twin: Twin) -> str:
    defaults = vars(Twin())
    return ", ".join(
        f"{name} {value}" for name, value in vars(twin).items() if value != defaults[name]
    )


def _find_band_position(wavelength: float | None, wavelengths: tuple[float, ...] | None) -> float:
    """Return the position of a wavelength among the bands: 2.5 is halfway between bands 2 and 3."""
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
    upper_index = next(k for k in range(1, len(wavelengths)) if wavelengths[k] >= wavelength)
    lower, upper = wavelengths[upper_index - 1], wavelengths[upper_index]
    return upper_index - 1 + (wavelength - lower) / (upper - lower)


def _save_figure(path: Path, calibration: Calibration) -> None:
    from cassi.viz.calibration import save_calibration

    deviations = [
        (
            estimate.key,
            (estimate.value - estimate.nominal) * estimate.pixels,
            estimate.standard_error * estimate.pixels,
        )
        for estimate in calibration.estimates
    ]
    positions = calibration.place.offsets.tolist(), calibration.place.light.tolist()
    save_calibration(
        path,
        (calibration.before, calibration.after),
        deviations,
        positions,
        calibration.system.offsets,
    )
