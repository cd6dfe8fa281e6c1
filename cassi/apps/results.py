"""What commands write of a reconstruction: cube, pictures, report, tables, numbers."""

import csv
import json
import math
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi import metrics, ops
from cassi.apps.camera.guide import describe_guide
from cassi.apps.printing import marked
from cassi.apps.settings import Output
from cassi.calibration.findings import CameraCheck
from cassi.calibration.response import describe
from cassi.camera.displacement import IN_TABLE, NUISANCES, PARAMETERS
from cassi.data.formats.cells import Json, plain_cell, strict
from cassi.data.wavelengths import interpolate_spectra
from cassi.metrics.scores import evaluate_all
from cassi.pipeline.snapshot import Calibrated, Result
from cassi.precision import resolve
from cassi.solvers.base import Along
from cassi.systems import System
from cassi.uncertainty import NORMAL, Uncertainty, region, score

_SAME_UNIT = 100.0
"""Times, that the means of a cube and its truth may differ where both have one unit."""


@dataclass(frozen=True)
class Bars:
    """What pictures are told of how sure a cube is: all `(C, H, W)`, see `cassi.uncertainty`."""

    x: Tensor
    std: Tensor
    pattern: Tensor

    def at(self, row: float, column: float) -> Tensor:
        """Return 1.645 σ, `(C,)`, of the mean of the 5×5 pixels around a point."""
        height, width = self.x.shape[-2:]
        (top, left) = (max(0, round(at) - 2) for at in (row, column))
        where = slice(top, min(height, round(row) + 3)), slice(left, min(width, round(column) + 3))
        batch = Bars(*(value[None] for value in (self.x, self.std, self.pattern)))
        return NORMAL * region(batch, where).std[0]


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
    """Write numbers as JSON, with the names of the files that lie beside them."""
    files = sorted(file.name for file in path.parent.iterdir())
    write_json(path, {**numbers, "files": files})


def select_bands(
    output: Output, cube: Tensor, wavelengths: Sequence[float] | None, std: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Sequence[float] | None]:
    """Return a cube `(C, H, W)` at the wavelengths that are asked for, its σ, and those."""
    if output.wavelengths is None:
        return cube, std, wavelengths
    if wavelengths is None:
        raise ValueError(
            "output.wavelengths: expected wavelengths=[…] in nm, one per band, with it"
        )
    wanted = tuple(map(float, output.wavelengths))
    try:
        return *interpolate_spectra(cube, wavelengths, wanted, std), wanted
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
    bars: Bars | None = None,
    along: Along | None = None,
) -> None:
    """Write the pictures, spectra and, if asked for, report.html of a cube `(C, H, W)`.

    Bars are drawn in spectra and report, and as uncertainty.png. A cube along the dispersion is
    dots beside the spectra, where these are in the unit of the camera.
    """
    from cassi import viz

    if not output.pictures:
        return
    unit, light = numbers.get("unit"), output.illuminant
    light = {"reflectance": light or "D65", "radiance": None}.get(str(unit), light)
    viz.save_rgb(folder / "rgb.png", cube, wavelengths, truth, light)
    errors = errors_of_wavelengths(numbers, len(cube))
    viz.save_bands(folder / "bands.png", cube, wavelengths, truth=truth, unit=unit, errors=errors)
    shaded, dots = None if bars is None else bars.at, None
    if along is not None and wavelengths is not None and unit is None:
        dots = along.x[0], along.grid.wavelengths(wavelengths)
    drawn = cube, wavelengths, output.points, truth, light, shaded, unit, dots
    for file in ("spectra.png", "spectra.csv"):
        viz.save_spectra(folder / file, *drawn)
    if bars is not None:
        save_map(folder, bars.std, cube, wavelengths, unit, errors)
    if output.report:
        write_report(folder, name, cube, wavelengths, truth, numbers, bars, light)


def write_report(
    folder: Path,
    name: str,
    cube: Tensor,
    wavelengths: Sequence[float] | None,
    truth: Tensor | None,
    numbers: Json,
    bars: Bars | None,
    illuminant: str | None,
) -> None:
    """Write report.html; the arguments are those of `save_pictures`."""
    from cassi.viz.report import encode_scene, make_report
    from cassi.viz.sheet import write_bytes

    shown = reported_numbers(numbers)
    halves = None if bars is None else {"reconstruction": NORMAL * bars.std}
    scene = encode_scene(name, {"reconstruction": cube}, truth, {"reconstruction": shown}, halves)
    page = make_report(
        [scene],
        wavelengths,
        title=name,
        illuminant=illuminant,
        warnings=say_warnings(numbers),
        note=say_camera_check(numbers),
        unit=numbers.get("unit"),
        errors=errors_of_wavelengths(numbers, len(cube)),
    )
    write_bytes(folder / "report.html", page)


def reported_numbers(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of metrics.json that stand in the table of a report."""
    shown = dict(numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {}))
    shown |= {key: numbers.get(key) for key in ("seconds", "relative_residual")}
    if "heldout" in numbers:
        shown["heldout_error"] = numbers["heldout"]["error"]
    return shown


def errors_of_wavelengths(numbers: Mapping[str, Any], bands: int) -> tuple[float, ...] | None:
    """Return the standard errors in metrics.json, nm; None where they are not of so many bands."""
    errors = numbers.get("wavelengths_error") or ()
    return tuple(map(float, errors)) if len(errors) == bands else None


def say_warnings(numbers: Mapping[str, Any]) -> list[str]:
    """Return the warnings of metrics.json, a line each."""
    return [f"{each['about']}: {each['message']}" for each in numbers.get("warnings") or ()]


def say_camera_check(numbers: Mapping[str, Any]) -> str:
    """Return what the camera check of metrics.json found, in one line; else nothing."""
    if "camera_check" not in numbers:
        return ""
    doubts = any(each["about"] != "uncertainty" for each in numbers.get("warnings") or ())
    note = numbers["camera_check"].get("note", "")
    words = ("camera check:", "" if doubts else "nothing found against the camera.", note)
    return " ".join(filter(None, words)) if note or not doubts else ""


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
    camera, found = snapshot.camera, result.uncertainty
    numbers = _reconstructed(result) | environment(device, ops.backend(device))
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
        numbers["dispersion"] = {"offsets": grid.offsets, "named": grid.named}
    if camera.wavelengths_error is not None:
        numbers["wavelengths_error"] = camera.wavelengths_error
    if result.batch > 1:
        numbers["batch"] = result.batch
    if result.heldout is not None:
        numbers["heldout"] = asdict(result.heldout)
    if found is not None and result.errors is not None:
        numbers["uncertainty"] = _describe_uncertainty(found, result.errors.std)
        if snapshot.truth is not None:
            values = (result.solution.x[0].cpu(), found.std[0].cpu(), snapshot.truth[0].cpu())
            numbers["uncertainty"]["scores"] = score(*values)
        numbers["uncertainty"]["seconds"] = found.seconds
    if result.scene is not None and camera.unit is not None:
        numbers["unit"] = camera.unit.name
    return numbers


def describe_findings(found: CameraCheck) -> Json:
    """Return what metrics.json says of what speaks for and against a camera."""
    warnings = [vars(each) for each in found.warnings]
    return {"warnings": warnings, "camera_check": {"note": found.note, **found.numbers}}


def _describe_uncertainty(found: Uncertainty, std: Tensor) -> Json:
    sigma = std.double()
    return {
        "mean": float(sigma.mean()),
        "rms": float(sigma.square().mean().sqrt()),
        "sources": found.sources,
        "shift": list(found.shift),
        "heldout_error": found.heldout,
    }


def _reconstructed(result: Result) -> Json:
    """Collect the numbers that belong to the reconstruction itself."""
    y, system = result.snapshot.y, result.snapshot.camera.system
    solution, truth = result.solution, result.snapshot.truth
    size = y.double().norm().clamp_min(torch.finfo(torch.float64).tiny)
    residual = (y - solution.measured(system)).double().norm() / size
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
    """Warn where the means of cube and truth are so far apart that they have different units."""
    if cube > 0 and truth > 0 and not 1 / _SAME_UNIT < truth / cube < _SAME_UNIT:
        print(
            f"{marked('warning')} truth: its mean is {truth / cube:.3g} times that of the cube, so "
            "the scores compare two units; save the truth in that of the measurement",
            file=sys.stderr,
        )


def describe_solve(system: System) -> Json | None:
    """Say how far the latest solve by conjugate gradients came; None without one."""
    report = system.last_solve
    if report is None:
        return None
    return {
        "iterations": int(report.iterations.max()),
        "relative_residual": report.residual.max().item(),
        "converged": bool(report.converged.all()),
    }


def environment(device: torch.device, backend: str) -> Json:
    """Describe what the numbers were made with."""
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


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device's allocator, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def one_line(results: Json) -> str:
    """Say the result in one line."""
    count = results["iterations"]
    text = (
        f"{count} iteration{'s' * (count != 1)} in {results['seconds']:.1f} s, "
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


def summarize_calibration(calibrated: Calibrated) -> Json:
    """Return what was found, from a nominal camera on, as it stands in a JSON file."""
    found = calibrated.found
    return {
        "estimates": [asdict(estimate) for estimate in found.estimates],
        "heldout_error": {"nominal": found.before, "calibrated": found.after},
        "dropped": list(found.dropped),
        "dispersion_told": found.told,
        "offsets": {"nominal": calibrated.nominal.offsets, "calibrated": found.system.offsets},
        "windows": found.place.windows,
        "light": {
            "offsets": found.place.offsets.tolist(),
            "power": found.place.light.tolist(),
            "bands": None if found.names is None else asdict(found.names),
        },
        "mask": {
            key: {
                "value": found.place.values[key],
                "standard_error": error,
                "taken": bool(found.taken[key])
                and (key not in NUISANCES or (found.told and key == "tilt")),
            }
            for key, error in found.place.errors.items()
        },
        "seconds": calibrated.seconds,
    }


def say_estimates(numbers: Json) -> str:
    """Say what `summarize_calibration` returns in a table."""
    lines = [f"{'':28}{'before':>9}{'after':>10}   standard error"]
    for entry in numbers["estimates"]:
        error = entry["standard_error"]
        said = f"{error:.4f}" if math.isfinite(error) else "unknown"
        said += ", taken" if entry["taken"] else ""
        lines.append(f"{entry['name']:28}{entry['nominal']:9.4f}{entry['value']:10.4f}   {said}")
    bent = [
        f"{PARAMETERS[key].name} {entry['value']:+.2g}"
        for key, entry in numbers["mask"].items()
        if entry["taken"] and key in PARAMETERS and key not in IN_TABLE
    ]
    if bent:
        lines.append(f"the mask is moved as well by: {', '.join(bent)}")
    bands = numbers["light"]["bands"]
    if bands is not None and bands["told"]:
        first, last = (
            f"{bands['offsets'][at]:.2f} ± {bands['errors'][at]:.2f} px" for at in (0, -1)
        )
        seen = "one end" if bands["told"] == "one end" else "both ends"
        lines.append(f"if the bands end where the light does: first {first}, last {last} ({seen})")
    if not numbers["dispersion_told"]:
        lines.append(
            "dispersion: not shown, as it was given. A frame through one filter of a middle "
            "wavelength shows it: cassi-calibrate 'monochromatic=[{file: FILE, wavelength: NM}]'"
        )
    lines += [f"dropped: {each}" for each in numbers["dropped"]]
    before, after = (numbers["heldout_error"][key] for key in ("nominal", "calibrated"))
    lines.append(f"{'held-out error':28}{before:9.4f}{after:10.4f}")
    return "\n".join(lines)
