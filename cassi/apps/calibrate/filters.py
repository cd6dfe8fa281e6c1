"""Calibration with filters: estimate mask, field and dispersion from frames of a uniform scene.

Each frame is taken through a filter that passes one wavelength. No nominal mask is needed. The
field is the part of a frame that this light reaches.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.apps.arguments import quoted
from cassi.apps.calibrate.results import make_camera_values, write_calibration
from cassi.apps.camera.system import nominal_offsets
from cassi.apps.command import Run, choose_device, prepare_process
from cassi.apps.inputs import file_path, load_snapshot, read_frame
from cassi.apps.results import environment
from cassi.apps.settings import Calibrate
from cassi.apps.snapshot import print_findings as print_check
from cassi.calibration import Response, check_camera, find_white
from cassi.calibration.filters import FilteredCamera, centroid, find_filtered_camera
from cassi.camera.grid_ends import find_grid
from cassi.pipeline.find import reconstruct_by_auto
from cassi.systems import SDCassi

# Fewer filters do not determine the dispersion curve. Then the nominal offsets of the first and the
# last band, and a broadband frame, constrain it.
_MIN_FILTERS_OF_CURVE = 3


def calibrate_by_filters(settings: Calibrate, run: Run) -> float:
    """Estimate the camera from several filtered frames and write its file.

    Returns:
        The largest standard error of an offset, pixels.
    """
    start = time.perf_counter()
    device = choose_device(settings.device)
    prepare_process(settings)
    wavelengths, axis = _check_settings(settings)
    raw_frames = [_read_single_frame(settings, item.file) for item in settings.filters]
    filtered_camera, system, response = _estimate_camera(settings, wavelengths, axis, raw_frames)
    frame_shape = _move_dispersion_last(raw_frames[0][0], axis).shape
    window = _find_field_window(settings, filtered_camera, axis, frame_shape)
    gain = None if response is None else float(response.values.mean())
    camera_file = make_camera_values(settings, system, gain, wavelengths)
    spacing = (torch.tensor(wavelengths),)
    (slopes,) = torch.gradient(filtered_camera.offsets.double(), spacing=spacing)
    # The slope dd/dλ turns the error of an offset, pixels, into an error of the wavelength, nm.
    errors = filtered_camera.errors.double() / slopes.abs().clamp_min(1e-9)
    camera_file["wavelengths_error"] = [round(error, 3) for error in errors.tolist()]
    if window is not None:
        camera_file["window"] = window
    # A later command estimates the response again from this frame, with the camera that it uses.
    if settings.white is not None:
        camera_file["response"] = {"white": str(file_path(settings.white).resolve())}
    seconds = time.perf_counter() - start
    white_spectrum = None if response is None else response.values
    summary = describe(filtered_camera, wavelengths, gain, white_spectrum) | {"seconds": seconds}
    summary["inputs"] = [note for _, _, note in raw_frames]
    summary |= environment(device, ops.backend(device))
    write_calibration(
        run.folder,
        system.mask,
        camera_file,
        lambda path: _save_figure(path, filtered_camera, wavelengths),
        summary,
    )
    print(*summary["inputs"], format_table(summary), f"-> {run.folder}", sep="\n")
    if settings.measurement is not None:
        _check_measurement(settings, run.folder)
    return max(summary["standard_errors"])


def _estimate_camera(
    settings: Calibrate,
    wavelengths: tuple[float, ...],
    axis: int,
    raw_frames: list[tuple[Tensor, Tensor, str]],
) -> tuple[FilteredCamera, SDCassi, Response | None]:
    """Estimate mask, field and dispersion; return them with the system and its response to white.

    Args:
        settings: settings of the calibration.
        wavelengths: wavelengths of the bands, nm.
        axis: axis of the dispersion.
        raw_frames: frame `(H', W')`, good pixels and note for each filter.
    """
    frames = [_move_dispersion_last(y, axis) for y, _, _ in raw_frames]
    good_pixels = [_move_dispersion_last(is_good, axis) for _, is_good, _ in raw_frames]
    end_constraints: tuple[Any, ...] = ()
    if len(settings.filters) < _MIN_FILTERS_OF_CURVE:
        end_constraints = _find_nominal_ends(settings, wavelengths, axis)

    def estimate(
        filter_wavelengths: list[float],
    ) -> tuple[FilteredCamera, SDCassi, Response | None]:
        filtered_camera = find_filtered_camera(
            frames, good_pixels, filter_wavelengths, wavelengths, *end_constraints
        )
        system = _make_system(filtered_camera, axis, frames[0].shape[-1], raw_frames[0][0])
        return filtered_camera, system, _measure_response(settings, system, filtered_camera.rows)

    filter_wavelengths = [filter_settings.wavelength for filter_settings in settings.filters]
    filtered_camera, system, response = estimate(filter_wavelengths)
    # The light that passes a wide filter has a mean wavelength that depends on lamp and camera.
    # Their spectrum is known only after the first estimate, so the camera is estimated twice.
    if response is not None and any(filter_settings.fwhm for filter_settings in settings.filters):
        spectrum = response.values.tolist()
        filter_wavelengths = [
            centroid(filter_settings.wavelength, filter_settings.fwhm, wavelengths, spectrum)
            if filter_settings.fwhm
            else filter_settings.wavelength
            for filter_settings in settings.filters
        ]
        filtered_camera, system, response = estimate(filter_wavelengths)
    return filtered_camera, system, response


def _check_settings(settings: Calibrate) -> tuple[tuple[float, ...], int]:
    """Return wavelengths and axis of the camera; ValueError if a setting does not fit."""
    wavelengths, axis = settings.given_wavelengths, settings.system.get("axis", -1)
    if wavelengths is None or len(wavelengths) < 2:
        raise ValueError(
            "monochromatic: expected wavelengths=[…] in nm, one per band, with it, got none"
        )
    if axis not in (-1, -2):
        raise ValueError(f"system.axis: expected -1 (columns) or -2 (rows), got {axis!r}")
    if settings.twin is not None or settings.truth is not None:
        raise ValueError("monochromatic: expected one file with a truth or a twin, got a list")
    class_name = str(settings.system.get("_target_")).rpartition(".")[2]
    if class_name != "SDCassi":
        raise ValueError(f"system: expected SDCassi, got {class_name}")
    return wavelengths, axis


def _find_nominal_ends(
    settings: Calibrate, wavelengths: tuple[float, ...], axis: int
) -> tuple[tuple[float, float], tuple[Tensor, Tensor] | None]:
    """Return the nominal offsets of the first and last band, and a broadband frame if there is one.

    The frame comes with its good pixels. Both are turned so that the dispersion runs along the last
    axis.
    """
    offsets = nominal_offsets(settings.system, len(wavelengths), wavelengths)
    measurement = settings.measurement
    broadband_file = measurement[0] if isinstance(measurement, list) else measurement
    if measurement is None:
        broadband_file = settings.white
    if broadband_file is None:
        return (offsets[0], offsets[-1]), None
    y, good_pixels, _ = _read_single_frame(settings, broadband_file)
    return (offsets[0], offsets[-1]), (
        _move_dispersion_last(y, axis),
        _move_dispersion_last(good_pixels, axis),
    )


def _read_single_frame(settings: Calibrate, file: str) -> tuple[Tensor, Tensor, str]:
    """Return a corrected frame `(H', W')`, its good pixels, and a note."""
    y, good_pixels, note = read_frame(settings, file)
    if y.shape[:2] != (1, 1):
        raise ValueError(f"monochromatic: expected one frame in {file}, got {tuple(y.shape[:2])}")
    return y[0, 0], good_pixels[0, 0], note


def _measure_response(
    settings: Calibrate, system: SDCassi, rows: tuple[int, int]
) -> Response | None:
    """Return the response of the camera to white light; None without a white frame."""
    if settings.white is None:
        return None
    y, good_pixels, _ = _read_single_frame(settings, settings.white)
    first_row, last_row = rows
    n_rows = last_row - first_row
    y, good_pixels = (
        image.narrow(-3 - system.axis, first_row, n_rows)[None, None] for image in (y, good_pixels)
    )
    system.is_broadband = settings.light != "lines"  # white light comes from a broadband lamp
    y, camera = torch.where(good_pixels, y, 0), system.weighted(bad_pixels=~good_pixels)
    return find_white(y, camera, 1.0, reconstruct_by_auto, find_grid(y, camera)).response


def _move_dispersion_last(image: Tensor, axis: int) -> Tensor:
    return image.mT if axis == -2 else image


def _make_system(
    filtered_camera: FilteredCamera, axis: int, detector: int, reference: Tensor
) -> SDCassi:
    mask = _move_dispersion_last(filtered_camera.mask, axis).contiguous().to(reference)
    offsets = filtered_camera.offsets.tolist()
    return SDCassi(mask, len(offsets), offsets=offsets, detector=detector, axis=axis)


def _find_field_window(
    settings: Calibrate, filtered_camera: FilteredCamera, axis: int, shape: torch.Size
) -> list[int] | None:
    """Return the window [top, left, height, width] of raw frames that the field covers.

    None means that the field covers the frame, and the setting `window` stays as it is.
    """
    first_row, last_row = filtered_camera.rows
    if (first_row, last_row) == (0, shape[0]):
        return None
    # The frame was already cropped to the window of the settings. The new window lies in that one.
    top, left = (0, 0) if settings.window is None else settings.window[:2]
    if axis == -1:
        return [top + first_row, left, last_row - first_row, shape[1]]
    return [top, left + first_row, shape[1], last_row - first_row]


def describe(
    filtered_camera: FilteredCamera,
    wavelengths: tuple[float, ...],
    gain: float | None,
    spectrum: Tensor | None,
) -> dict[str, Any]:
    """Return the content of calibration.json.

    Args:
        filtered_camera: the estimated camera.
        wavelengths: wavelengths of the bands, nm.
        gain: mean response to white light; None without a white frame.
        spectrum: response of each band to white light, `(C,)`; None without a white frame.
    """
    return {
        "wavelengths": list(wavelengths),
        "offsets": filtered_camera.offsets.tolist(),
        "standard_errors": filtered_camera.errors.tolist(),
        "field": list(filtered_camera.mask.shape),
        "places": [
            {
                "wavelength": place.wavelength,
                "along": place.shift_along,
                "across": place.shift_across,
                "error": place.error,
                "loose": place.has_common_shift,
            }
            for place in filtered_camera.places
        ],
        "curves": [vars(item) for item in filtered_camera.curves],
        "gain": gain,
        "white": None if spectrum is None else (spectrum / spectrum.mean()).tolist(),
    }


def format_table(summary: dict[str, Any]) -> str:
    """Return the places of the filters, the curve and the offsets as a table of text."""
    # Small shifts across the dispersion and unlikely curves are not printed, to keep lines short.
    lines = [f"{'filter':>8}  {'px from the reference':>22}   standard error"]
    for place in summary["places"]:
        lines.append(
            f"{place['wavelength']:5.4g} nm  {place['along']:22.3f}   {place['error']:.3f}"
            + (f", {place['across']:+.2f} across" if abs(place["across"]) > 0.1 else "")
        )
    curves = ", ".join(
        f"{curve['name']} {curve['weight']:.0%}"
        for curve in summary["curves"]
        if curve["weight"] > 0.01
    )
    height, width = summary["field"]
    offsets, errors = summary["offsets"], summary["standard_errors"]
    lines += [
        f"curve: {curves}",
        f"field: {height} by {width} pixels, across and along the dispersion",
        f"offsets: {offsets[0]:.2f} to {offsets[-1]:.2f} px, ± {max(errors):.3f} at most",
    ]
    if summary["gain"] is not None:
        lines.append(f"gain: {summary['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{summary['seconds']:.1f} s"])


def _save_figure(
    path: Path, filtered_camera: FilteredCamera, wavelengths: tuple[float, ...]
) -> None:
    from cassi.viz.calibration import save_dispersion

    points = [
        (place.wavelength, filtered_camera.first + place.shift_along)
        for place in filtered_camera.places
    ]
    save_dispersion(
        path, points, wavelengths, filtered_camera.offsets.tolist(), filtered_camera.errors.tolist()
    )


def _check_measurement(settings: Calibrate, folder: Path) -> None:
    """Check the measurement against the camera that was written, and print the findings."""
    from cassi.apps.reconstructors import compose_settings

    file = settings.measurement
    if isinstance(file, list) and len(file) == 1:
        (file,) = file
    # A camera file's settings for raw frames take effect only if a measurement is set. The name
    # `frame` is a placeholder for the measurement itself, which is set below.
    camera_options = [f"camera={quoted(str(folder / 'camera.yaml'))}", "measurement=frame"]
    with_camera = compose_settings(camera_options)
    snapshot = load_snapshot(replace(with_camera, measurement=file), torch.device("cpu"))
    check = check_camera(snapshot.y, snapshot.camera.system)
    warnings = [vars(warning) for warning in check.warnings]
    print_check({"warnings": warnings, "camera_check": {"note": check.note}})
