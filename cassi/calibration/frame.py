"""A frame and what its scene may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.ops import linear_taps
from cassi.plain_scenes import smooth_spectra
from cassi.systems.tilted import Shift

SPECTRA = 10
"""Cosines over the bands, of which the spectrum of an even scene is made."""


@dataclass(frozen=True)
class Frame:
    """A frame and what its scene may be: combinations of spectra.

    Args:
        y: `(B, K, H', W')`, several snapshots by one camera.
        points: places in the spectrum, in bands; None for all bands.
        spectra: `(S, P)`, over the points.
        good: bool, shaped like y: the pixels that count; None for all. y is finite everywhere.
        shift: interpolates bands between pixels. Those that a sensor saw keep their contrast:
            `cassi.systems.taps.sharp_taps`.
    """

    y: Tensor
    points: tuple[float, ...] | None
    spectra: Tensor
    good: Tensor | None = None
    shift: Shift = linear_taps

    @staticmethod
    def snapshot(
        y: Tensor, bands: int, good: Tensor | None = None, shift: Shift = linear_taps
    ) -> Frame:
        """Return the frame of an unknown scene."""
        return Frame(y, None, smooth_spectra(bands, SPECTRA, y), good, shift)

    @staticmethod
    def monochromatic(y: Tensor, band: float, good: Tensor | None = None) -> Frame:
        """Return the frame of a scene in the light of one place of the spectrum."""
        return Frame(y, (band,), y.new_ones(1, 1), good)

    @property
    def counts(self) -> Tensor:
        """One at pixels that are good in all snapshots, zero at the others, `(1, K, H', W')`."""
        if self.good is None:
            return torch.ones_like(self.y[:1])
        return self.good.all(0, keepdim=True).to(self.y)
