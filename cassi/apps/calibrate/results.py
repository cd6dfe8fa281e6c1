"""The file of a camera that cassi-calibrate writes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cassi.apps.camera.file import FRAME, NEUTRAL, load_camera, with_files
from cassi.apps.results import write_numbers
from cassi.apps.settings import Calibrate, to_yaml
from cassi.data.atomic import atomic_folder
from cassi.systems import SDCassi, TiltedCassi

HEADER = """\
# A calibrated camera, written by cassi-calibrate, for all commands and cassi.read_camera:
#     cassi-reconstruct camera={folder}/camera.yaml measurement=FILE
# Paths are relative to this file.
"""


def write_calibration(
    folder: Path,
    mask: Tensor,
    camera: Mapping[str, object],
    draw: Callable[[Path], None],
    numbers: Mapping[str, object],
    said: str = "",
) -> None:
    """Write mask, camera, picture and numbers, all or none; `said` stands in the camera's file."""
    while mask.ndim > 2 and len(mask) == 1:
        mask = mask[0]
    with atomic_folder(folder) as stage:
        np.save(stage / "mask.npy", mask.cpu().numpy())
        top = HEADER.format(folder=folder) + "".join(f"# {line}\n" for line in said.splitlines())
        (stage / "camera.yaml").write_text(top + to_yaml(camera))
        draw(stage / "calibration.png")
        write_numbers(stage / "calibration.json", numbers)


def camera_values(
    settings: Calibrate,
    system: SDCassi | TiltedCassi,
    gain: float | None,
    wavelengths: tuple[float, ...] | None,
) -> dict[str, object]:
    """Return what the file of a camera holds, which lies beside `mask.npy`."""
    node = {
        "bands": system.bands,
        "axis": system.axis,
        "offsets": [round(value, 6) for value in system.offsets],
        "detector": system.measurement_shape[system.axis],
    }
    if isinstance(system, TiltedCassi):
        node["_target_"] = "cassi.systems.TiltedCassi"
        node["across"] = [round(value, 6) for value in system.across.tolist()]
    elif system.band_width > 1:
        node["band_width"] = system.band_width
    camera: dict[str, object] = {"mask": "mask.npy", "system": node}
    if settings.photographed != "auto":
        camera["photographed"] = settings.photographed
    if settings.light != "auto":
        camera["light"] = settings.light
    for group in ("keys", "axes"):
        if (name := vars(settings)[group].measurement) is not None:
            camera[group] = {"measurement": name}
    if wavelengths is not None:
        camera["wavelengths"] = list(wavelengths)
    steps: dict[str, Any] = {name: vars(settings).get(name) for name in FRAME}
    for name in ("dark", "flat", "bad_pixels"):  # files, which may be relative
        steps[name] = with_files(steps[name], lambda file: str(Path(file).resolve()))
    if gain is not None:
        steps["scale"] = float(steps["scale"]) / gain
    camera |= {key: value for key, value in steps.items() if value != NEUTRAL.get(key)}
    nominal = {} if settings.camera is None else load_camera(settings.camera)
    if nominal.get("noise") is not None:
        camera["noise"] = nominal["noise"]
    return camera
