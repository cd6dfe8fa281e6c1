"""Models of the light of a frame: at which offsets along the dispersion it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

PITCH_PIXELS = 1.0
"""Pixels between offsets in broadband light. A finer pitch does not place the mask better."""
MARGIN_PIXELS = 3.0
"""Width of the light beyond the outermost bands, pixels. So a nominal dispersion of 100 pixels may
be wrong by 3 %."""


class LightModel(NamedTuple):
    """Model of the light of a frame.

    Attributes:
        pitch: pixels between offsets. 0: light comes in one line per band, at the band's offset.
        is_simulated: the frame may be simulated, with light that ends at the edges of the mask.
            Then windows at these edges are allowed if there are few others.
        uses_taps: fractions of a pixel are interpolated linearly: first the mask on the pixels of
            the scene, then each band on the detector. Simulations and reconstructions do that;
            sensors do not.
        points: for each sample, the place of its narrow-band light in the spectrum, in bands; None:
            light anywhere in the spectrum. Empty: None for all samples.
    """

    pitch: float = PITCH_PIXELS
    is_simulated: bool = False
    uses_taps: bool = False
    points: Sequence[float | None] = ()


BROADBAND = LightModel()
ONE_LINE_PER_BAND = LightModel(0.0)
SIMULATED_LINES = LightModel(0.0, is_simulated=True)
SIMULATED_TAPS = LightModel(0.0, is_simulated=True, uses_taps=True)


def outer_offsets(offsets: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the light of the outermost bands, half a band beyond their offsets."""
    if len(offsets) == 1:
        return offsets[0] - 0.5, offsets[0] + 0.5
    first, last = offsets[1] - offsets[0], offsets[-1] - offsets[-2]
    return offsets[0] - first / 2, offsets[-1] + last / 2


def even_offsets(bands: Tensor, pitch: float) -> tuple[Tensor, float]:
    """Return even offsets of light, with a margin beyond the outermost bands, and their pitch."""
    first, last = outer_offsets(bands.tolist())
    margin = math.copysign(MARGIN_PIXELS, last - first)
    first, last = first - margin, last + margin
    count = max(round(abs(last - first) / pitch), 2)
    fractions = (torch.arange(count) + 0.5).double() / count
    return first + (last - first) * fractions, abs(last - first) / count
