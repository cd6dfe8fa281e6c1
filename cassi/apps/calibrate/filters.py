"""A camera from frames of its mask through filters: mask, field and dispersion, without a scene."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.arguments import quoted
from cassi.apps.calibrate.results import camera_values, write_calibration
from cassi.apps.camera.system import nominal_offsets
from cassi.apps.command import Run, choose_device, prepare_process
from cassi.apps.inputs import file_path, load_snapshot, read_frame
from cassi.apps.results import environment
from cassi.apps.settings import Calibrate
from cassi.apps.snapshot import say as say_check
from cassi.calibration import Response, check_camera, find_white
from cassi.calibration.filters import FilteredCamera, centroid, find_filtered_camera
from cassi.camera.ends import find_grid
from cassi.pipeline.find import by_auto
from cassi.systems import SDCassi

_ENOUGH = 3
"""Filters that show a curve by themselves."""


def calibrate_by_filters(settings: Calibrate, run: Run) -> float:
    """Find the camera of several filtered frames and write it.

    Returns:
        The largest standard error of an offset, pixels.
    """
    start = time.perf_counter()
    device = choose_device(settings.device)
    prepare_process(settings)
    wavelengths, axis = _check(settings)
    filters = settings.filters
    loaded = [_read(settings, each.file) for each in filters]
    frames = [_turn(y, axis) for y, _, _ in loaded]
    good = [_turn(ok, axis) for _, ok, _ in loaded]
    nanometres = [each.wavelength for each in filters]
    known = () if len(filters) >= _ENOUGH else _ends(settings, wavelengths, axis)

    def find(nanometres: list[float]) -> tuple[FilteredCamera, SDCassi, Response | None]:
        found = find_filtered_camera(frames, good, nanometres, wavelengths, *known)
        system = _system(found, axis, frames[0].shape[-1], loaded[0][0])
        return found, system, _response(settings, system, found.rows)

    found, system, response = find(nanometres)
    if response is not None and any(each.fwhm for each in filters):
        light = response.values.tolist()
        nanometres = [
            centroid(each.wavelength, each.fwhm, wavelengths, light) if each.fwhm else at
            for each, at in zip(filters, nanometres, strict=True)
        ]
        found, system, response = find(nanometres)
    window = _window(settings, found, axis, frames[0].shape)
    gain = None if response is None else float(response.values.mean())
    values = camera_values(settings, system, gain, wavelengths)
    slopes = torch.gradient(found.offsets.double(), spacing=(torch.tensor(wavelengths),))[0]
    errors = found.errors.double() / slopes.abs().clamp_min(1e-9)
    values["wavelengths_error"] = [round(each, 3) for each in errors.tolist()]
    if window is not None:
        values["window"] = window
    if settings.white is not None:  # found through the camera that a snapshot is taken for
        values["response"] = {"white": str(file_path(settings.white).resolve())}
    seconds = time.perf_counter() - start
    white_of = None if response is None else response.values
    numbers = describe(found, wavelengths, gain, white_of) | {"seconds": seconds}
    numbers["inputs"] = [note for _, _, note in loaded]
    numbers |= environment(device, ops.backend(device))
    write_calibration(
        run.folder, system.mask, values, lambda path: _draw(path, found, wavelengths), numbers
    )
    print(*numbers["inputs"], say(numbers), f"-> {run.folder}", sep="\n")
    if settings.measurement is not None:
        _look(settings, run.folder)
    return max(numbers["standard_errors"])


def _check(settings: Calibrate) -> tuple[tuple[float, ...], int]:
    """Return wavelengths and axis of the camera."""
    wavelengths, axis = settings.given_wavelengths, settings.system.get("axis", -1)
    if wavelengths is None or len(wavelengths) < 2:
        raise ValueError(
            "monochromatic: expected wavelengths=[…] in nm, one per band, with it, got none"
        )
    if axis not in (-1, -2):
        raise ValueError(f"system.axis: expected -1 (columns) or -2 (rows), got {axis!r}")
    if settings.twin is not None or settings.truth is not None:
        raise ValueError("monochromatic: expected one file with a truth or a twin, got a list")
    name = str(settings.system.get("_target_")).rpartition(".")[2]
    if name != "SDCassi":
        raise ValueError(f"system: expected SDCassi, got {name}")
    return wavelengths, axis


def _ends(
    settings: Calibrate, wavelengths: tuple[float, ...], axis: int
) -> tuple[tuple[float, float], tuple[Tensor, Tensor] | None]:
    """Return the outermost bands' offsets, as the camera is given, and a frame of all light."""
    offsets = nominal_offsets(settings.system, len(wavelengths), wavelengths)
    files = settings.measurement
    shown = settings.white if files is None else files[0] if isinstance(files, list) else files
    if shown is None:
        return (offsets[0], offsets[-1]), None
    y, good, _ = _read(settings, shown)
    return (offsets[0], offsets[-1]), (_turn(y, axis), _turn(good, axis))


def _read(settings: Calibrate, file: str) -> tuple[Tensor, Tensor, str]:
    """Return a corrected frame `(H', W')`, the pixels of it that count, and a note."""
    y, good, note = read_frame(settings, file)
    if y.shape[:2] != (1, 1):
        raise ValueError(f"monochromatic: expected one frame in {file}, got {tuple(y.shape[:2])}")
    return y[0, 0], good[0, 0], note


def _response(settings: Calibrate, system: SDCassi, rows: tuple[int, int]) -> Response | None:
    """Return what a camera makes of white, where there is a frame of it."""
    if settings.white is None:
        return None
    y, ok, _ = _read(settings, settings.white)
    first, last = rows
    y, ok = (each.narrow(-3 - system.axis, first, last - first)[None, None] for each in (y, ok))
    system.all_light = settings.light != "lines"  # as a lamp's
    y, camera = torch.where(ok, y, 0), system.weighted(bad_pixels=~ok)
    return find_white(y, camera, 1.0, by_auto, find_grid(y, camera)).response


def _turn(image: Tensor, axis: int) -> Tensor:
    return image.mT if axis == -2 else image


def _system(found: FilteredCamera, axis: int, detector: int, like: Tensor) -> SDCassi:
    mask = _turn(found.mask, axis).contiguous().to(like)
    offsets = found.offsets.tolist()
    return SDCassi(mask, len(offsets), offsets=offsets, detector=detector, axis=axis)


def _window(
    settings: Calibrate, found: FilteredCamera, axis: int, shape: torch.Size
) -> list[int] | None:
    """Return the part of raw frames that the field covers; None for all that was kept before."""
    first, last = found.rows
    if (first, last) == (0, shape[0]):
        return None
    top, left = (0, 0) if settings.window is None else settings.window[:2]
    if axis == -1:
        return [top + first, left, last - first, shape[1]]
    return [top, left + first, shape[1], last - first]


def describe(
    found: FilteredCamera,
    wavelengths: tuple[float, ...],
    gain: float | None,
    spectrum: Tensor | None,
) -> dict[str, Any]:
    """Return what calibration.json holds."""
    return {
        "wavelengths": list(wavelengths),
        "offsets": found.offsets.tolist(),
        "standard_errors": found.errors.tolist(),
        "field": list(found.mask.shape),
        "places": [vars(each) for each in found.places],
        "curves": [vars(each) for each in found.curves],
        "gain": gain,
        "white": None if spectrum is None else (spectrum / spectrum.mean()).tolist(),
    }


def say(numbers: dict[str, Any]) -> str:
    """Say what was found in a table."""
    lines = [f"{'filter':>8}  {'px from the reference':>22}   standard error"]
    for place in numbers["places"]:
        lines.append(
            f"{place['wavelength']:5.4g} nm  {place['along']:22.3f}   {place['error']:.3f}"
            + (f", {place['across']:+.2f} across" if abs(place["across"]) > 0.1 else "")
        )
    curves = ", ".join(
        f"{each['name']} {each['weight']:.0%}"
        for each in numbers["curves"]
        if each["weight"] > 0.01
    )
    height, width = numbers["field"]
    offsets, errors = numbers["offsets"], numbers["standard_errors"]
    lines += [
        f"curve: {curves}",
        f"field: {height} by {width} pixels, across and along the dispersion",
        f"offsets: {offsets[0]:.2f} to {offsets[-1]:.2f} px, ± {max(errors):.3f} at most",
    ]
    if numbers["gain"] is not None:
        lines.append(f"gain: {numbers['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{numbers['seconds']:.1f} s"])


def _draw(path: Path, found: FilteredCamera, wavelengths: tuple[float, ...]) -> None:
    from cassi.viz.calibration import save_dispersion

    points = [(each.wavelength, found.first + each.along) for each in found.places]
    save_dispersion(path, points, wavelengths, found.offsets.tolist(), found.errors.tolist())


def _look(settings: Calibrate, folder: Path) -> None:
    """Ask the measurement whether it agrees with the camera that was written."""
    from cassi.apps.reconstructors import compose_settings

    file = settings.measurement
    if isinstance(file, list) and len(file) == 1:
        (file,) = file
    # The frame's corrections are taken from the camera's file where there is a frame.
    options = [f"camera={quoted(str(folder / 'camera.yaml'))}", "measurement=frame"]
    with_camera = compose_settings(options)
    snapshot = load_snapshot(replace(with_camera, measurement=file), torch.device("cpu"))
    check = check_camera(snapshot.y, snapshot.camera.system)
    warnings = [vars(each) for each in check.warnings]
    say_check({"warnings": warnings, "camera_check": {"note": check.note}})
