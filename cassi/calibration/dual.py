"""The calibration of a dual disperser: its mask and the dispersion across it."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cassi.camera.displacement import MOVES_BANDS, PARAMETERS, moved_mask
from cassi.camera.found import place_bands
from cassi.camera.moved import moved_camera
from cassi.camera.place import Place
from cassi.systems import DDCassi, SDCassi, System

_POLISHED = ("across", "along", "rotation", "step")
_SCALES = (0.1, 0.05, 0.025)
"""Pixels by which each is moved, one round each."""


def single_twin(nominal: DDCassi) -> SDCassi:
    """Return the single disperser that has the same frame of a plain scene.

    A plain scene, whose spectrum is the same everywhere, shows what moves against what: the mask
    against the detector, by −o(c) for band c.
    """
    if nominal.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    return SDCassi(
        nominal.coding.detach(),
        nominal.bands,
        axis=nominal.axis,
        offsets=[-offset for offset in nominal.mask_offsets],
        detector=nominal.detector,
    )


@torch.no_grad()
def place_dual(
    y: Tensor,
    nominal: DDCassi,
    good: Tensor | None,
    misses: Callable[[System], float],
    radius: int = 2,
) -> tuple[Place, DDCassi]:
    """Find how far mask and dispersion of a dual disperser are off.

    They are placed as those of `single_twin`. A scene that is not plain has another frame of it,
    so parabolas lower the error of pixels held out further.

    `misses` tells how badly a reconstruction through a camera predicts pixels held out.

    Returns:
        The place of the mask of `single_twin`, and the camera.
    """
    twin = single_twin(nominal)
    place = place_bands(y, twin, good, radius=radius)
    values = _polished(place.kept, twin, lambda each: misses(moved_dual(nominal, twin, each)))
    return replace(place, kept=values), moved_dual(nominal, twin, values)


def _polished(
    values: dict[str, float], twin: SDCassi, misses: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    """Lower the held-out error along one parameter after the other, by parabolas."""
    if not any(values[key] for key in PARAMETERS):  # nothing is off
        return values
    lowest, size = misses(values), twin.mask.shape[-2:]
    for scale in _SCALES:
        for key in _POLISHED:
            step = scale / max(PARAMETERS[key].scale(*size))
            sides = [misses(values | {key: values[key] + way * step}) for way in (-1, 1)]
            bend, slope = sides[0] + sides[1] - 2 * lowest, (sides[1] - sides[0]) / 2
            moved = -slope / bend if bend > 0 else -math.copysign(math.inf, slope)
            there = values | {key: values[key] + min(max(moved, -3.0), 3.0) * step}
            if (found := misses(there)) < lowest:
                values, lowest = there, found
    return values


def moved_dual(nominal: DDCassi, twin: SDCassi, values: dict[str, float]) -> DDCassi:
    """Return a dual disperser whose plain scenes are those of the moved single disperser."""
    offsets = [-offset for offset in moved_camera(twin, values | {"tilt": 0.0}).offsets]
    # Offsets begin at 0: what they lack, the mask has.
    least = min(offsets)
    mask = {key: value for key, value in values.items() if key not in MOVES_BANDS}
    mask["along"] -= least
    return DDCassi(
        moved_mask(twin, mask, parts=1),
        nominal.bands,
        axis=nominal.axis,
        width=nominal.detector,
        offsets=[offset - least for offset in offsets],
    )
