"""A camera that is not quite the one it is taken for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi import ops
from cassi.systems import SDCassi
from cassi.systems.moved_masks import move_mask


@dataclass(frozen=True)
class Mismatch:
    r"""How the camera that measures differs from the one that methods are told of.

        y = Σ_c S(o(c) + ε·(c − (C − 1)/2)) [(T m)_c · x_c]

    with the nominal offsets o(c), the error ε of the dispersion, and the mask m moved by T: first
    turned about its middle, then shifted. S(d) moves by d pixels. Fractions of a pixel are
    interpolated linearly; a moved mask is continued by its border.

    Args:
        shift: of the mask, pixels (down, right).
        rotation: of the mask, degrees, counterclockwise as displayed with row 0 on top.
        dispersion: ε, pixels per band. The middle of the spectrum stays where it is. What the
            outermost bands move beyond the nominal detector is lost, less than |ε|(C − 1)/2 pixels.

    Raises:
        ValueError: a value is not finite, or `shift` is not a pair.
    """

    shift: Sequence[float] = (0.0, 0.0)
    rotation: float = 0.0
    dispersion: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if len(self.shift) != 2:
            raise ValueError(f"mismatch.shift: expected [down, right], got {self.shift!r}")
        for value in (*self.shift, self.rotation, self.dispersion):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"mismatch: expected numbers, got {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"mismatch: expected finite numbers, got {value!r}")

    @property
    def exists(self) -> bool:
        """Tell whether there is any."""
        return any((*self.shift, self.rotation, self.dispersion))

    def measure(self, x: Tensor, system: SDCassi) -> Tensor:
        """Measure cubes with the camera as it really is.

        Args:
            x: `(B, C, H, W)`.
            system: the nominal camera, with one mask for all samples.

        Returns:
            y `(B, K, H', W')`.

        Raises:
            ValueError: the camera has a mask per sample.
        """
        if system.mask.ndim != 4:
            raise ValueError("mismatch: expected a camera with one mask for all samples")
        mask = system.mask
        if any((*self.shift, self.rotation)):
            mask = move_mask(mask, self.shift, self.rotation)
        if not self.dispersion:
            return SDCassi(mask, system.bands, system.step, system.axis)(x)
        turned = system.axis == -2
        ones = mask.new_ones(mask.shape[-2:])
        shots = []
        for code in mask:  # (1|C, H, W)
            coded = code * x
            coded = coded.mT if turned else coded
            moved = shift_bands(coded, self.dispersion)
            shots.append(ops.forward(moved, ones.mT if turned else ones, system.step))
        y = torch.cat(shots, 1)
        return y.mT if turned else y


def shift_bands(x: Tensor, error: float) -> Tensor:
    """Shift band c by error·(c − (C − 1)/2) columns to the right.

    Args:
        x: `(B, C, H, W)`.
        error: pixels per band.

    Returns:
        The moved bands, interpolated linearly, zero where nothing was.
    """
    bands, width = x.shape[1], x.shape[-1]
    moved = torch.zeros_like(x)
    for band in range(bands):
        whole = math.floor(distance := error * (band - (bands - 1) / 2))
        fraction = distance - whole
        for offset, weight in ((whole, 1 - fraction), (whole + 1, fraction)):
            start, stop = max(offset, 0), min(width + offset, width)
            if weight > 0 and start < stop:
                part = x[:, band, :, start - offset : stop - offset]
                moved[:, band, :, start:stop] += weight * part
    return moved
