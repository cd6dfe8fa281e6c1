"""Does a frame have light where a camera has bands, and nowhere else?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.calibration.findings import CameraCheck, Finding
from cassi.checks import clipped_level
from cassi.systems import System
from cassi.systems.band_positions import find_places
from cassi.systems.coded import CodedSystem

CLIPPED = 1e-4
"""Share of the pixels that may have exactly the largest value."""
NEGATIVE = 0.03
"""Share of the light that may be negative."""
UNUSED = 0.02
"""Share of the light that may lie where no band falls."""
LOST = 0.1
"""Share of a band's light that may fall beside the detector."""
EDGE, EVEN = 0.03, 0.25
"""A dark level that was not subtracted: of the typical light, and of the bright pixels of the edge.
Of 18 real frames and 8 cameras drawn by `lab.py` it is 0 without it, and 0.035 to 0.7 with it."""
LEAST = 48
"""Pixels of an edge."""
_CUBE = 2**24  # values of a cube


def check_light(y: Tensor, good: Tensor | None) -> CameraCheck:
    """Find saturated pixels, and light that is negative."""
    values = y.flatten() if good is None else y[good.expand_as(y)]
    total = values.abs().sum().clamp_min(torch.finfo(y.dtype).tiny)
    warnings = []
    top = values.max()
    clipped = int((values == top).sum())
    # Neighbouring values of a coarse converter are as frequent as the largest one by chance.
    below = int(((values < top) & (values >= 0.99 * top)).sum())
    many = clipped > CLIPPED * values.numel() and clipped > below / 4
    if many and clipped_level(values) is not None:
        message = (
            f"{clipped} pixels ({clipped / values.numel():.2g} of them) have the largest value: "
            "the sensor is saturated there; set saturation= to that level of the raw frame, which "
            "leaves them out"
        )
        warnings.append(Finding("light", message))
    negative = float(values.clamp(max=0).abs().sum() / total)
    if negative > NEGATIVE:
        message = (
            f"{negative:.1%} of it is negative: too much was subtracted; set dark= to the sensor's "
            "dark level, or dark=auto"
        )
        warnings.append(Finding("light", message))
    numbers = {"largest_value": clipped, "negative": negative}
    return CameraCheck(tuple(warnings[:1]), "", {"light": numbers})


def check_detector(y: Tensor, system: System, good: Tensor | None) -> CameraCheck:
    """Find a dark level at the edges, bands beside the detector, and light where no band falls."""
    warnings = []
    axis = system.part_axis
    if axis is not None:  # the cube is never whole in memory
        length = system.cube_shape[axis]
        lines = min(length, max(1, _CUBE * length // math.prod(system.cube_shape)))
        first = (length - lines) // 2
        system, y = system.part(first, first + lines), y.narrow(axis, first, lines)
        good = None if good is None else good.narrow(axis, first, lines)
    places = find_places(system)
    lost = [band for band, place in enumerate(places, 1) if place.lost > LOST]
    if lost:
        message = (
            f"{len(lost)} bands fall beside it (bands {lost[0]} to {lost[-1]}, up to "
            f"{max(place.lost for place in places):.0%} of their light): set system.offsets or "
            "system.detector to the camera's, or leave them out"
        )
        warnings.append(Finding("detector", message))
    # Lines along which no band falls anywhere; a single dark pixel holds noise.
    across = -3 - system.axis if isinstance(system, CodedSystem) else -2
    even = torch.ones((1, *system.cube_shape), dtype=torch.float32, device=y.device)
    white: Tensor = system(even)
    reached = (white > 0).any(across, keepdim=True).expand_as(white)
    if good is not None:
        reached = reached | ~good
    # Noise averages out.
    total = y.sum().clamp_min(torch.finfo(y.dtype).tiny)
    unused = max(float(torch.where(reached, 0, y).sum() / total), 0.0)
    dark = _find_dark(y, white, system, good) if isinstance(system, CodedSystem) else 0.0
    if dark > EDGE:
        message = (
            f"the unlit edge of the frame is at {dark:.1%} of its typical light: set dark=auto or "
            "dark=FILE; further warnings may come from it"
        )
        warnings.insert(0, Finding("dark", message))
    elif unused > UNUSED and not lost:
        message = (
            f"{unused:.1%} of the light lies where no band falls: system.bands or system.offsets "
            "do not reach as far as the light, or system.detector is too large; window= cuts it off"
        )
        warnings.append(Finding("detector", message))
    numbers = {"edge": dark, "unused": unused, "lost_bands": lost}
    return CameraCheck(tuple(warnings), "", numbers)


def _find_dark(y: Tensor, white: Tensor, system: CodedSystem, good: Tensor | None) -> float:
    """Return the level of a frame's edges that the light of their code does not explain.

    One band at most reaches an edge. What it brings has the contrast of the mask there: from a
    white scene w₀ at its dark pixels and w₁ at its bright ones. Of y₀ and y₁ in the frame, that
    leaves y₀ − (y₁ − y₀) w₀/(w₁ − w₀). A scene only adds contrast.

    Returns:
        A share of the frame's median, 0 where the edges have contrast, or many bands reach them.
    """
    shares = torch.tensor([0.05, 0.95], device=y.device)
    counts = torch.ones_like(y, dtype=torch.bool) if good is None else good.expand_as(y)
    typical = float(y[counts].median())
    length, width = y.shape[system.axis], max(1, abs(system.step))
    levels = []
    for first in (0, length - width):
        there, light, edge = (
            each.narrow(system.axis, first, width) for each in (counts, white.expand_as(y), y)
        )
        if int(there.sum()) < LEAST or float(light.median()) > 0.5 * float(white.median()):
            continue
        (w0, w1), (y0, y1) = (each[there].quantile(shares).tolist() for each in (light, edge))
        level = y0 - (y1 - y0) * w0 / (w1 - w0) if w1 > w0 else y0 * (w1 == 0)
        levels.append(level if level > EVEN * y1 else 0.0)
    return max(min(levels, default=0.0) / max(typical, torch.finfo(y.dtype).tiny), 0.0)
