"""What is estimated from a measurement as a whole, for solvers that see only a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem

Parts = Callable[[], Iterable[tuple[Tensor, LinearSystem]]]
"""The measurement in parts along one axis, in order, each with the camera that sees it."""


class Reading:
    """Level, noise and gain of a whole measurement, computed part by part when first asked for.

    A camera that sees a part of a scene has it as its attribute `reading`; `signal_level`,
    `noise_level`, `softening` and `largest_eigenvalue` then answer for the whole scene, and what is
    recovered from the parts fits together. The parts must be independent, `System.part_axis`.

    Args:
        parts: returns the parts anew at every call; their sizes are multiples of 16 pixels along
            the axis, except the last.
        axis: -2 or -1, along which the measurement is in parts.
    """

    def __init__(self, parts: Parts, axis: int) -> None:
        self.parts, self.axis = parts, axis

    @cached_property
    def level(self) -> Tensor:
        """The signal level `(B, 1, 1, 1)`; see `signal_level`."""
        from cassi.solvers.level import brightness_level, flat_field

        flats = torch.cat([flat_field(y, system) for y, system in self.parts()], self.axis)
        return brightness_level(torch.cat([y for y, _ in self.parts()], self.axis), flats)

    @cached_property
    def noise(self) -> Tensor:
        """The noise relative to the root mean square of y, `(B,)`; see `noise_level`."""
        from cassi.solvers.noise import noise_of_parts, root_mean_square

        whole = torch.cat([y for y, _ in self.parts()], self.axis)
        return noise_of_parts(self.parts(), self.axis, whole.shape) / root_mean_square(whole)

    @cached_property
    def gain(self) -> Tensor:
        """The mean of AAᵀ1 over the detector, `(B,)`; see `softening`."""
        from cassi.solvers.softening import gain_sum

        sums, count = [], 0
        for y, system in self.parts():
            sums.append(gain_sum(y, system))
            count += y[0].numel()
        return torch.stack(sums).sum(0) / count

    @cached_property
    def largest_eigenvalue(self) -> Tensor:
        """λ_max(AAᵀ), the largest of the parts'; see `cassi.solvers.spectrum`."""
        from cassi.solvers.spectrum import largest_eigenvalue

        return torch.stack([largest_eigenvalue(y, system) for y, system in self.parts()]).amax()


def reading_of(system: LinearSystem) -> Reading | None:
    """Return what is known of the whole scene; None for a camera that sees all of it."""
    reading: Reading | None = getattr(system, "reading", None)
    return reading
