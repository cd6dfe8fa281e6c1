"""A camera that differs a little from the nominal one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cassi.data.synthetic.twin import Twin
from cassi.systems import SDCassi


@dataclass(frozen=True)
class Mismatch:
    r"""Difference between the camera that measures and the nominal one of the methods.

        y = Σ_c S(o(c) + ε·(c − (C − 1)/2)) [(T m)_c · x_c]

    o(c) are the nominal offsets, ε is the error of the dispersion. T turns the mask m about its
    middle, then shifts it. S(d) moves by d pixels. Fractions of a pixel are interpolated linearly,
    and a moved mask is continued by its border. `Twin` models more defects.

    Args:
        shift: of the mask, pixels (down, right).
        rotation: of the mask, degrees, counterclockwise as displayed with row 0 on top.
        dispersion: ε, pixels per band. The middle of the spectrum stays in place. The parts of the
            outermost bands beyond the nominal detector, less than |ε|(C − 1)/2 pixels, are lost.

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
        """Whether there is any difference."""
        return any((*self.shift, self.rotation, self.dispersion))

    def measure(self, x: Tensor, system: SDCassi) -> Tensor:
        """Measure cubes with the true camera.

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
        twin = Twin(shift=list(self.shift), rotation=self.rotation, dispersion=self.dispersion)
        return twin.expose(x, system)
