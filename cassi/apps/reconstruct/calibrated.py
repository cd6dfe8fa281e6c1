"""The camera as the snapshot shows it, which it is to reconstruct: aligned, or calibrated."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from cassi.apps.calibrate import find_camera
from cassi.apps.calibrate.inputs import good_pixels, plain
from cassi.apps.calibrate.results import summarize_calibration
from cassi.apps.inputs import Inputs
from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.apps.settings import Reconstruct
from cassi.calibration import Frame
from cassi.reconstruction import find_mask
from cassi.systems import SDCassi


def aligned(inputs: Inputs) -> Inputs:
    """Return the inputs with the mask where the measurement is sure that it lies; else as they are.

    Pixels held out are predicted by the default solver, whatever reconstructs.
    """
    found = find_mask(inputs.measurement, inputs.system)
    if found is None:
        return inputs
    values = {"down": found.geometry.shift[0], "right": found.geometry.shift[1]}
    names = ("rotation", "magnification", "blur")
    values |= {name: getattr(found.geometry, name) for name in names}
    numbers = values | {"heldout_error": {"before": found.before, "after": found.after}}
    notes = [*inputs.notes, f"camera: {found}; calibrate=false leaves it where it was"]
    return replace(inputs, system=found.system, alignment=numbers, notes=notes)


def calibrated(inputs: Inputs, settings: Reconstruct) -> Inputs:
    """Return the inputs with the camera as it is, with the defaults of cassi-calibrate.

    Args:
        inputs: the measurement and the nominal camera.
        settings: of the command; its solver predicts withheld pixels, the default one where a
            network reconstructs.

    Raises:
        ValueError: the camera is none that can be calibrated, or the measurement is too dark or
            small.
    """
    system, y = plain(inputs.system), inputs.measurement
    if type(system) is not SDCassi:
        raise ValueError(f"calibrate: expected SDCassi, got {type(system).__name__}")
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    solver = build_solver(settings if settings.model is None else compose_settings())
    good = good_pixels(inputs)
    frames = [Frame.snapshot(y, system.bands, good)]
    found, camera, _ = find_camera(frames, system, solver, seed=settings.seed)
    numbers = summarize_calibration(found) | {
        "offsets": {"nominal": system.offsets, "calibrated": camera.offsets},
        "seconds": time.perf_counter() - start,
    }
    notes = [*inputs.notes, "camera: calibrated on the measurement"]
    seen = camera if good is None else camera.weighted(bad_pixels=~good)
    return replace(inputs, system=seen, calibration=numbers, notes=notes)
