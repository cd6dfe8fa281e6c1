"""The results of cassi-calibrate: the camera's file, its mask, a figure and numbers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cassi.apps.camera.file import CORRECTION_DEFAULTS, FRAME_CORRECTIONS, load_camera, map_paths
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
    notes: str = "",
) -> None:
    """Write all results, or none if one of them fails.

    Args:
        folder: folder of the results.
        mask: `(H, W)`, after leading axes of length 1.
        camera: content of camera.yaml, see `make_camera_values`.
        draw: saves the figure at a path.
        numbers: content of calibration.json.
        notes: lines that become comments in camera.yaml.
    """
    # A single mask for all shots and bands becomes a plain image, which other programs can open.
    while mask.ndim > 2 and len(mask) == 1:
        mask = mask[0]
    with atomic_folder(folder) as stage:
        np.save(stage / "mask.npy", mask.cpu().numpy())
        header = HEADER.format(folder=folder) + "".join(
            f"# {line}\n" for line in notes.splitlines()
        )
        (stage / "camera.yaml").write_text(header + to_yaml(camera))
        draw(stage / "calibration.png")
        write_numbers(stage / "calibration.json", numbers)


def make_camera_values(
    settings: Calibrate,
    system: SDCassi | TiltedCassi,
    gain: float | None,
    wavelengths: tuple[float, ...] | None,
) -> dict[str, object]:
    """Return the content of a camera's file, which lies beside `mask.npy`.

    Args:
        settings: settings of the calibration; their corrections of frames go into the file.
        system: the calibrated system.
        gain: mean response to white light; None if it is not known. The scale in the file is the
            scale of the settings divided by the gain.
        wavelengths: wavelengths of the bands, nm, if they are known.
    """
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
    values: dict[str, object] = {"mask": "mask.npy", "system": node}
    if settings.measured_mask != "auto":
        values["measured_mask"] = settings.measured_mask
    if settings.light != "auto":
        values["light"] = settings.light
    for group in ("keys", "axes"):
        if (name := vars(settings)[group].measurement) is not None:
            values[group] = {"measurement": name}
    if wavelengths is not None:
        values["wavelengths"] = list(wavelengths)
    frame_settings: dict[str, Any] = {name: vars(settings).get(name) for name in FRAME_CORRECTIONS}
    for name in ("dark", "flat", "bad_pixels"):  # files, which may be relative
        frame_settings[name] = map_paths(
            frame_settings[name], lambda file: str(Path(file).resolve())
        )
    # Measurements are multiplied by the scale, so the scale over the gain removes the gain.
    if gain is not None:
        frame_settings["scale"] = float(frame_settings["scale"]) / gain
    # Corrections with their default value are left out, so that the file stays short.
    values |= {
        key: value for key, value in frame_settings.items() if value != CORRECTION_DEFAULTS.get(key)
    }
    nominal = {} if settings.camera is None else load_camera(settings.camera)
    if nominal.get("noise") is not None:
        values["noise"] = nominal["noise"]
    return values
