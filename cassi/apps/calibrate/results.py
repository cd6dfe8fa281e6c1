"""What cassi-calibrate writes and says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.results import write_json
from cassi.apps.settings import Calibrate, to_yaml
from cassi.calibration import Calibration, Frame, objective_curves
from cassi.data.atomic import atomic_folder
from cassi.data.frames import STEPS
from cassi.systems import SDCassi

HEADER = """\
# A calibrated camera, written by cassi-calibrate:
#     cassi-reconstruct --config-dir {folder} --config-name camera measurement=FILE
# It overrules what an experiment says of mask and system. The mask's place is absolute: change it
# here where the folder is moved.
"""


@dataclass(frozen=True)
class Result:
    """A calibration and what it was made from."""

    settings: Calibrate
    frames: list[Frame]
    nominal: SDCassi
    found: Calibration
    system: SDCassi
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
    fit = found.fit
    numbers = summarize(result)
    mask = result.system.mask.cpu().numpy()
    while mask.ndim > 2 and len(mask) == 1:
        mask = mask[0]
    curves = objective_curves(result.frames, result.nominal, fit)
    shown = zip(fit.geometry.names(), curves, fit.errors, strict=True)
    names = ["nominal", *(str(stage.degree) for stage in found.stages[1:])]
    with atomic_folder(folder) as stage:
        np.save(stage / "mask.npy", mask)
        camera = HEADER.format(folder=folder) + to_yaml(
            describe_camera(folder, result, wavelengths)
        )
        (stage / "camera.yaml").write_text(camera)
        residuals = [entry.residual for entry in found.stages]
        save_calibration(
            stage / "calibration.png",
            found.objectives,
            list(zip(names, residuals, strict=True)),
            list(shown),
        )
        files = sorted(file.name for file in stage.iterdir())
        write_json(stage / "calibration.json", numbers | more | {"files": files})
    return numbers


def describe_camera(
    folder: Path, result: Result, wavelengths: tuple[float, ...] | None
) -> dict[str, Any]:
    """Return the config of the calibrated camera, to be used as a primary config."""
    system, settings = result.system, result.settings
    steps = {name: getattr(settings, name) for name in STEPS}
    for name in ("dark", "flat", "hot_pixels"):  # files, which may be relative
        if isinstance(steps[name], str) and steps[name] != "auto":
            steps[name] = str(Path(steps[name]).resolve())
    if result.gain is not None:
        steps["scale"] = float(steps["scale"]) / result.gain
    node = {
        "_target_": "cassi.systems.SDCassi",
        "bands": system.bands,
        "axis": system.axis,
        "offsets": [round(value, 6) for value in system.offsets],
        "detector": system.detector,
    }
    camera: dict[str, Any] = {"defaults": ["reconstruct", "_self_"]}
    camera["mask"] = str(folder / "mask.npy")
    # The mask's file holds one name for its array and no doubt about its axes.
    camera |= {"keys": {"mask": None}, "axes": {"mask": None}, "system": node, **steps}
    if wavelengths is not None:
        camera["wavelengths"] = list(wavelengths)
    return camera


def summarize(result: Result) -> dict[str, Any]:
    """Return what calibration.json holds of the calibration itself."""
    found, nominal = result.found, result.nominal
    fit = found.fit
    entries = zip(fit.geometry.names(), fit.geometry.values(), fit.errors, strict=True)
    return {
        "estimates": [
            {"name": name, "nominal": 0.0, "value": value, "standard_error": error}
            for name, value, error in entries
        ],
        "gain": result.gain,
        "offsets": {"nominal": nominal.offsets, "calibrated": result.system.offsets},
        "residual": {
            "nominal": found.stages[0].residual,
            "calibrated": found.stages[found.chosen].residual,
        },
        "models": [
            {"degree": stage.degree, "residual": stage.residual, "seconds": stage.seconds}
            for stage in found.stages
        ],
        "objective": {
            "nominal": found.objectives[0],
            "calibrated": found.objectives[-1],
            "iterations": found.objectives,
            "windows": fit.windows,
        },
        "seconds": result.seconds,
    }


def say(numbers: dict[str, Any]) -> str:
    """Say before and after in a table."""
    lines = [f"{'':28}{'before':>9}{'after':>10}   standard error"]
    for entry in numbers["estimates"]:
        error = entry["standard_error"]
        said = f"{error:.4f}" if math.isfinite(error) else "unknown"
        lines.append(f"{entry['name']:28}{0:9.4f}{entry['value']:10.4f}   {said}")
    before, after = numbers["residual"]["nominal"], numbers["residual"]["calibrated"]
    lines.append(f"{'residual of a reconstruction':28}{before:9.4f}{after:10.4f}")
    if numbers["gain"] is None:
        lines.append("gain: unknown, brightness is the scene's; give white=FILE")
    else:
        lines.append(f"gain: {numbers['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{numbers['seconds']:.1f} s"])
