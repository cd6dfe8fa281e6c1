"""Write the results of a reconstruction: pictures, report, tables and numbers."""

import csv
import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import metrics, ops
from cassi.apps.camera.guide import describe_guide
from cassi.apps.memory import peak_memory
from cassi.apps.printing import color_label
from cassi.apps.settings import Output
from cassi.calibration.findings import CameraCheck
from cassi.calibration.response import describe
from cassi.camera.band_offsets import BandOffsets
from cassi.camera.displacement import LIGHT_PARAMETERS, PARAMETERS, PRINTED_PARAMETERS
from cassi.data.formats.cells import Json, plain_cell, strict
from cassi.data.wavelengths import interpolate_spectra
from cassi.metrics.scores import evaluate_all
from cassi.pipeline.snapshot import CalibrationRun, Result
from cassi.precision import resolve
from cassi.solvers.base import GridSolution
from cassi.systems import System
from cassi.uncertainty import NORMAL, Uncertainty, region, score
from cassi.uncertainty.answers import Answer

# If the means of a cube and its truth differ by more than this factor, the two probably have
# different units, such as counts and reflectances. The scores then mean nothing.
_MAX_UNIT_RATIO = 100.0


@dataclass(frozen=True)
class CubeErrors:
    """The error bars that pictures show, all `(C, H, W)`; see `cassi.uncertainty`.

    Attributes:
        x: the cube.
        std: standard deviation of every value.
        pattern: errors in units of σ, for means over regions; see `cassi.uncertainty.region`.
    """

    x: Tensor
    std: Tensor
    pattern: Tensor

    def half_width_at(self, row: float, column: float) -> Tensor:
        """Return 1.645 σ, `(C,)`, of the mean of the 5×5 pixels around a point."""
        height, width = self.x.shape[-2:]
        # 1.645 σ on either side is the interval that has the true value in 90 % of the cases.
        window = (
            slice(max(0, round(row) - 2), min(height, round(row) + 3)),
            slice(max(0, round(column) - 2), min(width, round(column) + 3)),
        )
        batch = CubeErrors(*(value[None] for value in (self.x, self.std, self.pattern)))
        return NORMAL * region(batch, window).std[0]


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal keys as CSV."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows({key: plain_cell(value) for key, value in row.items()} for row in rows)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write strict JSON; an infinite or undefined number becomes null."""
    path.write_text(json.dumps(strict(value), indent=2, allow_nan=False) + "\n")


def write_numbers(path: Path, numbers: Mapping[str, object]) -> None:
    """Write numbers as JSON, with the names of all files in the same folder."""
    files = sorted(file.name for file in path.parent.iterdir())
    write_json(path, {**numbers, "files": files})


def select_bands(
    output: Output, cube: Tensor, wavelengths: Sequence[float] | None, std: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Sequence[float] | None]:
    """Interpolate a cube `(C, H, W)` and its σ at the wavelengths of the output.

    Returns:
        The cube, its σ and the wavelengths. If `output.wavelengths` is not set, they are unchanged.

    Raises:
        ValueError: the cube has no wavelengths, or a wavelength of the output is outside its range.
    """
    if output.wavelengths is None:
        return cube, std, wavelengths
    if wavelengths is None:
        raise ValueError(
            "output.wavelengths: expected wavelengths=[…] in nm, one per band, with it"
        )
    new_wavelengths = tuple(map(float, output.wavelengths))
    # The message of `interpolate_spectra` cannot name the setting, so the name is put before it.
    try:
        return *interpolate_spectra(cube, wavelengths, new_wavelengths, std), new_wavelengths
    except ValueError as error:
        raise ValueError(f"output.wavelengths: {error}") from None


def save_pictures(
    folder: Path,
    output: Output,
    name: str,
    cube: Tensor,
    wavelengths: Sequence[float] | None,
    truth: Tensor | None,
    numbers: Json,
    bars: CubeErrors | None = None,
    dispersion_cube: GridSolution | None = None,
    answers: Mapping[str, Answer] | None = None,
) -> None:
    """Write pictures and spectra of a cube `(C, H, W)`, and report.html if the settings want it.

    Args:
        folder: folder of the files.
        output: settings `output`.
        name: name of the scene.
        cube: the cube, in the unit of the output.
        wavelengths: wavelengths of the bands, nm, if known.
        truth: the true cube `(C, H, W)`, if known.
        numbers: numbers of metrics.json.
        bars: error bars, which spectra, report and uncertainty.png show.
        dispersion_cube: the cube along the dispersion, whose spectra are drawn as dots.
        answers: answers about the scene, which the report shows.
    """
    from cassi import viz

    if not output.pictures:
        return
    unit, illuminant = numbers.get("unit"), output.illuminant
    # A reflectance has a colour only under an illuminant. A radiance already contains the light.
    illuminants = {"reflectance": illuminant or "D65", "radiance": None}
    illuminant = illuminants.get(str(unit), illuminant)
    viz.save_rgb(folder / "rgb.png", cube, wavelengths, truth, illuminant)
    errors = errors_of_wavelengths(numbers, len(cube))
    viz.save_bands(folder / "bands.png", cube, wavelengths, truth=truth, unit=unit, errors=errors)
    bar_function = None if bars is None else bars.half_width_at
    points = output.points
    if points is None:
        points = viz.choose_points(cube if truth is None else truth, min(4, cube[0].numel()))
    grid_spectra = None
    # The cube on the grid is in the unit of the camera. Spectra in another unit get no dots.
    if dispersion_cube is not None and wavelengths is not None and unit is None:
        grid_spectra = dispersion_cube.x[0], dispersion_cube.grid.wavelengths(wavelengths)
    spectra = (cube, wavelengths, points, truth, illuminant, bar_function, unit, grid_spectra)
    for file in ("spectra.png", "spectra.csv"):
        viz.save_spectra(folder / file, *spectra)
    if bars is not None:
        save_map(folder, bars.std, cube, wavelengths, unit, errors)
    if output.report:
        write_report(folder, name, cube, wavelengths, truth, numbers, bars, illuminant, answers)


def write_report(
    folder: Path,
    name: str,
    cube: Tensor,
    wavelengths: Sequence[float] | None,
    truth: Tensor | None,
    numbers: Json,
    bars: CubeErrors | None,
    illuminant: str | None,
    answers: Mapping[str, Answer] | None = None,
) -> None:
    """Write report.html; the arguments are as in `save_pictures`."""
    from cassi.viz.report import encode_answers, encode_scene, make_report
    from cassi.viz.sheet import write_bytes

    table_numbers = reported_numbers(numbers)
    half_widths = None if bars is None else {"reconstruction": NORMAL * bars.std}
    scene = encode_scene(
        name, {"reconstruction": cube}, truth, {"reconstruction": table_numbers}, half_widths
    )
    page = make_report(
        [scene],
        wavelengths,
        title=name,
        illuminant=illuminant,
        warnings=format_warnings(numbers),
        note=format_camera_check(numbers),
        unit=numbers.get("unit"),
        errors=errors_of_wavelengths(numbers, len(cube)),
        answers=encode_answers(answers) if answers else None,
    )
    write_bytes(folder / "report.html", page)


def reported_numbers(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of metrics.json that the table of a report shows."""
    table_numbers = dict(numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {}))
    table_numbers |= {key: numbers.get(key) for key in ("seconds", "relative_residual")}
    if "heldout" in numbers:
        table_numbers["heldout_error"] = numbers["heldout"]["error"]
    return table_numbers


def errors_of_wavelengths(numbers: Mapping[str, Any], bands: int) -> tuple[float, ...] | None:
    """Return the standard errors of the wavelengths in metrics.json, nm.

    Returns None if there are none, or if they are for another number of bands.
    """
    errors = numbers.get("wavelengths_error") or ()
    return tuple(map(float, errors)) if len(errors) == bands else None


def format_warnings(numbers: Mapping[str, Any]) -> list[str]:
    """Return the warnings of metrics.json, a line each."""
    return [
        f"{warning['about']}: {warning['message']}" for warning in numbers.get("warnings") or ()
    ]


def format_camera_check(numbers: Mapping[str, Any]) -> str:
    """Return the camera check of metrics.json in one line; an empty text if there is none."""
    if "camera_check" not in numbers:
        return ""
    # A warning about error bars does not question the camera.
    has_doubts = any(warning["about"] != "uncertainty" for warning in numbers.get("warnings") or ())
    note = numbers["camera_check"].get("note", "")
    if has_doubts:
        return f"camera check: {note}" if note else ""
    return f"camera check: nothing found against the camera. {note}".rstrip()


def save_map(
    folder: Path,
    std: Tensor,
    cube: Tensor,
    wavelengths: Sequence[float] | None,
    unit: str | None = None,
    errors: Sequence[float] | None = None,
) -> None:
    """Draw uncertainty.png, the standard deviations `(C, H, W)` of a cube band by band."""
    from cassi import viz

    meaning = f"one σ of every value: the truth lies within ±{NORMAL:.3f} σ in 90 % of them"
    path = folder / "uncertainty.png"
    viz.save_uncertainty(path, std, cube, wavelengths, meaning, unit, errors)


def summarize(result: Result) -> Json:
    """Return the numbers of metrics.json."""
    snapshot, device = result.snapshot, result.snapshot.y.device
    camera, uncertainty = snapshot.camera, result.uncertainty
    numbers = _describe_reconstruction(result) | environment(device, ops.backend(device))
    numbers |= {"preprocessing": snapshot.corrections, "inputs": list(snapshot.notes)}
    if result.response is not None:
        numbers["response"] = describe(result.response)
    numbers |= describe_findings(result.findings)
    if camera.calibration is not None:
        numbers["calibration"] = summarize_calibration(camera.calibration)
    if camera.alignment is not None:
        numbers["alignment"] = camera.alignment.numbers()
    if camera.guide is not None:
        numbers["guide"] = describe_guide(camera)
    if result.solution.along is not None:
        grid = result.solution.along.grid
        numbers["dispersion"] = {"offsets": grid.offsets, "named": grid.band_offsets}
    if camera.wavelengths_error is not None:
        numbers["wavelengths_error"] = camera.wavelengths_error
    if result.batch > 1:
        numbers["batch"] = result.batch
    if result.heldout is not None:
        numbers["heldout"] = asdict(result.heldout)
    if uncertainty is not None and result.errors is not None:
        numbers["uncertainty"] = _describe_uncertainty(uncertainty, result.errors.std)
        if snapshot.truth is not None:
            values = (result.solution.x[0].cpu(), uncertainty.std[0].cpu(), snapshot.truth[0].cpu())
            numbers["uncertainty"]["scores"] = score(*values)
        numbers["uncertainty"]["seconds"] = uncertainty.seconds
    if result.scene is not None and camera.unit is not None:
        numbers["unit"] = camera.unit.name
    return numbers


def describe_findings(check: CameraCheck) -> Json:
    """Return the findings of a camera check as they are in metrics.json."""
    warnings = [vars(warning) for warning in check.warnings]
    return {"warnings": warnings, "camera_check": {"note": check.note, **check.numbers}}


def _describe_uncertainty(uncertainty: Uncertainty, std: Tensor) -> Json:
    sigma = std.double()
    return {
        "mean": float(sigma.mean()),
        "rms": float(sigma.square().mean().sqrt()),
        "sources": uncertainty.sources,
        "shift": list(uncertainty.shift),
        "heldout_error": uncertainty.heldout,
    }


def _describe_reconstruction(result: Result) -> Json:
    """Return the numbers of the reconstruction alone, without camera and snapshot."""
    y, system = result.snapshot.y, result.snapshot.camera.system
    solution, truth = result.solution, result.snapshot.truth
    # The misfit is ‖y − Ax‖ / ‖y‖. The lower bound gives a frame of zeros 0 rather than 0/0.
    norm = y.double().norm().clamp_min(torch.finfo(torch.float64).tiny)
    residual = (y - solution.measured(system)).double().norm() / norm
    numbers: Json = {
        "seconds": solution.history[-1].seconds,
        "iterations": len(solution.history),
        "stopped_by": solution.reason,
        "relative_residual": residual.item(),
        "cube_shape": list(system.cube_shape),
        "measurement_shape": list(system.measurement_shape),
        "peak_memory_bytes": peak_memory(y.device),
    }
    solve = describe_solve(system)
    if solve is not None:
        numbers["conjugate_gradients"] = solve
    if truth is not None:
        cube, level = solution.x[0].cpu(), result.snapshot.level
        numbers["metrics"] = evaluate_all(cube / level, truth[0] / level)
        warn_of_units(cube.mean().item(), truth.mean().item())
    return numbers


def warn_of_units(cube: float, truth: float) -> None:
    """Print a warning if the means of cube and truth suggest that their units differ."""
    if cube > 0 and truth > 0 and not 1 / _MAX_UNIT_RATIO < truth / cube < _MAX_UNIT_RATIO:
        print(
            f"{color_label('warning')} truth: its mean is {truth / cube:.3g} times that of the "
            "cube, so the scores compare two units; save the truth in the unit of the measurement",
            file=sys.stderr,
        )


def describe_solve(system: System) -> Json | None:
    """Return iterations and residual of the latest conjugate gradients; None without any."""
    report = system.last_solve
    if report is None:
        return None
    return {
        "iterations": int(report.iterations.max()),
        "relative_residual": report.residual.max().item(),
        "converged": bool(report.converged.all()),
    }


def environment(device: torch.device, backend: str) -> Json:
    """Return device, threads and versions of libraries, for metrics.json."""
    from importlib.metadata import version

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "backend": backend,
        "device": str(device),
        "device_name": name or platform.machine(),
        "threads": torch.get_num_threads(),
        "precision": resolve("auto", device),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("cassi", "torch", "numpy", "hydra-core")},
        },
    }


def format_result(results: Json) -> str:
    """Return a result in one line."""
    n_iterations = results["iterations"]
    plural = "" if n_iterations == 1 else "s"
    text = (
        f"{n_iterations} iteration{plural} in {results['seconds']:.1f} s, "
        f"relative residual {results['relative_residual']:.2e}"
    )
    if "heldout" in results:
        text += f", held-out error {results['heldout']['error']:.2e}"
    if "uncertainty" in results:
        text += f", 90 % within ±{NORMAL * results['uncertainty']['mean']:.2g}"
    if "metrics" in results:
        scores = results["metrics"][metrics.DEFAULT_PRESET]
        text += "".join(
            f", {name.upper()} {scores[name]:.{digits}f}{unit}"
            for name, digits, unit in (("psnr", 2, " dB"), ("ssim", 4, ""), ("sam", 2, "°"))
            if scores[name] is not None
        )
    return text


def _describe_offsets(offsets: BandOffsets | None) -> dict[str, Any] | None:
    if offsets is None:
        return None
    return {"offsets": offsets.offsets, "errors": offsets.errors, "told": offsets.visible_ends}


def summarize_calibration(camera_calibration: CalibrationRun) -> Json:
    """Return the numbers of a calibration, as they are in a JSON file."""
    calibration = camera_calibration.calibration
    return {
        "estimates": [asdict(estimate) for estimate in calibration.estimates],
        "heldout_error": {"nominal": calibration.before, "calibrated": calibration.after},
        "dropped": list(calibration.dropped),
        "dispersion_told": calibration.told,
        "offsets": {
            "nominal": camera_calibration.nominal.offsets,
            "calibrated": calibration.system.offsets,
        },
        "windows": calibration.place.windows,
        "light": {
            "offsets": calibration.place.offsets.tolist(),
            "power": calibration.place.light.tolist(),
            "bands": _describe_offsets(calibration.names),
        },
        # `LIGHT_PARAMETERS` describe the light rather than the mask, so the camera does not take
        # them. There is one exception: if the frame shows the dispersion, the tilt may be taken.
        "mask": {
            key: {
                "value": calibration.place.values[key],
                "standard_error": error,
                "taken": bool(calibration.taken[key])
                and (key not in LIGHT_PARAMETERS or (calibration.told and key == "tilt")),
            }
            for key, error in calibration.place.errors.items()
        },
        "seconds": camera_calibration.seconds,
    }


def format_estimates(numbers: Json) -> str:
    """Return the numbers of `summarize_calibration` as a table."""
    lines = [f"{'':28}{'before':>9}{'after':>10}   standard error"]
    for entry in numbers["estimates"]:
        error = entry["standard_error"]
        error_text = f"{error:.4f}" if math.isfinite(error) else "unknown"
        error_text += ", taken" if entry["taken"] else ""
        lines.append(
            f"{entry['name']:28}{entry['nominal']:9.4f}{entry['value']:10.4f}   {error_text}"
        )
    mask_terms = [
        f"{PARAMETERS[key].name} {entry['value']:+.2g}"
        for key, entry in numbers["mask"].items()
        if entry["taken"] and key in PARAMETERS and key not in PRINTED_PARAMETERS
    ]
    if mask_terms:
        lines.append(f"the mask is moved as well by: {', '.join(mask_terms)}")
    bands = numbers["light"]["bands"]
    if bands is not None and bands["told"]:
        first, last = (
            f"{bands['offsets'][index]:.2f} ± {bands['errors'][index]:.2f} px" for index in (0, -1)
        )
        end_text = "one end" if bands["told"] == "one end" else "both ends"
        lines.append(
            f"if the bands end where the light does: first {first}, last {last} ({end_text})"
        )
    if not numbers["dispersion_told"]:
        lines.append(
            "dispersion: nominal, as the frame does not show it. A frame through one filter of a "
            "middle wavelength does: cassi-calibrate "
            "'monochromatic=[{file: FILE, wavelength: NM}]'"
        )
    lines += [f"dropped: {name}" for name in numbers["dropped"]]
    nominal_error, calibrated_error = (
        numbers["heldout_error"][key] for key in ("nominal", "calibrated")
    )
    lines.append(f"{'held-out error':28}{nominal_error:9.4f}{calibrated_error:10.4f}")
    return "\n".join(lines)
