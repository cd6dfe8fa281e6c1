"""What cassi-calibrate writes and says."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cassi.apps.camera.file import FRAME, NEUTRAL, with_files
from cassi.apps.camera.merge import load_camera
from cassi.apps.results import write_json
from cassi.apps.settings import Calibrate, to_yaml
from cassi.calibration import Calibration, Frame
from cassi.data.atomic import atomic_folder
from cassi.systems import SDCassi, TiltedCassi

HEADER = """\
# A calibrated camera, written by cassi-calibrate, for all commands and cassi.read_camera:
#     cassi-reconstruct camera={folder}/camera.yaml measurement=FILE
# Paths are relative to this file.
"""


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
    system, settings = result.system, result.settings
    node = {
        "bands": system.bands,
        "axis": system.axis,
        "offsets": [round(value, 6) for value in system.offsets],
        "detector": system.measurement_shape[system.axis],
    }
    if isinstance(system, TiltedCassi):
        node["_target_"] = "cassi.systems.TiltedCassi"
        node["across"] = [round(value, 6) for value in system.across.tolist()]
    camera: dict[str, Any] = {"mask": "mask.npy", "system": node}
    for group in ("keys", "axes"):
        if (name := getattr(settings, group).measurement) is not None:
            camera[group] = {"measurement": name}
    if wavelengths is not None:
        camera["wavelengths"] = list(wavelengths)
    steps: dict[str, Any] = {name: getattr(settings, name, None) for name in FRAME}
    for name in ("dark", "flat", "bad_pixels"):  # files, which may be relative
        steps[name] = with_files(steps[name], lambda file: str(Path(file).resolve()))
    if result.gain is not None:
        steps["scale"] = float(steps["scale"]) / result.gain
    camera |= {key: value for key, value in steps.items() if value != NEUTRAL.get(key)}
    nominal = {} if settings.camera is None else load_camera(settings.camera)
    if nominal.get("noise") is not None:
        camera["noise"] = nominal["noise"]
    return camera


def summarize(result: Result) -> dict[str, Any]:
    """Return what calibration.json holds of the calibration itself."""
    return {
        **summarize_calibration(result.found),
        "gain": result.gain,
        "offsets": {"nominal": result.nominal.offsets, "calibrated": result.system.offsets},
        "seconds": result.seconds,
    }


def summarize_calibration(found: Calibration) -> dict[str, Any]:
    """Return estimates, held-out errors and models as they stand in a JSON file."""
    return {
        "estimates": [asdict(estimate) for estimate in found.estimates()],
        "heldout_error": {"nominal": found.before, "calibrated": found.after},
        "model": list(found.model),
        "models": [
            {
                "model": list(stage.model),
                "heldout_error": stage.error,
                "taken": stage.taken,
                "seconds": stage.seconds,
            }
            for stage in found.stages
        ],
        "windows": found.windows.windows,
    }


def say(numbers: dict[str, Any]) -> str:
    """Say before and after in a table."""
    lines = [say_estimates(numbers)]
    if numbers["gain"] is None:
        lines.append("gain: unknown, brightness is the scene's; give white=FILE")
    else:
        lines.append(f"gain: {numbers['gain']:.5g}, divided out by camera.yaml's scale")
    return "\n".join([*lines, f"{numbers['seconds']:.1f} s"])


def say_estimates(numbers: dict[str, Any]) -> str:
    """Say what `summarize_calibration` returns in a table."""
    lines = [f"{'':28}{'before':>9}{'after':>10}   standard error"]
    for entry in numbers["estimates"]:
        error = entry["standard_error"]
        said = f"{error:.4f}" if math.isfinite(error) else "unknown"
        said += "" if entry["in_model"] else ", not significant"
        lines.append(f"{entry['name']:28}{entry['nominal']:9.4f}{entry['value']:10.4f}   {said}")
    before, after = (numbers["heldout_error"][key] for key in ("nominal", "calibrated"))
    lines.append(f"{'held-out error':28}{before:9.4f}{after:10.4f}")
    return "\n".join(lines)
