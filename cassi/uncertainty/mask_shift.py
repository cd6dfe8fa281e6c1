"""Estimate an apparent shift of the mask from the residual of a cube."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from cassi.systems.base import System
from cassi.uncertainty.local_mean import mean_around_pixels

MEAN_SIDE = 5
"""Side of the square over which a cube is averaged, pixels. A wrong mask leaves its pattern in a
cube; the average does not have this pattern."""
MIN_RESIDUAL_ERRORS = 8.0
"""A shift that is fitted with the cube itself is significant above this many standard errors."""
MIN_CLEAR_SHIFT = 0.25
"""A shift that is fitted with the averaged cube needs no fit with the cube itself above this many
pixels. Texture alone gives 0.1, rarely 0.2."""
MIN_SHIFT = 0.05
"""A smaller shift is never significant, pixels."""
MIN_MEAN_ERRORS = 10.0
"""A shift that is fitted with the averaged cube is significant above this many standard errors."""
ESTIMATED_FRACTION = 0.8
"""Ratio of the shift that is fitted with the averaged cube to the true shift."""
# A residual below this, relative to the measurement, is rounding.
_MIN_RESIDUAL = 1e-5
# Determinant of the normal matrix over the product of its diagonal. Below this, shifts along both
# axes change the measurement in the same way.
_MIN_DETERMINANT = 1e-9


@dataclass(frozen=True)
class MaskShift:
    """Apparent shift of the mask relative to its place in the camera.

    Attributes:
        shift: shift (down, right) fitted with the averaged cube, pixels. It is four fifths of the
            true shift.
        errors: standard errors by which `shift` differs from 0, for the larger of both directions.
        left: standard errors by which a shift (down, right) that is fitted with the cube itself
            differs from 0; small if the cube is consistent with its measurement. The plan
            of a reconstruction in blocks stores it under this name.
        change: root mean square of the change of the measurement by the shift.
    """

    shift: tuple[float, float] = (0.0, 0.0)
    errors: float = 0.0
    left: tuple[float, float] = (0.0, 0.0)
    change: float = 0.0

    @property
    def is_significant(self) -> bool:
        """Tell whether the shift is significant."""
        size = math.hypot(*self.shift)
        return self._is_far or (size > MIN_SHIFT and max(self.left) > MIN_RESIDUAL_ERRORS)

    def is_doubtful(self, axis_across: int | None) -> bool:
        """Tell whether the shift is larger than wrong spectra in a cube can imitate.

        Args:
            axis_across: axis across the dispersion, -2 or -1; None: there is no such axis.
        """
        # Light in a wrong band looks like a shift of 0.07 to 0.23 pixels along the dispersion. So
        # the fit with the cube itself counts only for shifts across the dispersion. This choice
        # reduced the false warnings on 16 other random draws from 7 to 1
        # (docs/development/experiments/uncertainty.md).
        if axis_across is None:
            return self._is_far
        return self._is_far or (
            abs(self.shift[axis_across]) > MIN_SHIFT
            and self.left[axis_across] > MIN_RESIDUAL_ERRORS
        )

    @property
    def _is_far(self) -> bool:
        return math.hypot(*self.shift) > MIN_CLEAR_SHIFT and self.errors > MIN_MEAN_ERRORS


@torch.no_grad()
def find_mask_shift(y: Tensor, x: Tensor, system: System) -> MaskShift:
    """Fit a shift of the mask to the residual of a cube `(1, C, H, W)`.

        min_δ ‖y − Ax̄ − Σ_k δ_k ∂(Ax̄)/∂s_k‖²

    s is the place of the mask. The derivative by s is half the difference of the measurements with
    the mask moved by a pixel to either side.

    A cube can be consistent with its measurement through a wrong mask, but then it has a pattern of
    the mask. The mean x̄ of the cube over 5×5 pixels does not have this pattern. It does not have
    most of the texture either, but texture is not correlated with the derivative of the mask. A
    second shift is fitted with the cube itself. The shift is 0 if the camera does not have exactly
    one buffer `mask`, or if the cube is smaller than 10 pixels.

    Args:
        y: measurement `(1, K, H', W')`.
        x: the cube `(1, C, H, W)`.
        system: the camera.
    """
    name = _mask_of(system)
    if name is None or min(x.shape[-2:]) < 2 * MEAN_SIDE:
        return MaskShift()
    shift, errors, change = _fit(y, mean_around_pixels(x, MEAN_SIDE), system, name)
    _, residual_errors, _ = _fit(y, x, system, name)
    return MaskShift(shift, max(errors), residual_errors, change)


@torch.no_grad()
def measure_shifted(x: Tensor, system: System, mask_shift: MaskShift) -> Tensor:
    """Measure a cube through the shifted mask, if the shift is significant.

    Fractions of a pixel are interpolated linearly.

    Args:
        x: the cube `(1, C, H, W)`.
        system: the camera.
        mask_shift: apparent shift of the mask.
    """
    name = _mask_of(system)
    if name is None or not mask_shift.is_significant:
        return system(x)
    mask = dict(system.named_buffers())[name]
    for axis, estimate in zip((-2, -1), mask_shift.shift, strict=True):
        shift = estimate / ESTIMATED_FRACTION
        whole_shift = math.floor(shift)
        mask = torch.lerp(
            mask.roll(whole_shift, axis), mask.roll(whole_shift + 1, axis), shift - whole_shift
        )
    return functional_call(system, {name: mask}, (x,))


def _mask_of(system: System) -> str | None:
    """Return the name of the buffer `mask` of a camera; None unless there is exactly one."""
    names = [n for n, _ in system.named_buffers() if n.rpartition(".")[2] == "mask"]
    return names[0] if len(names) == 1 else None


def _fit(
    y: Tensor, x: Tensor, system: System, name: str
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Fit a shift of the mask to y − Ax.

    Returns:
        Shift (down, right) in pixels; this shift in standard errors; root mean square of the change
        of y by the shift.
    """
    mask = dict(system.named_buffers())[name]
    images = []
    for axis in (-2, -1):
        forward_y, backward_y = (
            functional_call(system, {name: mask.roll(pixels, axis)}, (x,)) for pixels in (1, -1)
        )
        images.append((forward_y - backward_y) / 2)
    design = torch.stack([image.flatten() for image in images], 1).double()
    residual = (y - system(x)).flatten().double()
    gram = design.mT @ design
    scale = float(gram[0, 0] * gram[1, 1])
    is_rounding = float(residual.square().mean()) <= _MIN_RESIDUAL**2 * float(
        y.double().square().mean()
    )
    if is_rounding or float(torch.linalg.det(gram)) <= _MIN_DETERMINANT * scale:
        return (0.0, 0.0), (0.0, 0.0), 0.0
    shift = torch.linalg.solve(gram, design.mT @ residual)
    shift_residual = design @ shift
    variance = (residual - shift_residual).square().mean()
    errors = (torch.linalg.inv(gram).diagonal() * variance).sqrt()
    down, right = shift.tolist()
    first, second = (shift.abs() / errors.clamp_min(torch.finfo(errors.dtype).tiny)).tolist()
    return (down, right), (first, second), float(shift_residual.square().mean().sqrt())
