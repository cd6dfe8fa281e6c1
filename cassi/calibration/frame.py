"""A frame with a model of its scene: the spectra that may occur in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.ops import linear_taps
from cassi.smooth_windows import smooth_spectra
from cassi.systems.tilted import Shift

SPECTRA = 10
"""Number of cosines over the bands whose sum is the spectrum of an even scene."""


@dataclass(frozen=True)
class Frame:
    """Snapshots of scenes whose spectra are combinations of given spectra.

    Args:
        y: snapshots `(B, K, H', W')` by one camera, finite everywhere.
        points: places in the spectrum with light, in bands; None: all bands.
        spectra: given spectra over the points, `(S, P)`.
        good: bool, shaped like y, pixels that count; None: all.
        shift: function that interpolates bands between pixels. Frames of a sensor need
            `cassi.systems.taps.sharp_taps`, which keeps the contrast of the bands.
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
        """Return the frame of a scene in narrow-band light at one place of the spectrum."""
        return Frame(y, (band,), y.new_ones(1, 1), good)

    @property
    def counts(self) -> Tensor:
        """One at pixels that are good in all snapshots, zero at the others, `(1, K, H', W')`."""
        if self.good is None:
            return torch.ones_like(self.y[:1])
        return self.good.all(0, keepdim=True).to(self.y)
