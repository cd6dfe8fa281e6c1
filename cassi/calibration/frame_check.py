"""Check that a frame has light where the camera has bands, and nowhere else."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.calibration.findings import CameraCheck, Finding
from cassi.checks import clipped_level
from cassi.systems import System
from cassi.systems.band_positions import find_places
from cassi.systems.coded import CodedSystem

MAX_CLIPPED = 1e-4
"""If a larger share of the pixels has exactly the largest value, the frame may be saturated."""
MAX_NEGATIVE = 0.03
"""Largest share of the light that may be negative."""
MAX_UNUSED = 0.02
"""Largest share of the light that may lie where no band falls."""
MAX_LOST = 0.1
"""Largest share of a band's light that may fall beside the detector."""
MIN_EDGE_LEVEL = 0.03
"""If the level of the unlit edge, relative to the frame's median, is higher, the frame has a dark
level. In 18 real frames and 8 random cameras of `lab.py` the level is 0 if the dark level was
subtracted, and 0.035 to 0.7 if it was not."""
MIN_EVENNESS = 0.25
"""If the dark level of an edge, relative to the bright pixels of the edge, is not higher, it counts
as 0. A dark level is even; light through the mask is not."""
MIN_EDGE_PIXELS = 48
"""An edge with fewer good pixels is not judged."""
# Largest number of values of a simulated cube. Of a larger cube the middle lines are simulated.
_MAX_CUBE_VALUES = 2**24


def check_light(y: Tensor, good_pixels: Tensor | None) -> CameraCheck:
    """Warn of saturated pixels and of negative light.

    Args:
        y: measurement `(B, K, H', W')`.
        good_pixels: pixels that count, shaped like one measurement or all; None: all.
    """
    values = y.flatten() if good_pixels is None else y[good_pixels.expand_as(y)]
    total = values.abs().sum().clamp_min(torch.finfo(y.dtype).tiny)
    warnings = []
    largest = values.max()
    n_clipped = int((values == largest).sum())
    # An analogue-digital converter with few levels gives the largest level to many pixels by
    # chance. Then about as many pixels have the levels just below.
    n_below = int(((values < largest) & (values >= 0.99 * largest)).sum())
    is_clipped = n_clipped > MAX_CLIPPED * values.numel() and n_clipped > n_below / 4
    if is_clipped and clipped_level(values) is not None:
        message = (
            f"{n_clipped} pixels ({n_clipped / values.numel():.2g} of them) have the largest "
            "value: the sensor is saturated there; set saturation= to that level of the raw "
            "frame, which leaves them out"
        )
        warnings.append(Finding("light", message))
    negative = float(values.clamp(max=0).abs().sum() / total)
    if negative > MAX_NEGATIVE:
        message = (
            f"{negative:.1%} of it is negative: too much was subtracted; set dark= to the sensor's "
            "dark level, or dark=auto"
        )
        warnings.append(Finding("light", message))
    numbers = {"largest_value": n_clipped, "negative": negative}
    return CameraCheck(tuple(warnings[:1]), "", {"light": numbers})


def check_detector(y: Tensor, system: System, good_pixels: Tensor | None) -> CameraCheck:
    """Warn of a dark level, of bands beside the detector, and of light where no band falls.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        good_pixels: pixels that count, shaped like one measurement or all; None: all.
    """
    warnings = []
    axis = system.part_axis
    # A white cube is simulated below. If the camera can be cut into parts, some lines are enough.
    if axis is not None:
        length = system.cube_shape[axis]
        lines = min(length, max(1, _MAX_CUBE_VALUES * length // math.prod(system.cube_shape)))
        first = (length - lines) // 2
        system, y = system.part(first, first + lines), y.narrow(axis, first, lines)
        good_pixels = None if good_pixels is None else good_pixels.narrow(axis, first, lines)
    places = find_places(system)
    lost_bands = [band for band, place in enumerate(places, 1) if place.lost_fraction > MAX_LOST]
    if lost_bands:
        message = (
            f"{len(lost_bands)} bands fall beside it (bands {lost_bands[0]} to {lost_bands[-1]}, "
            f"up to {max(place.lost_fraction for place in places):.0%} of their light): set "
            "system.offsets or system.detector to the camera's, or leave them out"
        )
        warnings.append(Finding("detector", message))
    # Whole lines across the dispersion are compared: a line without light shows a wrong camera, but
    # a single dark pixel may be noise.
    axis_across = -3 - system.axis if isinstance(system, CodedSystem) else -2
    white_cube = torch.ones((1, *system.cube_shape), dtype=torch.float32, device=y.device)
    white_frame: Tensor = system(white_cube)
    is_reached = (white_frame > 0).any(axis_across, keepdim=True).expand_as(white_frame)
    if good_pixels is not None:
        is_reached = is_reached | ~good_pixels
    # Negative values are part of the sum, so that noise averages out.
    total = y.sum().clamp_min(torch.finfo(y.dtype).tiny)
    unused_share = max(float(torch.where(is_reached, 0, y).sum() / total), 0.0)
    dark_level = (
        _estimate_dark_level(y, white_frame, system, good_pixels)
        if isinstance(system, CodedSystem)
        else 0.0
    )
    if dark_level > MIN_EDGE_LEVEL:
        message = (
            f"the unlit edge of the frame is at {dark_level:.1%} of its typical light: set "
            "dark=auto or dark=FILE; further warnings may come from it"
        )
        warnings.insert(0, Finding("dark", message))
    elif unused_share > MAX_UNUSED and not lost_bands:
        message = (
            f"{unused_share:.1%} of the light lies where no band falls: system.bands or "
            "system.offsets do not reach as far as the light, or system.detector is too large; "
            "window= cuts it off"
        )
        warnings.append(Finding("detector", message))
    numbers = {"edge": dark_level, "unused": unused_share, "lost_bands": lost_bands}
    return CameraCheck(tuple(warnings), "", numbers)


def _estimate_dark_level(
    y: Tensor, white_frame: Tensor, system: CodedSystem, good_pixels: Tensor | None
) -> float:
    """Estimate a dark level that was not subtracted, from the edges of a frame.

    If only one band reaches an edge, the light there has the contrast of the mask. At the edge, w₀
    and w₁ are the 5 % and 95 % quantiles of the simulated frame of a white scene, y₀ and y₁ those
    of the measured frame. The dark level is y₀ − (y₁ − y₀) w₀/(w₁ − w₀). Contrast of the scene
    makes this estimate smaller. The smaller one of both edges counts.

    Returns:
        The dark level over the frame's median; 0 if the edges have contrast, or if many bands reach
        them.
    """
    shares = torch.tensor([0.05, 0.95], device=y.device)
    counts = (
        torch.ones_like(y, dtype=torch.bool) if good_pixels is None else good_pixels.expand_as(y)
    )
    typical = float(y[counts].median())
    length, width = y.shape[system.axis], max(1, abs(system.step))
    levels = []
    for first in (0, length - width):
        is_counted, light, edge = (
            image.narrow(system.axis, first, width)
            for image in (counts, white_frame.expand_as(y), y)
        )
        if int(is_counted.sum()) < MIN_EDGE_PIXELS or float(light.median()) > 0.5 * float(
            white_frame.median()
        ):
            continue
        (w0, w1), (y0, y1) = (
            image[is_counted].quantile(shares).tolist() for image in (light, edge)
        )
        level = y0 - (y1 - y0) * w0 / (w1 - w0) if w1 > w0 else y0 * (w1 == 0)
        levels.append(level if level > MIN_EVENNESS * y1 else 0.0)
    return max(min(levels, default=0.0) / max(typical, torch.finfo(y.dtype).tiny), 0.0)
