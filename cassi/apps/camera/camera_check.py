"""Is the camera right? Asked after every reconstruction, and said beside its numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cassi.apps.inputs import Inputs
from cassi.calibration import CameraCheck, Finding, check_camera, check_spectra
from cassi.solvers import relative_noise
from cassi.solvers.base import Reconstructor


def check(inputs: Inputs, x: Tensor, reconstructor: Reconstructor) -> dict[str, Any]:
    """Return what speaks for and against the camera, for metrics.json.

    Args:
        inputs: the measurement and its camera.
        x: cube `(1, C, H, W)`; of a large one every few pixels will do.
        reconstructor: what made it.

    Returns:
        `warnings`, a list of `{about, message}`, and `camera_check`, the numbers behind them.
    """
    start = time.perf_counter()
    y, system = inputs.measurement, inputs.system
    found = check_camera(y, system)
    found += check_spectra(x, system.plain, inputs.wavelengths)
    found += _check_weights(y, system, reconstructor)
    numbers = {"note": found.note, **found.numbers, "seconds": time.perf_counter() - start}
    return {"warnings": [vars(each) for each in found.warnings], "camera_check": numbers}


def say(numbers: Mapping[str, Any], name: str = "") -> None:
    """Print the note, and the warnings as such.

    Args:
        numbers: of metrics.json.
        name: of the snapshot, of many: then without the note.
    """
    before = f"{name}: " if name else ""
    if not name and numbers["camera_check"]["note"]:
        print(f"camera check: {numbers['camera_check']['note']}")
    sys.stdout.flush()
    for each in numbers["warnings"]:
        print(f"warning: {before}{each['about']}: {each['message']}", file=sys.stderr, flush=True)


@torch.no_grad()
def _check_weights(y: Tensor, system: Any, reconstructor: Reconstructor) -> CameraCheck:
    shipped = getattr(reconstructor.network, "shipped", None)
    if shipped is None or shipped.doubts is None:
        return CameraCheck()
    doubts = shipped.doubts(system, float(relative_noise(y, system).max()))
    if not doubts:
        return CameraCheck()
    message = (
        f"the network has not seen cameras like this one: {', '.join(doubts)}; compare with "
        "model=null solver=auto, by heldout=0.05"
    )
    return CameraCheck((Finding("weights", message),))
