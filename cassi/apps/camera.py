"""The camera of a config, and its offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from cassi.config import build, plain
from cassi.systems import Dispersion, System

Wavelengths = Sequence[float] | None


def is_dual(system: DictConfig) -> bool:
    """Tell whether a config's camera is the dual disperser, whose y is as large as the cube."""
    return str(system.get("_target_")).rpartition(".")[2] == "DDCassi"


def find_offsets(system: DictConfig, bands: int, wavelengths: Wavelengths) -> list[float] | None:
    """Return one offset per band, of a list or a dispersion curve; None where there is a step.

    Raises:
        ValueError: a curve without wavelengths, or a number of offsets that is not that of bands.
    """
    node = plain(system.get("offsets"))
    if node is None:
        return None
    if isinstance(node, dict):
        curve = build(node)
        if not isinstance(curve, Dispersion):
            raise ValueError(
                f"system.offsets: expected a dispersion curve, got {type(curve).__name__}"
            )
        if wavelengths is None:
            raise ValueError(
                "system.offsets: expected wavelengths for a dispersion curve; give "
                "wavelengths=[…] in nm, one per band"
            )
        node = list(curve.offsets(wavelengths))
    numbers = isinstance(node, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in node
    )
    if not numbers:
        raise ValueError(f"system.offsets: expected a list of pixels or a curve, got {node!r}")
    if len(node) != bands:
        raise ValueError(f"system.offsets: expected {bands} values, one per band, got {len(node)}")
    return [float(value) for value in node]


def dispersed(system: DictConfig, bands: int, wavelengths: Wavelengths) -> int:
    """Return by how many pixels the bands lie apart: ceil(max o), or (C-1)·|step|."""
    offsets = find_offsets(system, bands, wavelengths)
    if offsets is not None:
        return max(0, math.ceil(max(offsets)))
    return (bands - 1) * abs(whole_step(system))


def whole_step(system: DictConfig) -> int:
    """Return the step of a config's camera.

    Raises:
        ValueError: it is no whole number.
    """
    step = system.get("step", 0)
    if isinstance(step, bool) or not isinstance(step, int):
        raise ValueError(
            f"system.step: expected a whole number of pixels per band, got {step!r}; else give "
            "system.offsets, a list or {_target_: cassi.systems.Linear, step: …}"
        )
    return step


def build_camera(
    system: DictConfig,
    mask: Tensor,
    bands: int,
    wavelengths: Wavelengths,
    length: int | None = None,
    **more: Any,
) -> System:
    """Build the camera of a config, with the offsets that its dispersion curve says.

    Args:
        system: the node.
        mask: `(K, 1|C, H, W)`.
        bands: C.
        wavelengths: nm, one per band, if known; a curve needs them.
        length: pixels of the cube along the dispersion where a file says so: a dual disperser's
            mask may be longer.
        more: arguments that win over all of these.
    """
    offsets = find_offsets(system, bands, wavelengths)
    if offsets is not None:
        more = {"offsets": offsets} | more
    if is_dual(system) and system.get("width") is None:
        more = {"width": length} | more
    camera: System = build(system, mask=mask, bands=bands, **more)
    return camera
